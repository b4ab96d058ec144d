"""Operators of your own: from a function over operators, native everywhere, or from a Python kernel on the host."""

from pyflame_rt.custom.builder import CustomOpBuilder, register_custom_op
from pyflame_rt.custom.operator import BackendType, CustomOp
from pyflame_rt.custom.plugins import load_plugins
from pyflame_rt.custom.registry import CustomOpRegistry

__all__ = ["BackendType", "CustomOp", "CustomOpBuilder", "CustomOpRegistry", "load_plugins", "register_custom_op"]
