"""PyFlame: lazy tensors, gradients, layers, optimizers and training, with PyTorch's names.

import pyflame as pf

x = pf.randn([4, 3])
y = pf.relu(x @ pf.randn([3, 2])).sum()   # a graph; nothing is computed yet
pf.eval(y)                                # now it is
"""

# Hundreds of names: kept in rows, not one to a line.
# ruff: isort: skip_file
# ruff: noqa: RUF022
# fmt: off

from __future__ import annotations

import importlib as _importlib
import math as _math
from typing import TYPE_CHECKING as _TYPE_CHECKING
from typing import Any as _Any

from pyflame import inspection as _inspection
from pyflame import random as _random
from pyflame.autograd import (
    enable_grad,
    inference_mode,
    is_grad_enabled,
    is_inference_mode_enabled,
    no_grad,
    set_grad_enabled,
)
from pyflame.compiling.compiled import CompiledFunction
from pyflame.compiling.compiled import compile_function as _compile_function
from pyflame.compiling.tracer import TraceError
from pyflame.devices import (
    Backend, Device, device_info, get_device, rocm_device_count, rocm_get_device, rocm_get_device_info,
    rocm_is_available, rocm_set_device, rocm_synchronize, set_device, synchronize,
)
from pyflame.dtypes import (
    DType,
    dtype_name,
    dtype_size,
    finfo,
    get_default_dtype,
    iinfo,
    promote_types,
    set_default_dtype,
)
from pyflame.evaluation import cache_info, clear_cache
from pyflame.exporting import export
from pyflame.inspection import Graph, Node, TensorSpec, get_graph, get_node, is_lazy, print_graph
from pyflame.interop import from_dlpack, from_torch, to_torch
from pyflame.layout import MemoryReport, MeshLayout, PECoord, memory_report
from pyflame.ops import arithmetic as _arithmetic
from pyflame.ops import complex_numbers as _complex_numbers
from pyflame.ops import pointwise as _pointwise
from pyflame.ops import reduction as _reduction
from pyflame.in_place import IN_PLACE as _IN_PLACE
from pyflame.in_place import in_place as _in_place
from pyflame.memory_formats import MemoryFormat as _MemoryFormat
from pyflame.outs import WITH_OUT as _WITH_OUT
from pyflame.outs import with_out as _with_out
from pyflame.ops.activation import (
    celu, elu, erfinv, expit, gelu, glu, hardshrink, hardsigmoid, hardswish, hardtanh, leaky_relu, log_softmax,
    logsigmoid, mish, prelu, relu, relu6, selu, sigmoid, silu, softmax, softmin, softplus, softshrink, softsign,
    swish, tanhshrink, threshold,
)
from pyflame.ops.arithmetic import (
    add, addcdiv, addcmul, bitwise_and, bitwise_left_shift, bitwise_not, bitwise_or, bitwise_right_shift,
    bitwise_xor, clamp, clamp_max, clamp_min, clip,
    div, divide, eq, float_power, floor_divide, fmax, fmin, fmod, ge, greater, greater_equal, gt, isfinite, isinf,
    isnan, le, lerp, less, less_equal, logical_and, logical_not, logical_or, logical_xor, lt, maximum, minimum,
    mul, multiply, ne, neg, negative, not_equal, positive, reciprocal, remainder, rsub, square, sub, subtract,
    true_divide, trunc, where,
)
from pyflame.ops.complex_numbers import (
    adjoint, angle, conj, conj_physical, imag, is_complex, is_conj, polar, real, resolve_conj, resolve_neg, sgn,
    view_as_complex, view_as_real,
)
from pyflame.ops.creation import (
    arange, asarray, bitcast, clone, empty, empty_like, eye, from_numpy, full, full_like, linspace, logspace,
    one_hot, ones, ones_like, scalar_tensor, tensor, tril_indices, triu_indices, zeros, zeros_like,
)
from pyflame.ops.gathering import (
    argwhere, bincount, bucketize, diag, diag_embed, diagflat, embedding, gather, index_add, index_copy,
    index_fill, index_select, isin, masked_fill, masked_select, nonzero, scatter, scatter_add, searchsorted,
    take, take_along_dim, trace, unique,
)
from pyflame.ops.indexing import LazyEvaluationWarning
from pyflame.ops.linalg import (
    addbmm, addmm, addmv, addr, baddbmm, bmm, cosine_similarity, cross, det, dot, einsum, ger, inner, inverse,
    kron, linear, matmul, mm, mv, outer, tensordot, vdot,
)
from pyflame.ops.pointwise import (
    absolute, acos, acosh, arccos, arccosh, arcsin, arcsinh, arctan, arctan2, arctanh, asin, asinh, atan, atan2,
    atanh, ceil, copysign, cos, cosh, deg2rad, erf, erfc, exp, exp2, expm1, fix, floor, frac, heaviside, hypot,
    isclose, isneginf, isposinf, isreal, log, log10, log1p, log2, logaddexp, logit, nan_to_num, rad2deg, rsqrt,
    sign, signbit, sin, sinc, sinh, sqrt, tan, tanh, xlogy,
)
from pyflame.ops.reduction import (
    amax, amin, aminmax, argmax, argmin, argsort, count_nonzero, cumprod, cumsum, kthvalue, logsumexp, mean,
    median, nanmean, nansum, norm, prod, sort, std, std_mean, topk, var, var_mean,
)
from pyflame.ops.shaping import (
    atleast_1d, atleast_2d, atleast_3d, broadcast_shapes, cat, column_stack, concat, concatenate, dstack, flip,
    fliplr, flipud, hstack, meshgrid, pad, pixel_shuffle, pixel_unshuffle, repeat, repeat_interleave, roll,
    rot90, row_stack, stack, tile, tril, triu, vstack,
)
from pyflame.printing import set_printoptions
from pyflame.random import (
    Generator,
    bernoulli,
    default_generator,
    dropout,
    get_rng_state,
    initial_seed,
    manual_seed,
    multinomial,
    normal,
    rand,
    rand_like,
    randint,
    randint_like,
    randn,
    randn_like,
    randperm,
    seed,
    set_rng_state,
)
from pyflame.serialization import load, save
from pyflame.tensors import Tensor
from pyflame.threads import get_num_threads, set_num_threads
from pyflame.toplevel import (
    allclose,
    backward,
    can_cast,
    equal,
    is_floating_point,
    is_tensor,
    numel,
    result_type,
    runtime_scalar,
    stop_gradient,
    typename,
)
from pyflame.ops.distances import cdist, dist, pdist
from pyflame.ops.placing import (
    block_diag, cartesian_prod, channel_shuffle, combinations, constant_pad_nd, diagonal_scatter, dsplit, hsplit,
    index_put, masked_scatter, renorm, scatter_reduce, select_scatter, slice_scatter, split_with_sizes,
    unique_consecutive, unravel_index, vsplit,
)
from pyflame.ops.special import digamma, gcd, lcm, ldexp, lgamma, logaddexp2, mvlgamma
from pyflame.ops.statistics import (
    corrcoef, cov, cummax, cummin, cumulative_trapezoid, diff, histc, logcumsumexp, msort, nanmedian, nanquantile,
    quantile, trapezoid,
)
from pyflame.suggestions import missing as _missing
from pyflame.typed import (
    BFloat16Tensor, BoolTensor, ByteTensor, CharTensor, DoubleTensor, FloatTensor, HalfTensor, IntTensor,
    LongTensor, ShortTensor,
)
from pyflame.viewing import (
    broadcast_tensors, broadcast_to, chunk, diagonal, expand, expand_as, expand_dims, flatten, moveaxis,
    movedim, narrow, permute, ravel, reshape, reshape_as, select, split, squeeze, swapaxes, swapdims,
    tensor_split, transpose, unbind, unflatten, unsqueeze, view, view_as,
)
from pyflame_rt._version import __version__ as __version__
from pyflame_rt.graph.types import Shape

__all__ = [
    "BFloat16Tensor", "Backend", "BoolTensor", "ByteTensor", "CSLCodeGenerator", "CharTensor", "CodeGenOptions",
    "CodeGenResult", "CompiledFunction", "DType", "Device", "DoubleTensor", "FloatTensor", "Generator", "Graph",
    "HalfTensor", "IntTensor", "LazyEvaluationWarning", "LongTensor", "MemoryReport", "MeshLayout", "Node", "PECoord",
    "Shape", "ShortTensor", "Size", "Tensor", "TensorSpec", "TraceError", "absolute", "acos", "acosh", "add", "addbmm",
    "addcdiv", "addcmul", "addmm", "addmv", "addr", "adjoint", "allclose", "amax", "amin", "aminmax", "angle",
    "arange", "arccos", "arccosh", "arcsin", "arcsinh", "arctan", "arctan2", "arctanh", "argmax", "argmin", "argsort",
    "argwhere", "as_tensor", "asarray", "asin", "asinh", "atan", "atan2", "atanh", "atleast_1d", "atleast_2d",
    "atleast_3d", "backward", "baddbmm", "bernoulli", "bfloat16", "bincount", "bitcast", "bitwise_and",
    "bitwise_left_shift", "bitwise_not", "bitwise_or", "bitwise_right_shift", "bitwise_xor", "block_diag", "bmm",
    "bool_", "broadcast_shapes", "broadcast_tensors", "broadcast_to", "bucketize", "cache_info", "can_cast",
    "cartesian_prod", "cat", "cdist", "cdouble", "ceil", "celu", "cfloat", "channel_shuffle", "chunk", "clamp",
    "clamp_max", "clamp_min", "clear_cache", "clip", "clone", "column_stack", "combinations", "compile_to_csl",
    "complex128", "complex64", "concat", "concatenate", "conj", "conj_physical", "constant_pad_nd", "copysign",
    "corrcoef", "cos", "cosh", "cosine_similarity", "count_nonzero", "cov", "cross", "cummax", "cummin", "cumprod",
    "cumsum", "cumulative_trapezoid", "default_generator", "deg2rad", "det", "device", "device_info", "diag",
    "diag_embed", "diagflat", "diagonal", "diagonal_scatter", "diff", "digamma", "dist", "div", "divide", "dot",
    "double", "dropout", "dsplit", "dstack", "dtype", "dtype_name", "dtype_size", "einsum", "elu", "embedding",
    "empty", "empty_like", "enable_grad", "eq", "equal", "erf", "erfc", "erfinv", "exp", "exp2", "expand", "expand_as",
    "expand_dims", "expit", "expm1", "export", "eye", "finfo", "fix", "flatten", "flip", "fliplr", "flipud", "float16",
    "float32", "float64", "float_power", "floor", "floor_divide", "fmax", "fmin", "fmod", "frac", "from_dlpack",
    "from_numpy", "from_torch", "full", "full_like", "gather", "gcd", "ge", "gelu", "ger", "get_default_dtype",
    "get_device", "get_graph", "get_node", "get_num_threads", "get_rng_state", "glu", "greater", "greater_equal", "gt",
    "half", "hardshrink", "hardsigmoid", "hardswish", "hardtanh", "heaviside", "histc", "hsplit", "hstack", "hypot",
    "iinfo", "imag", "index_add", "index_copy", "index_fill", "index_put", "index_select", "inference_mode",
    "initial_seed", "inner", "int16", "int32", "int64", "int8", "inverse", "is_complex", "is_conj",
    "is_floating_point", "is_grad_enabled", "is_inference_mode_enabled", "is_lazy", "is_tensor", "isclose", "isfinite",
    "isin", "isinf", "isnan", "isneginf", "isposinf", "isreal", "kron", "kthvalue", "lcm", "ldexp", "le", "leaky_relu",
    "lerp", "less", "less_equal", "lgamma", "linear", "linspace", "load", "log", "log10", "log1p", "log2",
    "log_softmax", "logaddexp", "logaddexp2", "logcumsumexp", "logical_and", "logical_not", "logical_or",
    "logical_xor", "logit", "logsigmoid", "logspace", "logsumexp", "long", "lt", "manual_seed", "masked_fill",
    "masked_scatter", "masked_select", "matmul", "maximum", "mean", "median", "memory_report", "meshgrid", "minimum",
    "mish", "mm", "moveaxis", "movedim", "msort", "mul", "multinomial", "multiply", "mv", "mvlgamma", "nan_to_num",
    "nanmean", "nanmedian", "nanquantile", "nansum", "narrow", "ne", "neg", "negative", "no_grad", "nonzero", "norm",
    "normal", "not_equal", "numel", "one_hot", "ones", "ones_like", "outer", "pad", "pdist", "permute",
    "pixel_shuffle", "pixel_unshuffle", "polar", "positive", "prelu", "print_graph", "prod", "promote_types",
    "quantile", "rad2deg", "rand", "rand_like", "randint", "randint_like", "randn", "randn_like", "randperm", "ravel",
    "real", "reciprocal", "relu", "relu6", "remainder", "renorm", "repeat", "repeat_interleave", "reshape",
    "reshape_as", "resolve_conj", "resolve_neg", "result_type", "rocm_device_count", "rocm_get_device",
    "rocm_get_device_info", "rocm_is_available", "rocm_set_device", "rocm_synchronize", "roll", "rot90", "row_stack",
    "rsqrt", "rsub", "runtime_scalar", "save", "scalar_tensor", "scatter", "scatter_add", "scatter_reduce",
    "searchsorted", "seed", "select", "select_scatter", "selu", "set_default_dtype", "set_device", "set_grad_enabled",
    "set_num_threads", "set_printoptions", "set_rng_state", "sgn", "short", "sigmoid", "sign", "signbit", "silu",
    "sin", "sinc", "sinh", "slice_scatter", "softmax", "softmin", "softplus", "softshrink", "softsign", "sort",
    "split", "split_with_sizes", "sqrt", "square", "squeeze", "stack", "std", "std_mean", "stop_gradient", "sub",
    "subtract", "swapaxes", "swapdims", "swish", "synchronize", "take", "take_along_dim", "tan", "tanh", "tanhshrink",
    "tensor", "tensor_split", "tensordot", "threshold", "tile", "to_torch", "topk", "trace", "transpose", "trapezoid",
    "tril", "tril_indices", "triu", "triu_indices", "true_divide", "trunc", "typename", "uint8", "unbind", "unflatten",
    "unique", "unique_consecutive", "unravel_index", "unsqueeze", "var", "var_mean", "vdot", "view", "view_as",
    "view_as_complex", "view_as_real", "vsplit", "vstack", "where", "xlogy", "zeros", "zeros_like",
]

__version_info__ = (1, 0, 0, "alpha")
__release_status__ = "Pre-Release Alpha"
_CPP_AVAILABLE = False

float16, bfloat16, float32, float64 = DType.float16, DType.bfloat16, DType.float32, DType.float64
int8, int16, int32, int64, uint8 = DType.int8, DType.int16, DType.int32, DType.int64, DType.uint8
bool_ = DType.bool
half, double, short, long = float16, float64, int16, int64
complex64, complex128 = DType.complex64, DType.complex128
cfloat, cdouble = complex64, complex128

as_tensor = asarray
dtype, device, Size = DType, Device, Shape
trapz, sum_to_size = trapezoid, Tensor.sum_to_size
memory_format = _MemoryFormat
preserve_format, contiguous_format = _MemoryFormat.preserve_format, _MemoryFormat.contiguous_format
channels_last, channels_last_3d = _MemoryFormat.channels_last, _MemoryFormat.channels_last_3d
t, detach = Tensor.t, Tensor.detach
pi, e, inf, nan, newaxis = _math.pi, _math.e, _math.inf, _math.nan, None

# Names that Python has too: reachable as pf.sum, but not imported by `from pyflame import *`.
eval = _inspection.eval_tensors
abs, pow, round = _arithmetic.abs, _arithmetic.pow, _pointwise.round
all, any, max, min, sum = _reduction.all, _reduction.any, _reduction.max, _reduction.min, _reduction.sum
compile = _compile_function
complex = _complex_numbers.complex
bool, float, int = DType.bool, DType.float32, DType.int32
random = _random
globals().update({_name: _with_out(globals()[_name]) for _name in _WITH_OUT})

# Parts that are loaded when they are first used.
_PARTS = frozenset(
    {
        "accelerator", "amp", "autograd", "backends", "benchmarks", "cuda", "data", "distributed",
        "distributions", "extend", "fft", "func",
        "hub", "integrations", "jit", "linalg", "metrics", "models", "nn", "onnx", "optim", "quantization",
        "serving", "signal", "special", "tools", "training", "utils", "version",
    }
)
# Names of pyflame.csl, likewise.
_CSL = frozenset({"CSLCodeGenerator", "CodeGenOptions", "CodeGenResult", "compile_to_csl"})
# Functions of layers that torch has at the top too, and those of mixed precision.
_FUNCTIONAL = frozenset(
    {
        "adaptive_avg_pool1d", "adaptive_max_pool1d", "avg_pool1d", "batch_norm", "bilinear",
        "binary_cross_entropy_with_logits", "conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d",
        "conv_transpose3d", "cosine_embedding_loss", "ctc_loss", "embedding_bag", "group_norm",
        "hinge_embedding_loss", "instance_norm", "kl_div", "layer_norm", "margin_ranking_loss", "max_pool1d",
        "max_pool2d", "max_pool3d", "pairwise_distance", "poisson_nll_loss", "rms_norm", "triplet_margin_loss",
    }
)
_AMP = frozenset({"GradScaler", "autocast"})
# Names whose home is another module, which is loaded when one is first used.
_HOMES = {
    **dict.fromkeys(("cholesky_inverse", "cholesky_solve", "logdet", "slogdet"), "pyflame.ops.decompositions"),
    **dict.fromkeys(("chain_matmul", "cholesky", "fill", "pinverse", "put", "qr", "svd"), "pyflame.ops.older"),
    **dict.fromkeys(
        ("bartlett_window", "blackman_window", "hamming_window", "hann_window", "kaiser_window"),
        "pyflame.signal.windows",
    ),
    "istft": "pyflame.ops.spectra", "stft": "pyflame.ops.spectra",
    "matrix_exp": "pyflame.linalg", "matrix_power": "pyflame.linalg", "vmap": "pyflame.func",
    "mode": "pyflame.ops.statistics",
    **dict.fromkeys(
        (
            "are_deterministic_algorithms_enabled", "get_default_device", "get_float32_matmul_precision",
            "is_autocast_enabled", "set_default_device", "set_float32_matmul_precision",
            "use_deterministic_algorithms",
        ),
        "pyflame.settings",
    ),
}


def __getattr__(name: str) -> _Any:
    if name in _FUNCTIONAL:
        return getattr(_importlib.import_module("pyflame.nn.functional"), name)
    if name in _AMP:
        return getattr(_importlib.import_module("pyflame.amp"), name)
    if name in _IN_PLACE:
        globals()[name] = made = _in_place(name)
        return made
    if name in _HOMES:
        return getattr(_importlib.import_module(_HOMES[name]), name)
    if name in _CSL:
        return getattr(_importlib.import_module("pyflame.csl"), name)
    if name in _PARTS:
        try:
            return _importlib.import_module(f"pyflame.{name}")
        except ModuleNotFoundError as error:
            if error.name != f"pyflame.{name}":
                raise
    raise _missing("pyflame", name, globals())


if _TYPE_CHECKING:
    from pyflame import autograd as autograd
    from pyflame.csl import CodeGenOptions, CodeGenResult, CSLCodeGenerator, compile_to_csl
