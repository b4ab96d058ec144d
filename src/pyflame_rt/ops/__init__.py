"""Operators, each written once: see :mod:`pyflame_rt.ops.registry`."""

from pyflame_rt.ops.evaluate import Context, Program, evaluate
from pyflame_rt.ops.inference import infer_types
from pyflame_rt.ops.registry import Op, all_ops, find_op, get_op, operator, primitive
from pyflame_rt.ops.trace import trace
from pyflame_rt.ops.upgrade import upgrade
from pyflame_rt.ops.value import Value, constant

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
