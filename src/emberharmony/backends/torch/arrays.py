"""Shapes, indices, sorting, random numbers, devices and gradients."""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from emberharmony.backends.torch.base import as_tensor, meet, native, native_dtype, widened
from emberharmony.dtypes import float32
from emberharmony.seeding import SEED
from emberharmony.typing import ArrayLike, DTypeLike, Shape

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
    if axis is None:
        return torch.cat([t.reshape(-1) for t in tensors])
    return torch.cat(tensors, axis)


@native
def flip(x: ArrayLike, axis: int | Sequence[int] | None = None) -> Tensor:
    """In reverse order."""
    x = as_tensor(x)
    axes = range(x.ndim) if axis is None else [axis] if isinstance(axis, int) else axis
    return torch.flip(x, tuple(axes))


def _places(indices: ArrayLike, length: int) -> Tensor:
    """Indices from 0."""
    places = as_tensor(indices).to(torch.int64)
    return torch.where(places < 0, places + length, places)


@native
def take(x: ArrayLike, indices: ArrayLike, axis: int | None = None) -> Tensor:
    """Elements at indices."""
    x = as_tensor(x)
    x, along = (x.reshape(-1), 0) if axis is None else (x, axis % x.ndim)
    places = _places(indices, x.shape[along])
    found = torch.index_select(x, along, places.reshape(-1))
    return torch.reshape(found, (*x.shape[:along], *places.shape, *x.shape[along + 1 :]))


@native
def take_along_axis(x: ArrayLike, indices: ArrayLike, axis: int | None = None) -> Tensor:
    """Elements an index array points at."""
    x = as_tensor(x)
    x, along = (x.reshape(-1), 0) if axis is None else (x, axis)
    return torch.take_along_dim(x, _places(indices, x.shape[along]), along)


_REDUCE = {"mul": "prod", "max": "amax", "min": "amin"}


@native
def index_put(x: ArrayLike, indices: ArrayLike, values: ArrayLike, mode: str | None = None) -> Tensor:
    """Rows replaced or combined, in a copy."""
    x = as_tensor(x)
    places, new = as_tensor(indices).to(torch.int64), as_tensor(values).to(x.dtype)
    if mode is None:
        return x.index_copy(0, places, new)
    if x.dtype is torch.bool:
        done = index_put(x.to(torch.uint8), places, new.to(torch.uint8), _BOOL.get(mode, mode))
        return done.to(torch.bool)
    if mode == "add":
        return x.index_add(0, places, new)
    if mode not in _REDUCE:
        raise ValueError(f"mode is None, add, {', '.join(_REDUCE)}, received {mode!r}")
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
    return torch.searchsorted(line.contiguous(), wanted.contiguous(), right=side == "right")


@native
def sliding_window_view(
    x: ArrayLike,
    window_shape: int | Sequence[int],
    axis: int | Sequence[int] | None = None,
) -> Tensor:
    """All windows, without new memory."""
    x = as_tensor(x)
    windows = [window_shape] if isinstance(window_shape, int) else list(window_shape)
    axes = range(len(windows)) if axis is None else [axis] if isinstance(axis, int) else axis
    for width, along in zip(windows, [a % x.ndim for a in axes], strict=True):
        x = x.unfold(along, width, 1)
    return x


_generators: dict[int, torch.Generator] = {}


def _generator(seed: int | None) -> torch.Generator | None:
    """A generator for one seed, or the shared one; without any seed torch's own."""
    if seed is not None:
        return torch.Generator().manual_seed(int(seed))
    if SEED.value is None:
        return None
    found = _generators.get(SEED.number)
    if found is None:
        _generators.clear()
        found = _generators.setdefault(SEED.number, torch.Generator().manual_seed(SEED.value))
    return found


def _drawn(function: Callable[..., Tensor], shape: Shape, seed: int | None) -> Tensor:
    """Drawn on the host, where a seed means the same numbers on every machine."""
    made = function(tuple(shape), generator=_generator(seed), dtype=torch.float32, device="cpu")
    device = torch.get_default_device()
    return made if device.type == "cpu" else made.to(device)


@native
def random_uniform(
    shape: Shape,
    minval: float = 0.0,
    maxval: float = 1.0,
    dtype: DTypeLike = float32,
    seed: int | None = None,
) -> Tensor:
    """Uniformly distributed."""
    made = (_drawn(torch.rand, shape, seed) * (maxval - minval) + minval).to(native_dtype(dtype))
    # Rounding to a narrow dtype may reach the upper end, which is not included.
    return torch.where(made >= maxval, minval, made).to(made.dtype) if maxval > minval else made


@native
def random_normal(
    shape: Shape,
    mean: float = 0.0,
    stddev: float = 1.0,
    dtype: DTypeLike = float32,
    seed: int | None = None,
) -> Tensor:
    """Normally distributed."""
    return (_drawn(torch.randn, shape, seed) * stddev + mean).to(native_dtype(dtype))


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
    """On another device; torch has devices, so one it lacks is an error either way."""
    known = get_available_devices()
    wanted = str(device)
    if wanted not in known and not any(k.partition(":")[0] == wanted for k in known):
        raise ValueError(f"torch has no device {wanted!r}; available: {', '.join(known)}")
    return as_tensor(x).to(wanted)


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
    found = torch.autograd.grad(target.sum(), tensors, allow_unused=True)
    filled = [torch.zeros_like(t) if g is None else g for g, t in zip(found, tensors, strict=True)]
    return filled[0] if single else filled
