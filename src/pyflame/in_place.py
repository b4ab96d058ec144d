"""The functions of the package that change their first argument: `pf.relu_(x)` is `x.relu_()`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyflame.ops.core import Handle

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyflame.tensors import Tensor

__all__ = ["IN_PLACE", "in_place"]

# Those that torch has at its top.
IN_PLACE = frozenset(
    {
        "abs_", "acos_", "acosh_", "asin_", "asinh_", "atan_", "atanh_", "ceil_", "clamp_", "clamp_max_",
        "clamp_min_", "clip_", "cos_", "cosh_", "detach_", "erf_", "erfc_", "exp2_", "exp_", "expm1_", "fill_",
        "fix_", "floor_", "frac_", "index_put_", "log10_", "log1p_", "log2_", "log_", "logit_", "nan_to_num_",
        "neg_", "negative_", "reciprocal_", "relu_", "round_", "rsqrt_", "sigmoid_", "sin_", "sinh_", "sqrt_",
        "square_", "tan_", "tanh_", "trunc_", "xlogy_", "zero_",
    }
)  # fmt: skip


def in_place(name: str) -> Callable[..., Tensor]:
    """The function of a name in :data:`IN_PLACE`."""

    def function(input: Any, *args: Any, **kwargs: Any) -> Tensor:
        if not isinstance(input, Handle):
            raise TypeError(f"{name} changes a tensor. Received: {type(input).__name__}")
        return getattr(input, name)(*args, **kwargs)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"In place: what the method `{name}` of tensors does."
    return function
