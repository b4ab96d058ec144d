"""Transforms of functions under torch.func's names: derivatives by reverse mode, batches by unrolling."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pyflame.autograd import functional as _derivatives
from pyflame.autograd.api import grad as _grad
from pyflame.autograd.modes import enable_grad
from pyflame.ops.core import Handle
from pyflame.ops.shaping import stack

__all__ = [
    "functional_call",
    "grad",
    "grad_and_value",
    "hessian",
    "jacfwd",
    "jacrev",
    "jvp",
    "stack_module_state",
    "vjp",
    "vmap",
]

Argnums = int | tuple[int, ...]


def _leaves(tree: Any, made: list[Any]) -> Any:
    """The tree with every tensor replaced by a leaf of its own, which is listed; a lone tensor stays one."""
    if isinstance(tree, Handle):
        plain: Any = tree
        made.append(plain * 1 if plain.requires_grad else plain.detach().requires_grad_())
        return made[-1]
    if isinstance(tree, Mapping):
        return {key: _leaves(value, made) for key, value in tree.items()}
    if isinstance(tree, tuple | list):
        return type(tree)(_leaves(value, made) for value in tree)
    raise TypeError(f"only tensors, and lists, tuples and dicts of them, are differentiated. Received: {type(tree)}")


def _like(tree: Any, found: Any) -> Any:
    """The tree with the next found value in place of every tensor."""
    if isinstance(tree, Handle):
        return next(found)
    if isinstance(tree, Mapping):
        return {key: _like(value, found) for key, value in tree.items()}
    return type(tree)(_like(value, found) for value in tree)


def grad_and_value(func: Callable[..., Any], argnums: Argnums = 0, has_aux: bool = False) -> Callable[..., Any]:
    """The function that gives the gradient of a function of one number, and that number.

    Example:
        >>> import pyflame as pf
        >>> slope, value = pf.func.grad_and_value(lambda x: (x * x).sum())(pf.tensor([3.0]))
        >>> slope.tolist(), value.item()
        ([6.0], 9.0)
    """

    def run(*args: Any, **kwargs: Any) -> Any:
        numbers = (argnums,) if isinstance(argnums, int) else argnums
        leaves: list[Any] = []
        chosen = {n: _leaves(args[n], leaves) for n in numbers}
        with enable_grad():
            made = func(*[chosen.get(i, a) for i, a in enumerate(args)], **kwargs)
            value, aux = made if has_aux else (made, None)
            found = iter(_grad(value, leaves, create_graph=True, materialize_grads=True))
        trees = [_like(args[n], found) for n in numbers]
        gradient = trees[0] if isinstance(argnums, int) else tuple(trees)
        return (gradient, (value, aux)) if has_aux else (gradient, value)

    return run


def grad(func: Callable[..., Any], argnums: Argnums = 0, has_aux: bool = False) -> Callable[..., Any]:
    """The function that gives the gradient of a function of one number.

    Args:
        func: returns one number, or with ``has_aux`` a pair of it and anything else.
        argnums: which arguments are differentiated; each a tensor, or a nest of them.
        has_aux: return the other thing too.

    Example:
        >>> import pyflame as pf
        >>> pf.func.grad(pf.func.grad(lambda x: x**3))(pf.tensor(2.0)).item()
        12.0
    """
    both = grad_and_value(func, argnums, has_aux)

    def run(*args: Any, **kwargs: Any) -> Any:
        gradient, value = both(*args, **kwargs)
        return (gradient, value[1]) if has_aux else gradient

    return run


def vjp(func: Callable[..., Any], *primals: Any, has_aux: bool = False) -> tuple[Any, ...]:
    """The result, and the function that multiplies vectors by the Jacobian.

    Example:
        >>> import pyflame as pf
        >>> value, pull = pf.func.vjp(lambda x: x * x, pf.tensor([1.0, 2.0]))
        >>> pull(pf.tensor([1.0, 10.0]))[0].tolist()
        [2.0, 40.0]
    """
    leaves: list[Any] = []
    given = [_leaves(p, leaves) for p in primals]
    with enable_grad():
        made = func(*given)
    value, aux = made if has_aux else (made, None)
    outputs = [value] if isinstance(value, Handle) else list(value)

    def pull(*cotangents: Any) -> tuple[Any, ...]:
        flat = list(cotangents[0]) if len(cotangents) == 1 and not isinstance(cotangents[0], Handle) else cotangents
        with enable_grad():
            found = iter(_grad(outputs, leaves, list(flat), create_graph=True, materialize_grads=True))
        return tuple(_like(p, found) for p in primals)

    return (value, pull, aux) if has_aux else (value, pull)


def jvp(func: Callable[..., Any], primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[Any, Any]:
    """The result, and its slope along a direction of the arguments.

    Example:
        >>> import pyflame as pf
        >>> pf.func.jvp(lambda x: x * x, (pf.tensor([3.0]),), (pf.tensor([2.0]),))[1].tolist()
        [12.0]
    """
    return _derivatives.jvp(func, tuple(primals), tuple(tangents), create_graph=True)


def jacrev(func: Callable[..., Any], argnums: Argnums = 0) -> Callable[..., Any]:
    """The function that gives the Jacobian, row by row.

    Example:
        >>> import pyflame as pf
        >>> pf.func.jacrev(lambda x: x * x)(pf.tensor([1.0, 2.0])).tolist()
        [[2.0, 0.0], [0.0, 4.0]]
    """

    def run(*args: Any) -> Any:
        numbers = (argnums,) if isinstance(argnums, int) else argnums

        def of_chosen(*chosen: Any) -> Any:
            given = dict(zip(numbers, chosen, strict=True))
            return func(*[given.get(i, a) for i, a in enumerate(args)])

        inputs = tuple(args[n] for n in numbers)
        found = _derivatives.jacobian(of_chosen, inputs, create_graph=True)
        if not isinstance(argnums, int):
            return found
        return found[0] if isinstance(found[0], Handle) else tuple(row[0] for row in found)

    return run


# Forward mode would give the same numbers; what differs is the order of the work, which evaluation chooses.
jacfwd = jacrev


def hessian(func: Callable[..., Any], argnums: int = 0) -> Callable[..., Any]:
    """The function that gives the second derivatives of a function of one number.

    Example:
        >>> import pyflame as pf
        >>> pf.func.hessian(lambda x: (x**3).sum())(pf.tensor([1.0, 2.0])).tolist()
        [[6.0, 0.0], [0.0, 12.0]]
    """
    return jacrev(jacrev(func, argnums), argnums)


def vmap(
    func: Callable[..., Any], in_dims: Any = 0, out_dims: Any = 0, randomness: str = "error"
) -> Callable[..., Any]:
    """The function of batches that calls a function of single examples: once for each, in one graph.

    Args:
        func: takes and returns tensors, or lists, tuples and dicts of them.
        in_dims: the dimension of the batch in each argument, None for those that all examples share.
        out_dims: the dimension of the batch in each result.
        randomness: "different" draws anew for each example; "error" and "same" are refused where numbers are drawn.

    Example:
        >>> import pyflame as pf
        >>> pf.func.vmap(pf.dot)(pf.tensor([[1.0, 2.0], [3.0, 4.0]]), pf.ones([2, 2])).tolist()
        [3.0, 7.0]
    """
    if randomness not in ("error", "different"):
        raise ValueError(f"vmap: randomness is 'error' or 'different', got {randomness!r}")

    def run(*args: Any, **kwargs: Any) -> Any:
        dims = in_dims if isinstance(in_dims, tuple | list) else (in_dims,) * len(args)
        if len(dims) != len(args):
            raise ValueError(f"vmap: {len(args)} arguments, but in_dims names {len(dims)}")
        sizes = {size for arg, dim in zip(args, dims, strict=True) for size in _sizes(arg, dim)}
        sizes |= {size for arg in kwargs.values() for size in _sizes(arg, 0)}
        if len(sizes) != 1:
            raise ValueError(f"vmap: all batches must have one size, got {sorted(sizes)}")
        before = _draws()
        results = [
            func(
                *[_entry(arg, dim, i) for arg, dim in zip(args, dims, strict=True)],
                **{key: _entry(arg, 0, i) for key, arg in kwargs.items()},
            )
            for i in range(sizes.pop())
        ]
        if randomness == "error" and _draws() != before:
            raise RuntimeError("vmap: the function draws random numbers; pass randomness='different'")
        return _stacked(results, out_dims)

    return run


def _draws() -> Any:
    from pyflame.random import get_rng_state

    return get_rng_state()


def _sizes(tree: Any, dim: Any) -> set[int]:
    if dim is None:
        return set()
    if isinstance(tree, Handle):
        plain: Any = tree
        return {plain.size(dim)}
    if isinstance(tree, Mapping):
        return {s for key, v in tree.items() for s in _sizes(v, dim[key] if isinstance(dim, Mapping) else dim)}
    if isinstance(tree, tuple | list):
        parts = dim if isinstance(dim, tuple | list) else [dim] * len(tree)
        return {s for v, d in zip(tree, parts, strict=True) for s in _sizes(v, d)}
    return set()


def _entry(tree: Any, dim: Any, index: int) -> Any:
    if dim is None:
        return tree
    if isinstance(tree, Handle):
        plain: Any = tree
        return plain.select(dim, index)
    if isinstance(tree, Mapping):
        return {k: _entry(v, dim[k] if isinstance(dim, Mapping) else dim, index) for k, v in tree.items()}
    if isinstance(tree, tuple | list):
        parts = dim if isinstance(dim, tuple | list) else [dim] * len(tree)
        return type(tree)(_entry(v, d, index) for v, d in zip(tree, parts, strict=True))
    return tree


def _stacked(results: list[Any], dim: Any) -> Any:
    first = results[0]
    if isinstance(first, Handle):
        return stack(results, dim)
    if isinstance(first, Mapping):
        return {k: _stacked([r[k] for r in results], dim[k] if isinstance(dim, Mapping) else dim) for k in first}
    if isinstance(first, tuple | list):
        parts = dim if isinstance(dim, tuple | list) else [dim] * len(first)
        return type(first)(_stacked([r[i] for r in results], parts[i]) for i in range(len(first)))
    raise TypeError(f"vmap: the function must return tensors. Received: {type(first).__name__}")


def functional_call(
    module: Any, parameter_and_buffer_dicts: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
) -> Any:
    """Call a module with other tensors in place of its parameters and buffers; it is left as it was.

    Example:
        >>> import pyflame as pf
        >>> layer = pf.nn.Linear(2, 1, bias=False)
        >>> pf.func.functional_call(layer, {"weight": pf.ones([1, 2])}, pf.tensor([[2.0, 3.0]])).item()
        5.0
    """
    given = parameter_and_buffer_dicts
    tensors = dict(given) if isinstance(given, Mapping) else {k: v for part in given for k, v in part.items()}
    swapped: list[tuple[dict[str, Any], str, Any]] = []
    try:
        for path, tensor in tensors.items():
            owner, _, name = path.rpartition(".")
            holder = module.get_submodule(owner)
            table = holder._parameters if name in holder._parameters else holder._buffers
            if name not in table:
                raise KeyError(f"{type(module).__name__} has no parameter or buffer {path!r}")
            swapped.append((table, name, table[name]))
            table[name] = tensor
        return module(*(args if isinstance(args, tuple) else (args,)), **(kwargs or {}))
    finally:
        for table, name, old in reversed(swapped):
            table[name] = old


def stack_module_state(models: Sequence[Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Parameters and buffers of modules of one kind, each stacked: what `vmap` gives `functional_call` one by one.

    Example:
        >>> import pyflame as pf
        >>> members = [pf.nn.Linear(3, 2) for _ in range(4)]
        >>> params, buffers = pf.func.stack_module_state(members)
        >>> params["weight"].shape, buffers
        ([4, 2, 3], {})
    """
    if not models:
        raise RuntimeError("stack_module_state: expected at least one model, got 0")
    if any(model.training is not models[0].training for model in models):
        raise RuntimeError("stack_module_state: models are all in training or all in evaluation mode")
    if any(type(model) is not type(models[0]) for model in models):
        raise RuntimeError("stack_module_state: models are all of one class")

    def stacked(of: str) -> dict[str, Any]:
        each = [dict(getattr(model, of)()) for model in models]
        made = {}
        for name, first in each[0].items():
            made[name] = stack([part[name].detach() for part in each])
            if first.requires_grad:
                made[name].requires_grad_()
        return made

    return stacked("named_parameters"), stacked("named_buffers")
