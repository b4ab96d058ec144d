"""`out=` of the functions of the package: the results are written into tensors that are there, as `copy_` writes."""

from __future__ import annotations

from functools import wraps
from typing import TYPE_CHECKING, Any

from pyflame.dtypes import WrongTypeError
from pyflame.lazy import modes
from pyflame.ops.core import Handle, ShapeMismatchError
from pyflame.toplevel import can_cast

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["WITH_OUT", "with_out"]

# Those that take it in torch, too.
WITH_OUT = frozenset(
    {
        "abs", "absolute", "acos", "acosh", "add", "addbmm", "addcdiv", "addcmul", "addmm", "addmv", "addr", "all",
        "amax", "amin", "aminmax", "angle", "any", "arange", "arccos", "arccosh", "arcsin", "arcsinh", "arctan",
        "arctan2", "arctanh", "argmax", "argmin", "asin", "asinh", "atan", "atan2", "atanh", "baddbmm", "bernoulli",
        "bitwise_and", "bitwise_left_shift", "bitwise_not", "bitwise_or", "bitwise_right_shift", "bitwise_xor", "bmm",
        "bucketize", "cat", "ceil", "clamp", "clamp_max", "clamp_min", "clip", "column_stack", "complex", "concat",
        "concatenate", "conj_physical", "copysign", "cos", "cosh", "cross", "cummax", "cummin", "cumprod", "cumsum",
        "deg2rad", "diag", "diff", "digamma", "div", "divide", "dot", "dstack", "empty", "eq", "erf", "erfc", "erfinv",
        "exp", "exp2", "expm1", "eye", "fix", "float_power", "floor", "floor_divide", "fmax", "fmin", "fmod", "frac",
        "full", "gather", "gcd", "ge", "ger", "greater", "greater_equal", "gt", "heaviside", "histc", "hstack",
        "hypot", "index_add", "index_copy", "index_select", "inner", "inverse", "isin", "isneginf", "isposinf", "kron",
        "kthvalue", "lcm", "ldexp", "le", "lerp", "less", "less_equal", "lgamma", "linspace", "log", "log10", "log1p",
        "log2", "log_softmax", "logaddexp", "logaddexp2", "logcumsumexp", "logical_and", "logical_not", "logical_or",
        "logical_xor", "logit", "logspace", "logsumexp", "lt", "masked_select", "matmul", "max", "maximum", "mean",
        "median", "min", "minimum", "mm", "msort", "mul", "multinomial", "multiply", "mv", "mvlgamma", "nan_to_num",
        "nanmean", "nanmedian", "nanquantile", "nansum", "ne", "neg", "negative", "norm", "normal",
        "not_equal", "ones", "outer", "polar", "pow", "prod", "quantile", "rad2deg", "rand", "randint", "randn",
        "randperm", "reciprocal", "remainder", "renorm", "round", "row_stack", "rsqrt", "scatter", "scatter_add",
        "scatter_reduce", "searchsorted", "sgn", "sigmoid", "sign", "signbit", "sin", "sinc", "sinh", "softmax",
        "sort", "sqrt", "square", "stack", "std", "sub", "subtract", "sum", "take", "take_along_dim", "tan", "tanh",
        "tensordot", "topk", "tril", "triu", "true_divide", "trunc", "var", "vdot", "vstack", "where", "xlogy",
        "zeros",
    }
)  # fmt: skip


def with_out(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that takes `out=` besides: a tensor, or a tuple of tensors where it gives several.

    Example:
        >>> import pyflame as pf
        >>> kept = pf.zeros(2)
        >>> pf.add(pf.ones(2), 1, out=kept) is kept, kept.tolist()
        (True, [2.0, 2.0])
    """

    @wraps(function)
    def into(*args: Any, out: Any = None, **kwargs: Any) -> Any:
        if out is None:
            return function(*args, **kwargs)
        name = function.__name__
        results = function(*args, **kwargs)
        if isinstance(results, Handle):
            return _put(name, results, out)
        if not isinstance(out, (tuple, list)) or len(out) != len(results):
            raise TypeError(f"{name} gives {len(results)} results, so out= takes as many tensors. Received: {out}")
        return type(results)(*(_put(name, result, kept) for result, kept in zip(results, out, strict=True)))

    into.__module__ = "pyflame"  # where pickle finds it
    return into


def _put(name: str, result: Any, kept: Any) -> Any:
    """Write one result."""
    if not isinstance(kept, Handle):
        raise TypeError(f"{name}: out= takes a tensor. Received: {type(kept).__name__}")
    tensor: Any = kept
    if modes.grad and (tensor.requires_grad or result.requires_grad):
        raise RuntimeError(f"{name}: what out= gets has no gradient. Take the result, or use torch.no_grad")
    if not can_cast(result.dtype, tensor.dtype):
        raise WrongTypeError(f"{name}: a result of {result.dtype.name} does not become {tensor.dtype.name} in out=")
    if result.shape != tensor.shape:
        raise ShapeMismatchError(f"{name}: out= has the shape {tensor.shape}, the result {result.shape}")
    return tensor.copy_(result)
