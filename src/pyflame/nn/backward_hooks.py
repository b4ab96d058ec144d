"""Hooks behind a module: called when gradients come to it, and when they have passed it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyflame.autograd.function import with_gradient
from pyflame.lazy import modes
from pyflame.ops.creation import clone
from pyflame.tensors import Tensor

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyflame.nn.module import Module

__all__ = ["watch_backward"]


class _Watch:
    """Collects the gradients on both sides of one call, and calls the hooks once the last has arrived."""

    def __init__(self, module: Module, hooks: list[Callable[..., Any]], inputs: int, outputs: int) -> None:
        self.module, self.hooks = module, hooks
        self.grad_input: list[Any] = [None] * inputs
        self.grad_output: list[Any] = [None] * outputs
        self.waiting = 0

    def at_output(self, place: int, gradient: Tensor) -> Tensor | None:
        self.grad_output[place] = gradient
        return self._call(None) if self.waiting == 0 else None

    def at_input(self, place: int, gradient: Tensor) -> Tensor | None:
        self.grad_input[place] = gradient
        self.waiting -= 1
        return self._call(place) if self.waiting == 0 else None

    def _call(self, place: int | None) -> Tensor | None:
        replaced = None
        for hook in self.hooks:
            result = hook(self.module, tuple(self.grad_input), tuple(self.grad_output))
            if result is None:
                continue
            if place is None or sum(g is not None for g in self.grad_input) != 1:
                raise RuntimeError(
                    "A backward hook can replace the gradient of a module with one input that requires gradients; "
                    "use Tensor.register_hook on each input of the others"
                )
            replaced = result[place] if isinstance(result, tuple) else result
            self.grad_input[place] = replaced
        return replaced


def watch_backward(
    module: Module,
    hooks: list[Callable[..., Any]],
    before: list[Callable[..., Any]],
    args: tuple[Any, ...],
    kwargs: Any,
) -> Any:
    """Call `forward` with hooks on the gradients of its inputs and outputs, and others before those of its outputs."""
    if not modes.grad:
        return module.forward(*args, **kwargs)
    needing = [i for i, a in enumerate(args) if isinstance(a, Tensor) and a.requires_grad]
    inner = [clone(a) if i in needing else a for i, a in enumerate(args)]
    output = module.forward(*inner, **kwargs)
    parts = output if isinstance(output, tuple | list) else [output]
    watch = _Watch(module, hooks, len(args), len(parts))
    watch.waiting = len(needing)
    for place in needing:
        inner[place].register_hook(lambda g, place=place: watch.at_input(place, g))
    for place, part in enumerate(parts):
        if isinstance(part, Tensor) and part.requires_grad:
            part.register_hook(lambda g, place=place: watch.at_output(place, g))
    return _with_hooks_before(module, before, output) if before else output


def _with_hooks_before(module: Module, hooks: list[Callable[..., Any]], output: Any) -> Any:
    """The output, with hooks that see the gradients of all its parts at once and may change them."""
    parts = list(output) if isinstance(output, tuple | list) else [output]
    needing = [i for i, part in enumerate(parts) if isinstance(part, Tensor) and part.requires_grad]
    if not needing:
        return output

    def rule(*grads: Any) -> list[Any]:
        listed: list[Any] = [None] * len(parts)
        for place, gradient in zip(needing, grads, strict=True):
            listed[place] = gradient
        for hook in hooks:
            changed = hook(module, tuple(listed))
            if changed is None:
                continue
            given = list(changed) if isinstance(changed, tuple | list) else [changed]
            if len(given) != len(parts):
                raise RuntimeError(
                    "Backward pre hook returned an invalid number of grad_output, "
                    f"got {len(given)}, but expected {len(parts)}"
                )
            listed = given
        return [listed[place] for place in needing]

    inner = [parts[place] for place in needing]
    made = with_gradient(type(module).__name__, [part.detach() for part in inner], inner, rule)
    for place, part in zip(needing, made, strict=True):
        parts[place] = part
    if not isinstance(output, tuple | list):
        return parts[0]
    return output._make(parts) if hasattr(output, "_make") else type(output)(parts)  # type: ignore[attr-defined]
