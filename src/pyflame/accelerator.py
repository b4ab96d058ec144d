"""Answers about accelerators, under torch's names: there is none that tensors could be on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from pyflame.devices import Device

__all__ = [
    "current_accelerator",
    "current_device_index",
    "device_count",
    "is_available",
    "set_device_index",
    "synchronize",
]


def is_available() -> bool:
    """False: tensors are on the CPU.

    Example:
        >>> import pyflame as pf
        >>> pf.accelerator.current_accelerator() if pf.accelerator.is_available() else pf.device("cpu")
        device('cpu')
    """
    return False


def current_accelerator(check_available: bool = False) -> Device | None:
    """None: there is none, looked for or not."""
    del check_available
    return None


def device_count() -> int:
    """0."""
    return 0


def _refuse(what: str) -> NoReturn:
    raise RuntimeError(f"torch.accelerator.{what}: there is no accelerator here. Tensors are on 'cpu'")


def current_device_index() -> int:
    """Refuse: there is none."""
    _refuse("current_device_index")


def set_device_index(device: Any) -> None:
    """Refuse: there is none; `pf.set_device` chooses what evaluates graphs."""
    _refuse(f"set_device_index({device!r})")


def synchronize(device: Any = None) -> None:
    """Refuse: there is nothing to wait for."""
    _refuse(f"synchronize({device!r})")
