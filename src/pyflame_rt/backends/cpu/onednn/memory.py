"""Memory descriptors (shape, element type, layout) and memory objects (a descriptor on an address)."""

from __future__ import annotations

import ctypes
import itertools
import math
import string
from typing import TYPE_CHECKING, Any, Self

import ml_dtypes
import numpy as np
import numpy.typing as npt

from pyflame_rt.backends.cpu.onednn import api
from pyflame_rt.backends.cpu.onednn.runtime import Handle, engine
from pyflame_rt.graph.cached import cached_property

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["MemDesc", "Memory", "data_type", "dense_strides", "numpy_dtype", "tag_strides"]

_NUMPY: dict[str, np.dtype[Any]] = {
    "f16": np.dtype(np.float16),
    "bf16": np.dtype(ml_dtypes.bfloat16),
    "f32": np.dtype(np.float32),
    "s32": np.dtype(np.int32),
    "s8": np.dtype(np.int8),
    "u8": np.dtype(np.uint8),
    "f64": np.dtype(np.float64),
}
_NAMES = {dtype: name for name, dtype in _NUMPY.items()}
_TYPE_NAMES = {number: name for name, number in api.DATA_TYPES.items()}


def data_type(dtype: npt.DTypeLike) -> str:
    """Name an element type as oneDNN does: ``f32``, ``bf16``, ``s8`` and so on; NumPy's spellings are understood."""
    if isinstance(dtype, str) and dtype in api.DATA_TYPES:
        return dtype
    name = _NAMES.get(np.dtype(dtype))
    if name is None:
        raise ValueError(f"oneDNN has no element type for {dtype!r}; it has {', '.join(api.DATA_TYPES)}")
    return name


def numpy_dtype(name: str) -> np.dtype[Any]:
    """The NumPy dtype of a oneDNN element type name."""
    return _NUMPY[name]


def dense_strides(dims: Sequence[int]) -> tuple[int, ...]:
    """Row-major strides, in elements."""
    return tag_strides(dims, string.ascii_lowercase[: len(dims)])


def tag_strides(dims: Sequence[int], tag: str) -> tuple[int, ...]:
    """Strides of a plain tag such as ``acdb``: its letters name the dims from outermost to innermost."""
    strides, step = [0] * len(dims), 1
    for letter in reversed(tag):
        axis = ord(letter) - ord("a")
        strides[axis], step = step, step * max(dims[axis], 1)
    return tuple(strides)


def _is_plain_tag(tag: str, ndims: int) -> bool:
    return sorted(tag) == list(string.ascii_lowercase[:ndims])


def _usual_strides(dims: tuple[int, ...], strides: Sequence[int]) -> tuple[int, ...]:
    """The strides, with those of axes of one element as a dense tensor has them.

    The library takes descriptors that differ there alone for equal, but chooses another implementation by them: its
    cache then gives the code of one to the other, which has no scratch memory for it. A batch of one lies around all
    that it holds: the library knows channels-last images by that, and has fast code for them.
    """
    usual = list(strides)
    for axis in reversed(range(1, len(dims))):
        if dims[axis] == 1:
            usual[axis] = usual[axis + 1] * max(dims[axis + 1], 1) if axis + 1 < len(dims) else 1
    if dims and dims[0] == 1:
        usual[0] = max((stride * max(size, 1) for stride, size in zip(usual[1:], dims[1:], strict=True)), default=1)
    return tuple(usual)


class MemDesc(Handle):
    """What lies in memory: dims, element type, and a layout.

    Example:
        >>> MemDesc((1, 3, 8, 8), "f32", "aBcd8b").size  # channels padded to eight
        2048
    """

    _destroy = "dnnl_memory_desc_destroy"

    def __init__(
        self,
        dims: Sequence[int],
        dtype: npt.DTypeLike,
        layout: str | None = None,
        *,
        strides: Sequence[int] | None = None,
    ) -> None:
        """Describe memory.

        Args:
            dims: sizes; ``api.RUNTIME_DIM`` for one given at execution.
            dtype: ``"f32"`` and so on, or a NumPy dtype.
            layout: ``"any"`` (the primitive chooses), a plain order such as ``"acdb"``, or a blocked
                tag such as ``"aBcd8b"``; row-major when neither it nor ``strides`` is given.
            strides: in elements, instead of ``layout``.
        """
        if layout is not None and strides is not None:
            raise ValueError("give a layout or strides, not both")
        number = api.DATA_TYPES[data_type(dtype)]
        dims, out = tuple(dims), ctypes.c_void_p()
        if len(dims) > api.MAX_NDIMS:
            raise ValueError(f"oneDNN describes at most {api.MAX_NDIMS} dims, got {len(dims)}")
        if layout is None and strides is None:
            strides = dense_strides(dims)
        elif layout is not None and _is_plain_tag(layout, len(dims)):
            strides = tag_strides(dims, layout)
        if strides is not None:
            given = api.dims_array(dims), number, api.dims_array(_usual_strides(dims, strides))
            api.lib().dnnl_memory_desc_create_with_strides(ctypes.byref(out), len(dims), *given)
        else:
            given = api.dims_array(dims), number, _tag_number(str(layout))
            api.lib().dnnl_memory_desc_create_with_tag(ctypes.byref(out), len(dims), *given)
        super().__init__(out.value or 0)

    @classmethod
    def of(cls, array: np.ndarray[Any, Any]) -> Self:
        """The descriptor of an array as it lies in memory."""
        strides = tuple(s // array.itemsize for s in array.strides)
        return cls(array.shape, array.dtype, strides=strides)

    @classmethod
    def clone(cls, handle: int) -> Self:
        """Our own copy of a descriptor that the library owns."""
        out = ctypes.c_void_p()
        api.lib().dnnl_memory_desc_clone(ctypes.byref(out), handle)
        return cls._adopt(out)

    @classmethod
    def _adopt(cls, out: ctypes.c_void_p) -> Self:
        desc = cls.__new__(cls)
        Handle.__init__(desc, out.value or 0)
        return desc

    def any(self) -> Self:
        """The same dims and type with the layout left to the primitive."""
        return type(self)(self.dims, self.dtype, "any")

    def reshape(self, dims: Sequence[int]) -> Self:
        """The same memory under other dims, where the layout allows it."""
        out = ctypes.c_void_p()
        api.lib().dnnl_memory_desc_reshape(ctypes.byref(out), self.handle, len(dims), api.dims_array(tuple(dims)))
        return self._adopt(out)

    def permute(self, axes: Sequence[int]) -> Self:
        """The same memory with axes in another order, as ``numpy.transpose`` names them."""
        target = [list(axes).index(i) for i in range(len(axes))]  # oneDNN says where each axis goes
        out = ctypes.c_void_p()
        api.lib().dnnl_memory_desc_permute_axes(ctypes.byref(out), self.handle, (ctypes.c_int * len(axes))(*target))
        return self._adopt(out)

    def window(self, dims: Sequence[int], offsets: Sequence[int]) -> Self:
        """A box inside this memory; its address stays that of the whole."""
        out = ctypes.c_void_p()
        box = api.dims_array(tuple(dims)), api.dims_array(tuple(offsets))
        api.lib().dnnl_memory_desc_create_submemory(ctypes.byref(out), self.handle, *box)
        return self._adopt(out)

    @cached_property
    def ndims(self) -> int:
        """How many dims."""
        return self._query_number(api.QUERY_NDIMS)

    @cached_property
    def dims(self) -> tuple[int, ...]:
        """Sizes."""
        return self._query_dims(api.QUERY_DIMS, self.ndims)

    @cached_property
    def padded_dims(self) -> tuple[int, ...]:
        """Sizes as stored, rounded up to whole blocks."""
        return self._query_dims(api.QUERY_PADDED_DIMS, self.ndims)

    @cached_property
    def dtype(self) -> str:
        """The element type's oneDNN name."""
        return _TYPE_NAMES[self._query_number(api.QUERY_DATA_TYPE)]

    @property
    def numpy_dtype(self) -> np.dtype[Any]:
        """The element type as NumPy's."""
        return numpy_dtype(self.dtype)

    @cached_property
    def size(self) -> int:
        """Bytes as the library counts them: padding included, and whole rows where strides leave gaps."""
        return api.lib().dnnl_memory_desc_get_size(self.handle)

    @cached_property
    def extent(self) -> int:
        """Bytes from the address to the end of the last element: what is really touched."""
        if not self.is_plain or 0 in self.dims:
            return self.size
        last = sum((d - 1) * s for d, s in zip(self.dims, self._strides, strict=True))
        return (self.offset + last + 1) * self.numpy_dtype.itemsize

    @cached_property
    def offset(self) -> int:
        """Elements between the address and the first element (a window has one)."""
        return self._query_number(api.QUERY_OFFSET)

    @cached_property
    def is_any(self) -> bool:
        """Whether the layout is still to be chosen."""
        return self._format_kind == api.FORMAT_ANY

    @cached_property
    def is_plain(self) -> bool:
        """Whether strides alone say where every element lies."""
        return self._format_kind == api.FORMAT_BLOCKED and not self.blocks and not self._has_extra

    @cached_property
    def is_dense_row_major(self) -> bool:
        """Whether the memory is exactly a C-contiguous array of these dims."""
        if not self.is_plain or self.offset:
            return False
        rows = dense_strides(self.dims)
        return all(d == 1 or s == r for d, s, r in zip(self.dims, self._strides, rows, strict=True))

    @property
    def strides(self) -> tuple[int, ...]:
        """Strides in elements of a plain layout."""
        if not self.is_plain:
            raise ValueError(f"layout {self.layout} has no plain strides")
        return self._strides

    @cached_property
    def blocks(self) -> tuple[tuple[int, int], ...]:
        """Inner blocks, outermost first, as (axis, size); empty for plain layouts."""
        if self._format_kind != api.FORMAT_BLOCKED:
            return ()
        count = self._query_number(api.QUERY_INNER_NBLKS)
        sizes = self._query_dims(api.QUERY_INNER_BLKS, count)
        return tuple(zip(self._query_dims(api.QUERY_INNER_IDXS, count), sizes, strict=True))

    @cached_property
    def layout(self) -> str:
        """A readable name: ``abcd``, ``aBcd8b``, ``plain(8, 1)``, ``any``, ``opaque``.

        A trailing ``+`` marks int8 weights that carry compensation terms behind the data.
        """
        if self.is_any:
            return "any"
        if self._format_kind != api.FORMAT_BLOCKED:
            return "opaque"
        # Where strides are equal, all but one of the axes have one element, and names of the library have these last.
        order = sorted(range(self.ndims), key=lambda axis: (-self._strides[axis], self._outer[axis] == 1))
        if not self.blocks and not self._is_dense(order):
            return f"plain{self._strides}"
        name = self._name(order)
        if self.blocks and name not in api.format_tags():
            names = map(self._name, self._orders(order))
            name = next((name for name in names if name in api.format_tags()), name)
        return name + ("+" if self._has_extra else "")

    def _name(self, order: Sequence[int]) -> str:
        letters = string.ascii_lowercase
        blocked = {axis for axis, _ in self.blocks}
        outer = "".join(letters[a].upper() if a in blocked else letters[a] for a in order)
        return outer + "".join(f"{size}{letters[axis]}" for axis, size in self.blocks)

    def _orders(self, order: Sequence[int]) -> Iterator[Sequence[int]]:
        """Orders of the axes that mean the same: those of one element may change places with each other."""
        ones = [axis for axis in order if self._outer[axis] == 1]
        for turned in itertools.permutations(ones):
            rest = iter(turned)
            yield [next(rest) if axis in ones else axis for axis in order]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, MemDesc):
            return NotImplemented
        return self is other or bool(api.lib().dnnl_memory_desc_equal(self.handle, other.handle))

    def __hash__(self) -> int:
        # Strides of dims of size one do not matter to equality, so not here either.
        strides = tuple(s for s, d in zip(self._strides, self.padded_dims, strict=True) if d != 1)
        return hash((self.dims, self.dtype, self._format_kind, self.blocks, self.offset, strides))

    def __repr__(self) -> str:
        if self.closed:
            return "MemDesc(closed)"
        dims = "x".join("?" if d == api.RUNTIME_DIM else str(d) for d in self.dims)
        return f"MemDesc({dims} {self.dtype} {self.layout})"

    @cached_property
    def _format_kind(self) -> int:
        return self._query_number(api.QUERY_FORMAT_KIND)

    @cached_property
    def _strides(self) -> tuple[int, ...]:
        if self._format_kind != api.FORMAT_BLOCKED:
            return (0,) * self.ndims
        return self._query_dims(api.QUERY_STRIDES, self.ndims)

    @cached_property
    def _has_extra(self) -> bool:
        """Whether data the C API does not describe follows the elements (int8 compensation)."""
        if self._format_kind != api.FORMAT_BLOCKED or api.RUNTIME_DIM in (*self.dims, *self._strides):
            return False
        return self.size > self._span() * self.numpy_dtype.itemsize

    def _span(self) -> int:
        """Elements from the address to the last one, by dims, strides and blocks alone."""
        if 0 in self.dims:
            return 0
        inner = math.prod(block for _, block in self.blocks)
        outer = self._outer
        last = sum((n - 1) * s for n, s in zip(outer, self._strides, strict=True))
        # The library counts a whole outermost row, so a strided tensor may exceed its last element.
        whole = max((n * s for n, s in zip(outer, self._strides, strict=True)), default=0)
        return self.offset + max(last + inner, whole)

    @cached_property
    def _outer(self) -> tuple[int, ...]:
        """How many blocks there are along each axis."""
        per_axis = [1] * self.ndims
        for axis, block in self.blocks:
            per_axis[axis] *= block
        return tuple(p // b for p, b in zip(self.padded_dims, per_axis, strict=True))

    def _is_dense(self, order: Sequence[int]) -> bool:
        tag = "".join(string.ascii_lowercase[axis] for axis in order)
        wanted = tag_strides(self.dims, tag)
        return all(d == 1 or s == w for d, s, w in zip(self.dims, self._strides, wanted, strict=True))

    def _query_number(self, what: int) -> int:
        out = ctypes.c_int64(0)
        api.lib().dnnl_memory_desc_query(self.handle, what, ctypes.byref(out))
        if what in (api.QUERY_NDIMS, api.QUERY_DATA_TYPE, api.QUERY_FORMAT_KIND, api.QUERY_INNER_NBLKS):
            return ctypes.c_int32(out.value).value
        return out.value

    def _query_dims(self, what: int, count: int) -> tuple[int, ...]:
        out = ctypes.POINTER(ctypes.c_int64)()
        api.lib().dnnl_memory_desc_query(self.handle, what, ctypes.byref(out))
        return tuple(out[i] for i in range(count))


def _tag_number(tag: str) -> int:
    if tag == "any":
        return api.TAG_ANY
    number = api.format_tags().get(tag)
    if number is None:
        raise ValueError(f"oneDNN has no layout {tag!r}")
    return number


class Memory(Handle):
    """A descriptor on an address; neither the address nor what it points at is owned here."""

    _destroy = "dnnl_memory_destroy"

    def __init__(self, desc: MemDesc, pointer: int = 0) -> None:
        out = ctypes.c_void_p()
        api.lib().dnnl_memory_create(ctypes.byref(out), desc.handle, engine(), pointer or None)
        super().__init__(out.value or 0)

    @property
    def pointer(self) -> int:
        """The address."""
        out = ctypes.c_void_p()
        api.lib().dnnl_memory_get_data_handle(self.handle, ctypes.byref(out))
        return out.value or 0

    def set_pointer(self, pointer: int) -> None:
        """Point at another address."""
        api.lib().dnnl_memory_set_data_handle(self.handle, pointer or None)
