"""Answers about CUDA: there is none, so what asks says so, and what would need a device refuses by name."""

from __future__ import annotations

from typing import Any, NoReturn

from pyflame.amp import cuda as amp

__all__ = [
    "BoolTensor",
    "ByteTensor",
    "DoubleTensor",
    "FloatTensor",
    "HalfTensor",
    "IntTensor",
    "LongTensor",
    "amp",
    "current_device",
    "device_count",
    "empty_cache",
    "get_device_name",
    "get_device_properties",
    "is_available",
    "is_bf16_supported",
    "is_initialized",
    "manual_seed",
    "manual_seed_all",
    "max_memory_allocated",
    "max_memory_reserved",
    "memory_allocated",
    "memory_reserved",
    "reset_peak_memory_stats",
    "set_device",
    "synchronize",
]


def _refuse(what: str) -> NoReturn:
    raise RuntimeError(f"torch.cuda.{what}: there is no CUDA device here. Tensors are on 'cpu'; leave the call out")


def is_available() -> bool:
    """False: graphs are evaluated on the CPU, or on what `pf.set_device` takes.

    Example:
        >>> import pyflame as pf
        >>> pf.device("cuda" if pf.cuda.is_available() else "cpu")
        device('cpu')
    """
    return False


def is_initialized() -> bool:
    """False."""
    return False


def is_bf16_supported() -> bool:
    """False: no GPU computes in it."""
    return False


def device_count() -> int:
    """0."""
    return 0


def manual_seed(seed: int) -> None:
    """Seed the generators of GPUs, of which there are none; `pf.manual_seed` is that of the CPU."""
    _whole(seed)


def manual_seed_all(seed: int) -> None:
    """Seed the generators of GPUs, of which there are none; `pf.manual_seed` is that of the CPU."""
    _whole(seed)


def _whole(seed: int) -> None:
    if not isinstance(seed, int) or isinstance(seed, bool):
        raise TypeError(f"a seed is an int, got {type(seed).__name__}")


def empty_cache() -> None:
    """Give back memory of GPUs, of which none is held."""


def reset_peak_memory_stats(device: Any = None) -> None:
    """Forget the most memory of a GPU that was in use: that is none."""
    _none_or_refuse(device)


def memory_allocated(device: Any = None) -> int:
    """Bytes of GPU memory in use: 0."""
    return _none_or_refuse(device)


def memory_reserved(device: Any = None) -> int:
    """Bytes of GPU memory held: 0."""
    return _none_or_refuse(device)


def max_memory_allocated(device: Any = None) -> int:
    """The most bytes of GPU memory that were in use: 0."""
    return _none_or_refuse(device)


def max_memory_reserved(device: Any = None) -> int:
    """The most bytes of GPU memory that were held: 0."""
    return _none_or_refuse(device)


def _none_or_refuse(device: Any) -> int:
    return 0 if device is None else _refuse(f"memory of device {device!r}")


def synchronize(device: Any = None) -> None:
    """Refuse: there is nothing to wait for."""
    del device
    _refuse("synchronize")


def current_device() -> int:
    """Refuse: there is none."""
    _refuse("current_device")


def set_device(device: Any) -> None:
    """Refuse: there is none; `pf.set_device` chooses among what there is."""
    _refuse(f"set_device({device!r})")


def get_device_name(device: Any = None) -> str:
    """Refuse: there is none; `pf.device_info` tells of the CPU."""
    _refuse(f"get_device_name({device!r})")


def get_device_properties(device: Any = None) -> Any:
    """Refuse: there is none; `pf.device_info` tells of the CPU."""
    _refuse(f"get_device_properties({device!r})")


def FloatTensor(*args: Any) -> Any:
    """Refuse: tensors are on the CPU."""
    del args
    _refuse("FloatTensor")


def DoubleTensor(*args: Any) -> Any:
    """Refuse: tensors are on the CPU."""
    del args
    _refuse("DoubleTensor")


def HalfTensor(*args: Any) -> Any:
    """Refuse: tensors are on the CPU."""
    del args
    _refuse("HalfTensor")


def LongTensor(*args: Any) -> Any:
    """Refuse: tensors are on the CPU."""
    del args
    _refuse("LongTensor")


def IntTensor(*args: Any) -> Any:
    """Refuse: tensors are on the CPU."""
    del args
    _refuse("IntTensor")


def ByteTensor(*args: Any) -> Any:
    """Refuse: tensors are on the CPU."""
    del args
    _refuse("ByteTensor")


def BoolTensor(*args: Any) -> Any:
    """Refuse: tensors are on the CPU."""
    del args
    _refuse("BoolTensor")
