"""Operators of your own: from a function over operators, native everywhere, or from a Python kernel on the host."""

from pyflame_rt.custom.builder import CustomOpBuilder, register_custom_op
from pyflame_rt.custom.operator import BackendType, CustomOp
from pyflame_rt.custom.registry import CustomOpRegistry

__all__ = ["BackendType", "CustomOp", "CustomOpBuilder", "CustomOpRegistry", "register_custom_op"]
