"""The oneDNN C API (3.2), declared once: every function's types, constants, and statuses as exceptions."""

from __future__ import annotations

import ctypes
import functools
from ctypes import POINTER, c_char_p, c_float, c_int, c_int32, c_int64, c_size_t, c_uint, c_void_p
from typing import Any

from pyflame_rt.backends.cpu.onednn.library import OneDnnUnavailable, available, load
from pyflame_rt.graph.errors import BackendError

MAX_NDIMS = 12
RUNTIME_DIM = -(2**63)

Dims = c_int64 * MAX_NDIMS


class ExecArg(ctypes.Structure):
    """``dnnl_exec_arg_t``."""

    _fields_ = (("arg", c_int), ("memory", c_void_p))


class Version(ctypes.Structure):
    """``dnnl_version_t``."""

    _fields_ = (
        ("major", c_int),
        ("minor", c_int),
        ("patch", c_int),
        ("hash", c_char_p),
        ("cpu_runtime", c_uint),
        ("gpu_runtime", c_uint),
    )


class OneDnnError(BackendError):
    """A oneDNN function answered with a status other than success."""

    def __init__(self, function: str, status: str) -> None:
        super().__init__(f"{function}: {status}")
        self.function = function
        self.status = status

    def __reduce__(self) -> tuple[object, ...]:
        return (type(self), (self.function, self.status))


STATUS = {
    1: "out of memory",
    2: "invalid arguments",
    3: "unimplemented for these types, shapes, layouts or attributes",
    4: "last implementation reached",
    5: "runtime error",
    6: "not required",
}

# dnnl_data_type_t
DATA_TYPES = {"f16": 1, "bf16": 2, "f32": 3, "s32": 4, "s8": 5, "u8": 6, "f64": 7}

# dnnl_format_kind_t, dnnl_format_tag_t
FORMAT_ANY, FORMAT_BLOCKED, FORMAT_OPAQUE = 1, 2, 3
TAG_ANY = 1

FORWARD_INFERENCE = 96
ENGINE_CPU = 1
STREAM_DEFAULT = 1
SCRATCHPAD_USER = 1

# dnnl_alg_kind_t
CONVOLUTION = {"direct": 0x1, "winograd": 0x2, "auto": 0x3}
DECONVOLUTION = {"direct": 0xA, "winograd": 0xB}
_ELTWISE_ORDER = (
    "relu tanh elu square abs sqrt linear soft_relu hardsigmoid logistic exp "
    "gelu_tanh swish log clip clip_v2 pow gelu_erf round mish hardswish"
)
ELTWISE = {name: 0x20 + i for i, name in enumerate(_ELTWISE_ORDER.split())}
POOLING = {"max": 0x1FF, "avg_include_padding": 0x2FF, "avg_exclude_padding": 0x3FF}
_BINARY_ORDER = "add mul max min div sub ge gt le lt eq ne"
BINARY = {name: 0x1FFF0 + i for i, name in enumerate(_BINARY_ORDER.split())}
RESAMPLING = {"nearest": 0x2FFF0, "linear": 0x2FFF1}
_REDUCTION_ORDER = "max min sum mul mean norm_lp_max norm_lp_sum norm_lp_power_p_max norm_lp_power_p_sum"
REDUCTION = {name: 0x2FFF2 + i for i, name in enumerate(_REDUCTION_ORDER.split())}
SOFTMAX = {"accurate": 0x30000, "log": 0x30001}
LRN = {"across_channels": 0xAFF, "within_channel": 0xBFF}
DIRECTIONS = {"left2right": 1, "right2left": 2, "bidirectional_concat": 3, "bidirectional_sum": 4}
FPMATH = {"strict": 0, "bf16": 1, "f16": 2, "any": 3, "tf32": 4}

# dnnl_normalization_flags_t
USE_GLOBAL_STATS, USE_SCALE, USE_SHIFT, FUSE_NORM_RELU = 1, 2, 4, 8

# dnnl_cpu_isa_t: the bits of avx2_vnni and avx512_core_vnni
_VNNI_BITS = 0x8 | 0x40

# dnnl_query_t
QUERY_IMPL_INFO = 8
QUERY_STRIDES = 14
QUERY_EXEC_ARG_MD = 255
QUERY_NDIMS, QUERY_DIMS, QUERY_DATA_TYPE, QUERY_OFFSET, QUERY_PADDED_DIMS, QUERY_PADDED_OFFSETS = range(256, 262)
QUERY_FORMAT_KIND, QUERY_INNER_NBLKS, QUERY_INNER_BLKS, QUERY_INNER_IDXS = range(262, 266)

# DNNL_ARG_*: the names are ours, used in Primitive.args.
ARGS = {
    "src": 1,
    "src_0": 1,
    "src_1": 2,
    "dst": 17,
    "weights": 33,
    "bias": 41,
    "mean": 49,
    "variance": 50,
    "scale": 51,
    "shift": 52,
    "workspace": 64,
    "scratchpad": 80,
}
ARG_MULTIPLE_SRC = 1024
ARG_SCALES = 4096
ARG_ZERO_POINTS = 8192
ARG_POST_OP_DW = 16384


def arg_post_op(index: int) -> int:
    """``DNNL_ARG_ATTR_MULTIPLE_POST_OP(index)``."""
    return 32768 * (index + 1)


_P, _PP = c_void_p, POINTER(c_void_p)
_D = POINTER(c_int64)
_F = POINTER(c_float)

# Functions that return dnnl_status_t: name -> argument types. Opaque handles are void pointers.
_STATUS_FUNCTIONS: dict[str, tuple[Any, ...]] = {
    "dnnl_engine_create": (_PP, c_int, c_size_t),
    "dnnl_engine_destroy": (_P,),
    "dnnl_stream_create": (_PP, _P, c_uint),
    "dnnl_stream_wait": (_P,),
    "dnnl_stream_destroy": (_P,),
    "dnnl_set_primitive_cache_capacity": (c_int,),
    "dnnl_get_primitive_cache_capacity": (POINTER(c_int),),
    "dnnl_set_verbose": (c_int,),
    # memory
    "dnnl_memory_desc_create_with_tag": (_PP, c_int, _D, c_int, c_int),
    "dnnl_memory_desc_create_with_strides": (_PP, c_int, _D, c_int, _D),
    "dnnl_memory_desc_create_submemory": (_PP, _P, _D, _D),
    "dnnl_memory_desc_reshape": (_PP, _P, c_int, _D),
    "dnnl_memory_desc_permute_axes": (_PP, _P, POINTER(c_int)),
    "dnnl_memory_desc_clone": (_PP, _P),
    "dnnl_memory_desc_query": (_P, c_int, _P),
    "dnnl_memory_desc_destroy": (_P,),
    "dnnl_memory_create": (_PP, _P, _P, _P),
    "dnnl_memory_get_data_handle": (_P, _PP),
    "dnnl_memory_set_data_handle": (_P, _P),
    "dnnl_memory_destroy": (_P,),
    # attributes
    "dnnl_primitive_attr_create": (_PP,),
    "dnnl_primitive_attr_destroy": (_P,),
    "dnnl_primitive_attr_set_fpmath_mode": (_P, c_int),
    "dnnl_primitive_attr_set_scratchpad_mode": (_P, c_int),
    "dnnl_primitive_attr_set_scales_mask": (_P, c_int, c_int),
    "dnnl_primitive_attr_set_zero_points_mask": (_P, c_int, c_int),
    "dnnl_primitive_attr_set_post_ops": (_P, _P),
    "dnnl_post_ops_create": (_PP,),
    "dnnl_post_ops_destroy": (_P,),
    "dnnl_post_ops_append_sum": (_P, c_float, c_int32, c_int),
    "dnnl_post_ops_append_eltwise": (_P, c_int, c_float, c_float),
    "dnnl_post_ops_append_dw": (_P, c_int, c_int, c_int, c_int64, c_int64, c_int64),
    "dnnl_post_ops_append_binary": (_P, c_int, _P),
    "dnnl_post_ops_append_prelu": (_P, c_int),
    # primitives
    "dnnl_primitive_desc_query": (_P, c_int, c_int, _P),
    "dnnl_primitive_desc_next_impl": (_P,),
    "dnnl_primitive_desc_destroy": (_P,),
    "dnnl_primitive_create": (_PP, _P),
    "dnnl_primitive_destroy": (_P,),
    "dnnl_primitive_execute": (_P, _P, c_int, POINTER(ExecArg)),
    "dnnl_reorder_primitive_desc_create": (_PP, _P, _P, _P, _P, _P),
    "dnnl_concat_primitive_desc_create": (_PP, _P, _P, c_int, c_int, _PP, _P),
    "dnnl_sum_primitive_desc_create": (_PP, _P, _P, c_int, _F, _PP, _P),
    "dnnl_binary_primitive_desc_create": (_PP, _P, c_int, _P, _P, _P, _P),
    "dnnl_convolution_forward_primitive_desc_create": (_PP, _P, c_int, c_int, _P, _P, _P, _P, _D, _D, _D, _D, _P),
    "dnnl_deconvolution_forward_primitive_desc_create": (_PP, _P, c_int, c_int, _P, _P, _P, _P, _D, _D, _D, _D, _P),
    "dnnl_eltwise_forward_primitive_desc_create": (_PP, _P, c_int, c_int, _P, _P, c_float, c_float, _P),
    "dnnl_softmax_forward_primitive_desc_create": (_PP, _P, c_int, c_int, _P, _P, c_int, _P),
    "dnnl_pooling_forward_primitive_desc_create": (_PP, _P, c_int, c_int, _P, _P, _D, _D, _D, _D, _D, _P),
    "dnnl_prelu_forward_primitive_desc_create": (_PP, _P, c_int, _P, _P, _P, _P),
    "dnnl_lrn_forward_primitive_desc_create": (
        *(_PP, _P, c_int, c_int, _P, _P),
        *(c_int64, c_float, c_float, c_float, _P),
    ),
    "dnnl_batch_normalization_forward_primitive_desc_create": (_PP, _P, c_int, _P, _P, c_float, c_uint, _P),
    "dnnl_layer_normalization_forward_primitive_desc_create": (_PP, _P, c_int, _P, _P, _P, c_float, c_uint, _P),
    "dnnl_inner_product_forward_primitive_desc_create": (_PP, _P, c_int, _P, _P, _P, _P, _P),
    "dnnl_matmul_primitive_desc_create": (_PP, _P, _P, _P, _P, _P, _P),
    "dnnl_resampling_forward_primitive_desc_create": (_PP, _P, c_int, c_int, _F, _P, _P, _P),
    "dnnl_reduction_primitive_desc_create": (_PP, _P, c_int, _P, _P, c_float, c_float, _P),
}

# Functions that return a value: name -> (result type, argument types).
_VALUE_FUNCTIONS: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "dnnl_version": (POINTER(Version), ()),
    "dnnl_fmt_tag2str": (c_char_p, (c_int,)),
    "dnnl_alg_kind2str": (c_char_p, (c_int,)),
    "dnnl_get_effective_cpu_isa": (c_int, ()),
    "dnnl_cpu_isa2str": (c_char_p, (c_int,)),
    "dnnl_memory_desc_equal": (c_int, (_P, _P)),
    "dnnl_memory_desc_get_size": (c_size_t, (_P,)),
    "dnnl_primitive_desc_query_md": (c_void_p, (_P, c_int, c_int)),
}


@functools.cache
def lib() -> ctypes.CDLL:
    """The library with every function declared; a failing status raises :class:`OneDnnError`."""
    library = load()
    try:
        for name, argtypes in _STATUS_FUNCTIONS.items():
            _declare_status(library, name, argtypes)
        for name, (restype, argtypes) in _VALUE_FUNCTIONS.items():
            function = getattr(library, name)
            function.argtypes, function.restype = argtypes, restype
    except AttributeError as e:
        raise OneDnnUnavailable(f"the oneDNN library found is not of version 3.2 or later 3.x: {e}") from e
    return library


def _declare_status(library: ctypes.CDLL, name: str, argtypes: tuple[Any, ...]) -> None:
    function = getattr(library, name)
    function.argtypes, function.restype = argtypes, c_int

    def check(status: int, _function: object, _arguments: object) -> None:
        if status:
            raise OneDnnError(name, STATUS.get(status, f"status {status}"))

    function.errcheck = check


def address(name: str) -> int:
    """The address of a C function, for code that calls it natively."""
    return ctypes.cast(getattr(lib(), name), c_void_p).value or 0


def version() -> tuple[int, int, int]:
    """The loaded library's version; zeros without a library."""
    if not available():
        return 0, 0, 0
    v = lib().dnnl_version().contents
    return v.major, v.minor, v.patch


def cpu_isa() -> str:
    """The instruction set oneDNN generates code for, such as ``avx2``; empty without the library."""
    if not available():
        return ""
    return lib().dnnl_cpu_isa2str(lib().dnnl_get_effective_cpu_isa()).decode().removeprefix("cpu_isa_")


def int8_is_exact() -> bool:
    """Whether int8 products add up exactly.

    Without the VNNI instructions, pairs of u8 x s8 products are added in saturating 16-bit arithmetic,
    and convolutions of s8 by s8 halve their weights: results are right only for values within seven bits.
    """
    return bool(lib().dnnl_get_effective_cpu_isa() & _VNNI_BITS)


def dims_array(values: tuple[int, ...]) -> ctypes.Array[c_int64]:
    """A ``dnnl_dims_t``."""
    return Dims(*values)


@functools.cache
def format_tags() -> dict[str, int]:
    """Every format tag the library names, such as ``aBcd8b``, and its number."""
    tags: dict[str, int] = {}
    for number in range(2, 4096):
        name = lib().dnnl_fmt_tag2str(number).decode()
        if name.startswith(("unknown", "format_tag_last")):
            break
        tags.setdefault(name, number)
    return tags
