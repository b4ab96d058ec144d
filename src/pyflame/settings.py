"""Settings of torch's that change nothing here: they are checked, and kept as set."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyflame.devices import Device
from pyflame.lazy import modes

if TYPE_CHECKING:
    from pyflame.dtypes import DType

__all__ = [
    "are_deterministic_algorithms_enabled",
    "get_default_device",
    "get_float32_matmul_precision",
    "is_autocast_enabled",
    "set_default_device",
    "set_float32_matmul_precision",
    "use_deterministic_algorithms",
]

_PRECISIONS = ("highest", "high", "medium")
_set: dict[str, Any] = {"precision": "highest", "deterministic": False}


def set_float32_matmul_precision(precision: str) -> None:
    """How exact products of float32 have to be, at least; here they are always computed in float32.

    Example:
        >>> import pyflame as pf
        >>> pf.set_float32_matmul_precision("high")
        >>> pf.get_float32_matmul_precision()
        'high'
        >>> pf.set_float32_matmul_precision("highest")
    """
    if precision not in _PRECISIONS:
        raise RuntimeError(f"the precision must be one of {', '.join(_PRECISIONS)}. Received: {precision!r}")
    _set["precision"] = precision


def get_float32_matmul_precision() -> str:
    """What :func:`set_float32_matmul_precision` was given."""
    return _set["precision"]


def use_deterministic_algorithms(mode: bool, *, warn_only: bool = False) -> None:
    """Ask for equal results of equal runs; evaluation gives those whether it is asked or not.

    Example:
        >>> import pyflame as pf
        >>> pf.use_deterministic_algorithms(True)
        >>> pf.are_deterministic_algorithms_enabled()
        True
        >>> pf.use_deterministic_algorithms(False)
    """
    del warn_only  # there is nothing to warn of
    _set["deterministic"] = bool(mode)


def are_deterministic_algorithms_enabled() -> bool:
    """What :func:`use_deterministic_algorithms` was given."""
    return _set["deterministic"]


def set_default_device(device: Any) -> None:
    """Where tensors are made: on "cpu", or None for the same; other devices are refused with what there is."""
    if device is not None:
        Device.of(device)


def get_default_device() -> Device:
    """The device on which tensors are made."""
    return Device("cpu")


def is_autocast_enabled(device_type: str | None = None) -> bool:
    """Whether products are being computed in half of the bits (`pf.autocast`), on a kind of device.

    Example:
        >>> import pyflame as pf
        >>> with pf.autocast("cpu"):
        ...     pf.is_autocast_enabled("cpu"), pf.is_autocast_enabled("cuda")
        (True, False)
    """
    kind: DType | None = modes.autocast
    return kind is not None and device_type in (None, "cpu")
