"""What tensors say of their element type and of where they are, under torch's names."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyflame.devices import Device
from pyflame.dtypes import DType, to_dtype
from pyflame.ops import creation as make
from pyflame.ops.core import Handle, as_type
from pyflame.typed import dtype_named, name_of

if TYPE_CHECKING:
    from pyflame.tensors import Tensor

__all__ = ["Kinds"]


class Kinds(Handle):
    """Element types and devices of tensors."""

    __slots__ = ()

    is_cuda = is_xpu = is_mps = is_sparse = is_quantized = is_meta = is_mkldnn = is_nested = False
    is_cpu = True
    output_nr = 0

    def type(self, dtype: Any = None, non_blocking: bool = False) -> Any:
        """The name of the tensor's type, or the tensor in another: an element type, a constructor or its name.

        Example:
            >>> import pyflame as pf
            >>> pf.ones(2).type(), pf.ones(2).type(pf.LongTensor).dtype
            ('torch.FloatTensor', DType.int64)
        """
        del non_blocking
        if dtype is None:
            return name_of(self._value.spec.dtype)
        return as_type(self, to_dtype(dtype_named(dtype)))

    def cuda(self, device: Any = None, non_blocking: bool = False) -> Any:
        """Refuse: there is no such device."""
        del non_blocking
        return Device("cuda" if device is None else device)

    def pin_memory(self, device: Any = None) -> Any:
        """Refuse: memory is pinned for GPUs, and there is none."""
        del device
        raise RuntimeError("pin_memory: there is no GPU whose transfers it would speed up; leave the call out")

    def is_pinned(self) -> bool:
        """False."""
        return False

    def get_device(self) -> int:
        """-1, as torch says of the CPU."""
        return -1

    def is_complex(self) -> bool:
        """Whether the elements are complex numbers."""
        return self._value.spec.dtype.is_complex

    def is_signed(self) -> bool:
        """Whether the element type has negative numbers."""
        return self._value.spec.dtype not in (DType.uint8, DType.bool)

    def is_inference(self) -> bool:
        """Whether it was made inside `inference_mode`; such tensors may be used like all others here."""
        return False

    def is_nonzero(self) -> bool:
        """Whether the one element is not zero."""
        return bool(self)

    def is_same_size(self, other: Any) -> bool:
        """Whether another tensor has the same shape."""
        return tuple(self._value.spec.shape) == tuple(other._value.spec.shape)

    def ndimension(self) -> int:
        """Number of dimensions."""
        return len(self._value.spec.shape)

    def new_empty(self, *size: Any, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
        """A tensor of the same element type whose contents do not matter: zeros."""
        kind = self._value.spec.dtype if dtype is None else dtype
        return make.zeros(*size, dtype=kind, device=device, requires_grad=requires_grad)

    def new(self, *args: Any) -> Tensor:
        """A tensor of the same element type, of data or of sizes."""
        from pyflame.ops.creation import of_kind

        return of_kind(args, self._value.spec.dtype)
