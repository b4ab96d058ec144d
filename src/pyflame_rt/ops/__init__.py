"""Operators, each written once: see :mod:`pyflame_rt.ops.core.registry`."""

from pyflame_rt.ops.core.evaluate import Context, Program, evaluate
from pyflame_rt.ops.core.inference import infer_types
from pyflame_rt.ops.core.registry import Op, all_ops, find_op, get_op, operator, primitive
from pyflame_rt.ops.core.trace import trace
from pyflame_rt.ops.core.upgrade import upgrade
from pyflame_rt.ops.core.value import Value, constant

__all__ = [
    "Context",
    "Op",
    "Program",
    "Value",
    "all_ops",
    "constant",
    "evaluate",
    "find_op",
    "get_op",
    "infer_types",
    "operator",
    "primitive",
    "trace",
    "upgrade",
]
