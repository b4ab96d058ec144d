"""Values saved for gradients: what was changed in place since is refused, as torch refuses it.

Gradients would be right all the same, as values never change; but a program that torch refuses is a mistake more often
than not, and one that works here only would not be a torch program.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyflame_rt.ops.onnx.activation import Relu
from pyflame_rt.ops.onnx.arithmetic import Div, Max, Min

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyflame.autograd.template import GradientTemplate
    from pyflame.lazy import Expr, Val

__all__ = ["check_saved", "saved_values"]

# What torch saves where the rules here read something else: for the gradient of each input, the numbers of results
# (from 0 on) and of inputs (from -1 downwards).
_TORCH: dict[str, tuple[tuple[int, ...], ...]] = {
    Div.name: ((-2,), (-1, -2)),
    Max.name: ((-1, -2), (-1, -2)),
    Min.name: ((-1, -2), (-1, -2)),
    Relu.name: ((0,),),
}


def saved_values(expr: Expr, outs: Sequence[Val], template: GradientTemplate) -> list[Val]:
    """What the gradient of an operator reads, as far as it flows on."""
    count = len(outs)
    told = _TORCH.get(expr.rule.op.name)
    found: list[Val | None] = []
    for i, source in enumerate(expr.inputs):
        if source is None or not source.needs_grad:
            continue
        if told is not None and i < len(told):
            found += [outs[n] if n >= 0 else expr.inputs[-1 - n] for n in told[i]]
        else:
            values = (*outs, *expr.inputs)
            found += [values[slot - count] for slot in template.reads()[i] if slot >= count]
    return [v for v in found if v is not None]


def check_saved(expr: Expr, saved: Sequence[Val]) -> None:
    """Refuse a gradient that reads what was changed in place after the operator ran."""
    for v in saved:
        if v.stamp is None or v.stamp[0].writes == v.stamp[1]:
            continue
        if len(v.stamp) == 2 or expr.serial < v.stamp[2] or expr.inputs.count(v) > 1:
            raise RuntimeError(
                f"a value needed for the gradient of {expr.rule.op.name} was changed in place: {v.spec} of version "
                f"{v.stamp[1]}, its storage is at version {v.stamp[0].writes}. Use the form that makes a new "
                "tensor, or clone() it first"
            )
