"""Whole derivatives of functions: Jacobians, Hessians, and their products with vectors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyflame.autograd.api import grad
from pyflame.autograd.modes import enable_grad
from pyflame.ops.core import Handle

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyflame.tensors import Tensor

__all__ = ["hessian", "jacobian", "jvp", "vjp"]


def _inputs(inputs: Any) -> tuple[Tensor, ...]:
    """The arguments, each as a leaf that is differentiated."""
    listed = (inputs,) if isinstance(inputs, Handle) else inputs
    if not isinstance(listed, (tuple, list)) or not listed or not all(isinstance(t, Handle) for t in listed):
        raise TypeError("inputs must be a tensor or a tuple of tensors")
    wanted: Any = listed
    return tuple(t if t.requires_grad else t.detach().requires_grad_() for t in wanted)


def _outputs(outputs: Any) -> tuple[Tensor, ...]:
    listed: Any = (outputs,) if isinstance(outputs, Handle) else outputs
    if not isinstance(listed, (tuple, list)) or not all(isinstance(t, Handle) for t in listed):
        raise TypeError("the function must return a tensor or a tuple of tensors")
    return tuple(listed)


def _like(given: Any, found: tuple[Any, ...]) -> Any:
    """One result for one tensor, a tuple for a tuple."""
    return found[0] if isinstance(given, Handle) else found


def _seeds(v: Any, outputs: tuple[Tensor, ...], what: str) -> tuple[Any, ...]:
    if v is None:
        if len(outputs) != 1 or outputs[0].numel != 1:
            raise RuntimeError(f"v is needed unless the {what} is one number")
        return (outputs[0].detach() * 0 + 1,)
    return (v,) if isinstance(v, Handle) else tuple(v)


def _rows(output: Tensor, leaves: tuple[Tensor, ...], create_graph: bool) -> list[Tensor]:
    """For each leaf the derivatives of all elements of one output, stacked."""
    import pyflame as pf

    flat = output.reshape(-1)
    rows = []
    for i in range(flat.shape[0]):
        found = grad(flat[i], leaves, retain_graph=True, create_graph=create_graph, allow_unused=True)
        rows.append([g if g is not None else leaf.detach() * 0 for g, leaf in zip(found, leaves, strict=True)])
    shape = tuple(output.shape)
    if not rows:
        return [pf.zeros(shape + tuple(leaf.shape), dtype=output.dtype) for leaf in leaves]
    return [pf.stack([row[k] for row in rows]).reshape(shape + tuple(leaf.shape)) for k, leaf in enumerate(leaves)]


def jacobian(func: Callable[..., Any], inputs: Any, create_graph: bool = False) -> Any:
    """The derivative of each element of the result by each element of the inputs.

    Args:
        func: takes the inputs, returns a tensor or a tuple of them.
        inputs: a tensor or a tuple of them.
        create_graph: let the result be differentiated in turn.

    Returns:
        A tensor of the output's shape followed by the input's; nested tuples (outputs, then inputs) where the function
        has several.

    Example:
        >>> import pyflame as pf
        >>> pf.autograd.functional.jacobian(lambda x: x * x, pf.tensor([1.0, 2.0])).tolist()
        [[2.0, 0.0], [0.0, 4.0]]
    """
    leaves = _inputs(inputs)
    with enable_grad():
        made = func(*leaves)
        found = tuple(_like(inputs, tuple(_rows(out, leaves, create_graph))) for out in _outputs(made))
    return _like(made, found)


def hessian(func: Callable[..., Any], inputs: Any, create_graph: bool = False) -> Any:
    """The second derivatives of a function that returns one number.

    Example:
        >>> import pyflame as pf
        >>> pf.autograd.functional.hessian(lambda x: (x**3).sum(), pf.tensor([1.0, 2.0])).tolist()
        [[6.0, 0.0], [0.0, 12.0]]
    """

    def slope(*leaves: Tensor) -> Any:
        made = _outputs(func(*leaves))
        if len(made) != 1 or made[0].numel != 1:
            raise RuntimeError("a Hessian is that of a function which returns one number")
        found = grad(made[0].reshape(()), leaves, create_graph=True, allow_unused=True)
        filled = tuple(g if g is not None else leaf * 0 for g, leaf in zip(found, leaves, strict=True))
        return _like(inputs, filled)

    return jacobian(slope, inputs, create_graph)


def vjp(func: Callable[..., Any], inputs: Any, v: Any = None, create_graph: bool = False) -> tuple[Any, Any]:
    """The result, and a vector times the Jacobian.

    Example:
        >>> import pyflame as pf
        >>> pf.autograd.functional.vjp(lambda x: x * x, pf.tensor([1.0, 2.0]), pf.tensor([1.0, 10.0]))[1].tolist()
        [2.0, 40.0]
    """
    leaves = _inputs(inputs)
    with enable_grad():
        made = func(*leaves)
        outputs = _outputs(made)
        found = grad(outputs, leaves, _seeds(v, outputs, "result"), create_graph=create_graph, allow_unused=True)
    filled = tuple(g if g is not None else leaf.detach() * 0 for g, leaf in zip(found, leaves, strict=True))
    return made if create_graph else _like(made, tuple(t.detach() for t in outputs)), _like(inputs, filled)


def jvp(func: Callable[..., Any], inputs: Any, v: Any = None, create_graph: bool = False) -> tuple[Any, Any]:
    """The result, and the Jacobian times a vector: the slope of the result along a direction of the inputs.

    Example:
        >>> import pyflame as pf
        >>> pf.autograd.functional.jvp(lambda x: x * x, pf.tensor([1.0, 2.0]), pf.tensor([1.0, 10.0]))[1].tolist()
        [2.0, 40.0]
    """
    leaves = _inputs(inputs)
    directions = _seeds(v, leaves, "input")
    with enable_grad():
        made = func(*leaves)
        outputs = _outputs(made)
        # The product with a vector on the left is linear in that vector; its slope by the vector is the product wanted.
        weights = tuple((t.detach() * 0).requires_grad_() for t in outputs)
        pulled = grad(outputs, leaves, weights, create_graph=True, allow_unused=True)
        used = [(g, d) for g, d in zip(pulled, directions, strict=True) if g is not None]
        found = (
            grad([g for g, _ in used], weights, [d for _, d in used], create_graph=create_graph, allow_unused=True)
            if used
            else (None,) * len(weights)
        )
    filled = tuple(g if g is not None else t.detach() * 0 for g, t in zip(found, outputs, strict=True))
    return made if create_graph else _like(made, tuple(t.detach() for t in outputs)), _like(made, filled)
