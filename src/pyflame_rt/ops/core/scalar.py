"""The scalar language: what elementwise primitives are on single elements.

A primitive names its function (``scalar="add"``); attributes of the operator are those of the function. Each generator
of code has one table of the functions it can write: `backends/cpu/graph/scalar_exprs.py` with `backends/cpu/ir` for
LLVM, `backends/wse/emit/scalar_csl.py` for CSL. A composition that is elementwise needs no name: its body is one.
"""

from __future__ import annotations

__all__ = ["FUNCTIONS"]

_ONE = (
    "abs acos acosh asin asinh atan atanh bitnot cast ceil cos cosh erf exp floor isinf isnan log neg not round "
    "sigmoid sign sin sinh softplus sqrt tan tanh"
)
_TWO = "add and bitand bitor bitxor div eq ge gt le lt mod mul or pow shift sub xor"

FUNCTIONS: dict[str, int | None] = {
    **dict.fromkeys(_ONE.split(), 1),
    **dict.fromkeys(_TWO.split(), 2),
    **dict.fromkeys(("max", "min"), None),
    "where": 3,
}
"""How many operands each function takes; None for any number from one up."""
