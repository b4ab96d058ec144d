"""Shapes, indices, sorting, devices and gradients."""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from emberharmony.backends.torch.base import as_tensor, meet, native, widened
from emberharmony.guards.axes import axis_tuple, plain_axes
from emberharmony.typing import ArrayLike, Shape

Tensor = torch.Tensor


@native
def reshape(x: ArrayLike, newshape: int | Shape) -> Tensor:
    """Another shape."""
    sizes = (newshape,) if isinstance(newshape, int) else tuple(int(n) for n in newshape)
    return torch.reshape(as_tensor(x), sizes)


@native
def transpose(x: ArrayLike, axes: Sequence[int] | None = None) -> Tensor:
    """Another order of axes."""
    x = as_tensor(x)
    return x.permute(tuple(reversed(range(x.ndim))) if axes is None else tuple(axes))


@native
def broadcast_to(x: ArrayLike, shape: Shape) -> Tensor:
    """Repeated without new memory."""
    return torch.broadcast_to(as_tensor(x), tuple(int(n) for n in shape))


@native
def concatenate(xs: Sequence[ArrayLike], axis: int | None = 0) -> Tensor:
    """Joined."""
    tensors = meet(*(as_tensor(x) for x in xs))
    first = tensors[0]
    # torch takes a vector of no elements for nothing, whatever its rank.
    if any(t.ndim != first.ndim for t in tensors):
        raise ValueError(f"arrays of {sorted({t.ndim for t in tensors})} axes cannot be joined")
    return torch.cat(tensors, axis)  # pyright: ignore[reportArgumentType]


@native
def flip(x: ArrayLike, axis: int | Sequence[int] | None = None) -> Tensor:
    """In reverse order."""
    x = as_tensor(x)
    return torch.flip(x, plain_axes(axis, x.ndim))


@native
def take(x: ArrayLike, indices: ArrayLike, axis: int | None = None) -> Tensor:
    """Elements at indices."""
    x = as_tensor(x)
    x, along = (x.reshape(-1), 0) if axis is None else (x, axis)
    places = as_tensor(indices)
    found = torch.index_select(x, along, places.reshape(-1))
    return torch.reshape(found, (*x.shape[:along], *places.shape, *x.shape[along + 1 :]))


@native
def take_along_axis(x: ArrayLike, indices: ArrayLike, axis: int | None = None) -> Tensor:
    """Elements an index array points at."""
    x = as_tensor(x)
    x, along = (x.reshape(-1), 0) if axis is None else (x, axis)
    return torch.take_along_dim(x, as_tensor(indices), along)


_REDUCE = {"mul": "prod", "max": "amax", "min": "amin"}


@native
def index_put(x: ArrayLike, indices: ArrayLike, values: ArrayLike, mode: str | None = None) -> Tensor:
    """Rows replaced or combined, in a copy."""
    x = as_tensor(x)
    places, new = as_tensor(indices), as_tensor(values)
    if mode is None:
        return x.index_copy(0, places, new)
    if x.dtype is torch.bool:
        done = index_put(x.to(torch.uint8), places, new.to(torch.uint8), _BOOL.get(mode, mode))
        return done.to(torch.bool)
    if mode == "add":
        return x.index_add(0, places, new)
    spread = places.reshape(-1, *(1,) * (x.ndim - 1)).expand(new.shape)
    return x.scatter_reduce(0, spread, new, _REDUCE[mode])


_BOOL = {"add": "max", "mul": "min"}


@native
def slice_update(x: ArrayLike, start_indices: Sequence[int], updates: ArrayLike) -> Tensor:
    """A block replaced, in a copy."""
    x, new = as_tensor(x).clone(), as_tensor(updates)
    key = (slice(int(s), int(s) + n) for s, n in zip(start_indices, new.shape, strict=True))
    x[tuple(key)] = new.to(x.dtype)
    return x


@native
def nonzero(x: ArrayLike) -> tuple[Tensor, ...]:
    """Places of elements that are not 0; a 0-d tensor counts as a vector."""
    return torch.nonzero(torch.atleast_1d(as_tensor(x)), as_tuple=True)


def _sorted(x: ArrayLike, axis: int | None, descending: bool) -> tuple[Tensor, Tensor]:
    x = as_tensor(x)
    x, along = (x.reshape(-1), 0) if axis is None else (x, axis)
    return torch.sort(x, dim=along, descending=descending, stable=True)


@native
def sort(x: ArrayLike, axis: int | None = -1, descending: bool = False) -> Tensor:
    """Sorted."""
    return _sorted(x, axis, descending)[0]


@native
def argsort(x: ArrayLike, axis: int | None = -1, descending: bool = False) -> Tensor:
    """Stable order, either way."""
    return _sorted(x, axis, descending)[1]


@native
def searchsorted(sorted_sequence: ArrayLike, values: ArrayLike, side: str = "left") -> Tensor:
    """Where values belong."""
    line, wanted = meet(sorted_sequence, values)
    if line.is_floating_point():
        line, wanted = widened(line), widened(wanted)
    found = torch.searchsorted(line.contiguous(), wanted.contiguous(), right=side == "right")
    if not line.is_floating_point() or not bool(torch.isnan(line).any()):
        return found
    # torch would search among NaN, which is no order; they come last.
    count = int((~torch.isnan(line)).sum())
    found = torch.searchsorted(line[:count].contiguous(), wanted.contiguous(), right=side == "right")
    return torch.where(torch.isnan(wanted), len(line) if side == "right" else count, found)


@native
def sliding_window_view(
    x: ArrayLike,
    window_shape: int | Sequence[int],
    axis: int | Sequence[int] | None = None,
) -> Tensor:
    """All windows, without new memory."""
    x = as_tensor(x)
    for width, along in zip(axis_tuple(window_shape), plain_axes(axis, x.ndim), strict=True):
        x = x.unfold(along, width, 1)
    return x


@native
def get_available_devices() -> list[str]:
    """The processor, and what torch can use besides."""
    found = ["cpu"]
    found += [f"cuda:{i}" for i in range(torch.cuda.device_count())]
    return found + (["mps"] if torch.backends.mps.is_available() else [])


@native
def get_device(x: ArrayLike | None = None) -> str:
    """Where a tensor lives, or new ones are made."""
    return str(torch.get_default_device() if x is None else as_tensor(x).device)


@native
def to_device(x: ArrayLike, device: str, strict: bool = False) -> Tensor:  # noqa: ARG001
    """On another device, which exists."""
    return as_tensor(x).to(device)


@native
def memory_usage(device: str | None = None) -> dict[str, int]:
    """Bytes in use by torch on a GPU, else by the process."""
    from emberharmony.ops.devices import process_memory

    wanted = get_device() if device is None else device
    if not wanted.startswith("cuda"):
        return {"allocated": process_memory()}
    return {
        "allocated": torch.cuda.memory_allocated(wanted),
        "reserved": torch.cuda.memory_reserved(wanted),
    }


@native
def gradients(target: Callable[..., Tensor] | Tensor, xs: Any) -> Any:
    """Gradients of a function's scalar, or of a tensor computed from the given ones."""
    single = isinstance(xs, Tensor)
    tensors = [xs] if single else [as_tensor(x) for x in xs]
    if callable(target) and not isinstance(target, Tensor):
        tensors = [t.detach().requires_grad_() for t in tensors]
        with torch.enable_grad():
            target = target(*tensors)
        if not target.requires_grad:
            # The function does not depend on them.
            found = [torch.zeros_like(t) for t in tensors]
            return found[0] if single else found
    found = torch.autograd.grad(target.sum(), tensors, allow_unused=True)
    filled = [torch.zeros_like(t) if g is None else g for g, t in zip(found, tensors, strict=True)]
    return filled[0] if single else filled
