"""backward and grad."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

from pyflame.autograd.engine import gradients, run_hooks
from pyflame.autograd.leaf import Leaf
from pyflame.evaluation import evaluate
from pyflame.lazy import Val, apply, modes
from pyflame.ops.core import Handle, as_tensor, wrap
from pyflame_rt.graph.errors import ShapeMismatchError
from pyflame_rt.ops.onnx.arithmetic import Add

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyflame.tensors import Tensor

__all__ = ["backward", "checkpoint", "grad"]


def _listed(values: Any) -> list[Any]:
    return [values] if isinstance(values, Handle) or values is None else list(values)


def _seeds(outputs: Sequence[Tensor], given: Any) -> list[Val | None]:
    listed = [None] * len(outputs) if given is None else _listed(given)
    if len(listed) != len(outputs):
        raise ValueError(f"{len(outputs)} outputs but {len(listed)} gradients for them")
    seeds: list[Val | None] = []
    for out, seed in zip(outputs, listed, strict=True):
        if seed is None:
            if out.dtype.is_complex:
                raise RuntimeError(
                    "a gradient is that of one real number; this output is complex. Take its abs(), real or imag, or "
                    "pass the gradient of the output"
                )
            if out.numel != 1:
                raise RuntimeError(
                    f"a gradient is that of one number; this output has shape {out.shape}. "
                    "Reduce it with sum() or mean(), or pass the gradient of each element"
                )
            seeds.append(None)
            continue
        seed = as_tensor(seed, out.dtype)
        if tuple(seed.shape) != tuple(out.shape):
            raise ShapeMismatchError(f"the gradient has shape {seed.shape}, its output {out.shape}")
        seeds.append(seed._value)
    return seeds


def backward(
    tensors: Any,
    grad_tensors: Any = None,
    *,
    grad_output: Any = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    inputs: Any = None,
    accumulate: bool = True,
) -> None:
    """Give every leaf the gradient of the outputs, as a lazy tensor in ``.grad``.

    Args:
        tensors: outputs, one number each unless gradients for them are given.
        grad_tensors: the gradient of each output.
        grad_output: the same, under its other name.
        retain_graph: allow a further pass over the same graph when its values are known. Until they are, nothing has
            been given up, and a graph can be differentiated again in any case.
        create_graph: let the gradients be differentiated in turn.
        inputs: only these leaves get a gradient.
        accumulate: add to gradients that are there; False replaces them.

    Example:
        >>> import pyflame as pf
        >>> x = pf.tensor([3.0], requires_grad=True)
        >>> pf.autograd.backward((x * x).sum())
        >>> print(x.grad)
        tensor([6.])
    """
    outputs = _listed(tensors)
    seeds = _seeds(outputs, grad_tensors if grad_tensors is not None else grad_output)
    vals = [out._value for out in outputs]
    if not any(v.needs_grad for v in vals):
        raise RuntimeError(
            "nothing to differentiate: no tensor that this depends on requires gradients. "
            "Call requires_grad_() on those that should get one before they are used (parameters of modules do)"
        )
    keep = bool(create_graph if retain_graph is None else retain_graph)
    wrt = None if inputs is None else [t._value for t in _listed(inputs)]
    found = gradients(vals, seeds, wrt, create_graph=create_graph, release=not keep)
    mates = tuple(weakref.ref(v) for v in vals)
    wanted = None if wrt is None else {id(v) for v in wrt}
    for v, g in found.values():
        if wanted is None or id(v) in wanted:
            _store(v, g, mates, accumulate)
    if modes.anomaly and modes.tracer is None:
        # What is looked for is found here, not where the gradients happen to be read.
        evaluate([*vals, *(v.leaf.grad._value for v, _ in found.values() if v.leaf and v.leaf.grad is not None)])


def _store(v: Val, g: Val, mates: tuple[weakref.ref[Val], ...], accumulate: bool) -> None:
    if v.leaf is None:
        v.leaf = Leaf()
    if v.leaf.requires_grad and v.leaf.hooks:
        g = run_hooks(v.leaf.hooks, g)
    if modes.tracer is not None:
        modes.tracer.note_grad(v.leaf)
        modes.tracer.saw([v.leaf.grad])
    if accumulate and v.leaf.grad is not None:
        g = apply(Add, (v.leaf.grad._value, g))
    g.mates = mates
    v.leaf.grad = wrap(g)


def grad(
    outputs: Any,
    inputs: Any,
    grad_outputs: Any = None,
    *,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    only_inputs: bool = True,
    allow_unused: bool | None = None,
    materialize_grads: bool = False,
) -> tuple[Tensor | None, ...]:
    """The gradients of outputs for the inputs, as lazy tensors; ``.grad`` is left alone.

    Args:
        outputs: one number each unless gradients for them are given.
        inputs: tensors that require gradients, leaves or computed ones.
        grad_outputs: the gradient of each output.
        retain_graph: allow a further pass over the same graph; as ``create_graph`` by default.
        create_graph: let the gradients be differentiated in turn.
        only_inputs: torch's, which is always True there too.
        allow_unused: give None for inputs that the outputs do not depend on, instead of an error.
        materialize_grads: give zeros for those.

    Example:
        >>> import pyflame as pf
        >>> x = pf.tensor(2.0, requires_grad=True)
        >>> (first,) = pf.autograd.grad(x**3, x, create_graph=True)
        >>> (second,) = pf.autograd.grad(first, x)
        >>> first.item(), second.item()
        (12.0, 12.0)
    """
    if not only_inputs:
        raise ValueError("only_inputs=False is gone from torch too; use backward() for the gradients of all leaves")
    outs, ins = _listed(outputs), _listed(inputs)
    for t in ins:
        if not t._value.needs_grad:
            raise RuntimeError(
                f"an input of shape {t.shape} does not require gradients; call requires_grad_() on it first"
            )
    if not any(out._value.needs_grad for out in outs):
        raise RuntimeError("the outputs do not depend on anything that requires gradients")
    keep = create_graph if retain_graph is None else retain_graph
    seeds = _seeds(outs, grad_outputs)
    vals = [t._value for t in ins]
    found = gradients([o._value for o in outs], seeds, vals, create_graph=create_graph, release=not keep)
    results: list[Tensor | None] = []
    for t, v in zip(ins, vals, strict=True):
        g = found.get(id(v))
        if g is not None:
            results.append(wrap(g[1]))
            continue
        if not (allow_unused or materialize_grads):
            raise RuntimeError(
                f"an input of shape {t.shape} was not used for the outputs; pass allow_unused=True for None"
            )
        from pyflame.ops.creation import zeros_like

        results.append(zeros_like(t) if materialize_grads else None)
    return tuple(results)


def checkpoint(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call a function whose intermediate values are computed again for the gradients instead of being kept.

    Example:
        >>> import pyflame as pf
        >>> x = pf.tensor([1.0], requires_grad=True)
        >>> pf.autograd.checkpoint(lambda v: v.exp().sum(), x).backward()
        >>> x.grad.item() == float(pf.exp(x))
        True
    """
    from pyflame.autograd.recompute import run

    return run(function, args, kwargs)
