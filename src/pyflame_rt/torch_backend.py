"""The backend "pyflame" of ``torch.compile``: AOTAutograd's graphs on the engine, forward and backward.

Operators without a lowering, and those that draw random numbers, stay with torch, by name: the graph is cut around
them (:func:`fallbacks` lists which). Tensors are shared with torch, not copied.
"""

from __future__ import annotations

import operator
import threading
from collections import Counter
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np

from pyflame_rt.graph.errors import PyFlameRTError
from pyflame_rt.importers.torch_fx import FxResult, is_lowered, lower_fx, operator_name, refused_nodes
from pyflame_rt.session import InferenceSession

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["fallbacks", "pyflame_backend"]

# They advance torch's own generator.
_RANDOM = frozenset(("rand", "randn", "rand_like", "randn_like", "randint", "randperm", "bernoulli", "native_dropout",
                     "dropout", "normal", "uniform", "multinomial", "exponential"))  # fmt: skip
# Results that only torch's own backward reads are not the same here.
_PRIVATE = frozenset(("_embedding_bag", "native_batch_norm", "_native_batch_norm_legit"))
_KEPT = _RANDOM | _PRIVATE
_eager: Counter[str] = Counter()
_lock = threading.Lock()


def fallbacks() -> dict[str, int]:
    """Operators that torch ran itself in graphs compiled so far, and in how many places.

    Example:
        >>> sum(fallbacks().values()) >= 0
        True
    """
    with _lock:
        return dict(_eager)


def pyflame_backend(module: Any, example_inputs: Sequence[Any], **options: Any) -> Callable[..., Any]:
    """What ``torch.compile(model, backend="pyflame")`` calls for each graph it captures.

    Args:
        module: the captured ``torch.fx.GraphModule``.
        example_inputs: what it was captured with.
        options: none are known; ``torch.compile(options=...)`` with any is refused.

    Example:
        >>> import torch
        >>> double = torch.compile(lambda x: x + x, backend=pyflame_backend)
        >>> double(torch.tensor([1.0, 2.0])).tolist()
        [2.0, 4.0]
    """
    if unknown := [name for name, value in options.items() if value]:
        raise TypeError(f"the backend 'pyflame' has no options, got {', '.join(unknown)}")
    from torch._dynamo.backends.common import aot_autograd

    compiler = aot_autograd(fw_compiler=_compiled, bw_compiler=_compiled, decompositions=_decompositions())
    return compiler(module, example_inputs)


def _decompositions() -> dict[Any, Any]:
    """How torch takes apart what is not lowered."""
    from torch._decomp import core_aten_decompositions

    known = core_aten_decompositions()
    return {op: known[op] for op in known if not is_lowered(op) and operator_name(op)[1] not in _KEPT}


def _stays(target: Any) -> bool:
    _, name, overload = operator_name(target)
    return name in _KEPT and overload != "no_stats"


def _supported(node: Any) -> bool:
    if node.target is operator.getitem:
        return _supported(node.args[0])
    if node.op != "call_function" or _stays(node.target) or not is_lowered(node.target):
        return False
    import torch

    values = [node.meta.get("val"), *[n.meta.get("val") for n in node.all_input_nodes]]
    flat = [v for value in values for v in (value if isinstance(value, (list, tuple)) else [value])]
    return all(v.device.type == "cpu" and not v.is_sparse for v in flat if isinstance(v, torch.Tensor))


def _compiled(module: Any, example_inputs: Sequence[Any]) -> Callable[..., Any]:
    """A function that runs a graph of aten operators; it takes its arguments as a list."""
    del example_inputs
    calls = [node for node in module.graph.nodes if node.op == "call_function"]
    refused = {node for node in calls if not _supported(node)}
    if not refused:
        try:
            return _boxed(_runner(module))
        except PyFlameRTError:
            pass  # some operator is not lowered in the form it has here: the others are ours still
    refused |= {node for node in refused_nodes(module) if node.op == "call_function"}
    if not refused:
        refused = set(calls)
    _note([node for node in calls if node in refused and node.target is not operator.getitem])
    return _boxed(_cut(module, refused))


def _boxed(run: Callable[..., Any]) -> Callable[..., Any]:
    """AOTAutograd hands over the list of arguments, so that memory goes as soon as it can."""

    def call(args: list[Any]) -> Any:
        given = tuple(args)
        args.clear()
        return run(*given)

    call._boxed_call = True  # type: ignore[attr-defined]  # how torch tells such functions
    return call


def _note(nodes: Sequence[Any]) -> None:
    with _lock:
        for node in nodes:
            space, name, overload = operator_name(node.target)
            _eager[".".join(part for part in (space, name, overload) if part)] += 1


def _cut(module: Any, refused: set[Any]) -> Callable[..., Any]:
    """The graph in pieces, one after the other: ours where operators are lowered, torch's where they are not."""
    from torch.fx.passes.split_module import split_module

    places: dict[Any, int] = {}
    ours: dict[str, bool] = {}
    last, count = None, 0
    for node in module.graph.nodes:
        if node.op != "call_function":
            continue
        if node.target is operator.getitem and node.args[0] in places:
            places[node] = places[node.args[0]]  # beside what made the tuple
            continue
        kind = node not in refused
        count += kind != last
        places[node], last = count, kind
        ours[f"submod_{count}"] = kind
    whole = split_module(module, module, lambda node: places.get(node, 0), keep_original_order=True)
    part: Any
    for name, part in list(whole.named_children()):
        if not ours.get(name):
            continue
        try:
            part.forward = _single(_runner(part), part)
        except PyFlameRTError:
            _note([n for n in part.graph.nodes if n.op == "call_function" and n.target is not operator.getitem])
    return whole


def _single(runner: Callable[..., list[Any]], part: Any) -> Callable[..., Any]:
    """A part whose graph gives one value, not a list, does so."""
    given = next(node for node in part.graph.nodes if node.op == "output").args[0]
    if isinstance(given, (list, tuple)):
        return lambda *args: tuple(runner(*args))
    return lambda *args: runner(*args)[0]


def _runner(module: Any) -> Callable[..., list[Any]]:
    """A function that runs a graph; an error when one of its operators is not lowered in the form it has here."""
    lowered = lower_fx(module)
    session = InferenceSession(lowered.graph) if lowered.graph.outputs else None
    given = [(i, known.name, known.order) for i, known in enumerate(lowered.inputs) if known is not None]

    def run(*args: Any) -> list[Any]:
        feed = {name: _array(args[i], order) for i, name, order in given}
        made = session.run(None, feed) if session is not None else []
        return [_result(found, made, args) for found in lowered.results]

    return run


def _result(found: FxResult, made: list[Any], args: Sequence[Any]) -> Any:
    kind, source, order, views = found
    if kind == "number":
        return made[source].item()
    value = source if kind == "plain" else args[source] if kind == "input" else _tensor(made[source])
    if order is not None:
        value = value.permute([order.index(i) for i in range(len(order))])
    for view, rest, named in views:
        value = view(value, *rest, **named)
    return value


def _array(value: Any, order: list[int] | None = None) -> Any:
    """The memory of a tensor, as NumPy sees it; with its axes in that order."""
    import torch

    if not isinstance(value, torch.Tensor):
        return np.asarray(value)
    plain = value.detach().resolve_conj().resolve_neg()
    plain = (plain if order is None else plain.permute(order)).contiguous()
    if plain.dtype is torch.bfloat16:
        return plain.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return plain.numpy()


def _tensor(array: np.ndarray[Any, Any]) -> Any:
    """A tensor over the memory of an array."""
    import torch

    owned = array if array.flags.writeable and array.flags.c_contiguous else array.copy()
    if owned.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(owned.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(owned)
