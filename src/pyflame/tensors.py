"""Tensor: a handle on a lazy value."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

import numpy as np

from pyflame.autograd.leaf import Leaf
from pyflame.dtypes import DType, get_default_dtype, to_dtype
from pyflame.entries import entry_put
from pyflame.evaluation import evaluate
from pyflame.interop import apply_ufunc, dlpack_capsule, plain_arrays
from pyflame.lazy import Val, leaf, mode_changes, modes, next_serial, unusual
from pyflame.ops import arithmetic as ar
from pyflame.ops import core
from pyflame.ops.core import Handle, cast, convert, wrap
from pyflame.ops.indexing import names_part, setitem
from pyflame.parts import Count, HookHandle
from pyflame.printing import tensor_repr, tensor_text
from pyflame.storage import Alias
from pyflame.tensor_methods import Methods
from pyflame.unread import unread
from pyflame.viewing import getitem, unbind
from pyflame.views import apart, detached, detached_view, geometry_of, overwrite, refuse, write
from pyflame_rt.graph.addresses import address_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyflame.layout import MeshLayout

__all__ = ["HookHandle", "Tensor", "TensorData"]


class Tensor(Methods):
    """An array of numbers that is computed when its contents are asked for.

    Operators and functions record a graph; ``pf.eval``, ``numpy()``, ``item()`` and printing compute it.
    A tensor is a view of a storage: assigning to its elements, in-place methods and optimizers give the storage a new
    value, which all tensors of that storage see; every graph that was built before stays as it was.

    Args:
        data: whole numbers for sizes (filled with zeros), or one list, array or tensor of elements.
        dtype: element type; the default dtype whatever the elements are, as in torch, or that of a tensor. `pf.tensor`
            takes it from the elements.
        requires_grad: collect gradients.

    Example:
        >>> import pyflame as pf
        >>> x = pf.tensor([[1.0, 2.0], [3.0, 4.0]])
        >>> print((x @ x).sum(dim=0))
        tensor([22., 32.])
    """

    __slots__ = ()

    def __init__(self, *data: Any, dtype: Any = None, requires_grad: bool = False) -> None:
        from pyflame.ops.creation import of_kind

        self._alias = None
        if len(data) == 1 and isinstance(data[0], Handle) and dtype is None:
            made = detached(data[0]._value)
        else:
            made = of_kind(data, to_dtype(dtype or get_default_dtype()))._value
        self._value = made
        made.handles += 1
        if requires_grad:
            self.requires_grad_()

    @staticmethod
    def _wrap(value: Val) -> Tensor:
        return wrap(value)

    def _modify(self, result: Tensor, *, since: int, replacing: bool = False) -> Tensor:
        """The in-place form of a function: the storage takes the result, in the tensor's element type and shape.

        Args:
            result: what the function gave.
            since: the number of the first expression that was recorded for it.
            replacing: it does not depend on what the tensor held.
        """
        old = self._value
        value = result._value
        if value.spec is not old.spec:
            if value.spec.shape != old.spec.shape:
                raise core.ShapeMismatchError(f"an in-place result of shape {result.shape} does not fit {self.shape}")
            value = cast(result, old.spec.dtype)._value
        recording = (old.needs_grad or value.needs_grad) and modes.grad
        if recording:
            refuse(self, since)
        write(self, value, recording=recording, replacing=replacing, since=since)
        return self

    def _renew(self, result: Tensor) -> Tensor:
        """New contents whatever the mode: history and gradient stay as they are. What optimizers do."""
        write(self, result._value, recording=False)
        return self

    # ------------------------------------------------------------------ what it is

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes; equal to a list or tuple of the same numbers."""
        return self._value.spec.shape

    @property
    def dtype(self) -> DType:
        """Element type."""
        return self._value.spec.dtype

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(self._value.spec.shape)

    def dim(self) -> int:
        """Number of dimensions."""
        return len(self._value.spec.shape)

    @property
    def numel(self) -> Count:
        """Number of elements; may be called too."""
        return Count(self._value.spec.numel)

    def nelement(self) -> int:
        """Number of elements."""
        return self._value.spec.numel

    def element_size(self) -> int:
        """Bytes of one element."""
        return self.dtype.itemsize

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return self.dtype.itemsize

    @property
    def nbytes(self) -> int:
        """Bytes of all elements."""
        return self._value.spec.numel * self.dtype.itemsize

    def size(self, dim: int | None = None) -> Any:
        """All sizes, or that of one dimension."""
        return self.shape if dim is None else self.shape[core.axis_of(dim, self.ndim)]

    def stride(self, dim: int | None = None) -> Any:
        """Steps in elements between neighbours along each dimension, or one.

        What was computed lies row by row; a view lies as its storage does.

        Example:
            >>> import pyflame as pf
            >>> pf.zeros(2, 3, 4).stride(), pf.zeros(2, 3, 4)[:, 1].T.stride()
            ((12, 4, 1), (1, 12))
        """
        steps = geometry_of(self).strides
        return steps if dim is None else steps[core.axis_of(dim, self.ndim)]

    @property
    def is_scalar(self) -> bool:
        """True without dimensions."""
        return self._value.spec.shape == ()

    @property
    def layout(self) -> MeshLayout:
        """How it lies on the mesh of processing elements."""
        from pyflame.layout import MeshLayout

        return MeshLayout.single_pe() if self._value.layout is None else self._value.layout

    @property
    def device(self) -> Any:
        """Where it is computed."""
        from pyflame.devices import current_device

        return current_device()

    def is_floating_point(self) -> bool:
        """True for floating-point element types."""
        return self.dtype.is_floating_point

    def storage_offset(self) -> int:
        """Which element of its storage is the first."""
        return geometry_of(self).offset

    def data_ptr(self) -> int:
        """Where its first element is in memory; evaluates. An in-place operation may move a storage."""
        if self._alias is None:
            return address_of(self._array())
        base = self._alias.family.top().current()
        evaluate([base])
        assert base.array is not None
        return address_of(base.array) + self.storage_offset() * self.itemsize

    @property
    def _base(self) -> Tensor | None:
        """A tensor of the whole storage that this is a view of; None for one that is no view."""
        if self._alias is None or not self._alias.steps:
            return None
        made = object.__new__(Tensor)
        made._alias = Alias(self._alias.family)
        return made

    def _is_view(self) -> bool:
        """Whether it is a view of another tensor's storage."""
        return self._alias is not None and bool(self._alias.steps)

    @property
    def _version(self) -> int:
        """How often its storage was written, as far as that is counted: from its first view on."""
        return 0 if self._alias is None else self._alias.family.storage.writes

    # ------------------------------------------------------------------ evaluation

    def is_evaluated(self) -> bool:
        """True once its contents are known."""
        return self._value.array is not None

    def eval(self) -> Tensor:
        """Compute the contents now; the tensor itself is returned."""
        if self._value.array is None:
            evaluate([self._value])
        return self

    def _array(self) -> np.ndarray[Any, Any]:
        tracer = modes.tracer if unusual else None
        if tracer is not None:
            tracer.note_contents(self)
        v = self._value
        if v.array is None or tracer is not None:
            evaluate([v])
        assert v.array is not None
        return v.array

    def numpy(self, *, copy: bool = True) -> np.ndarray[Any, Any]:
        """The contents as a NumPy array (bfloat16, which NumPy lacks, as float32).

        Args:
            copy: False gives a read-only view of the tensor's own memory.
        """
        array = self._array()
        if self.dtype is DType.bfloat16:
            return array.astype(np.float32)
        if copy:
            return array.copy()
        view = array.view()
        view.flags.writeable = False
        return view

    @property
    def data(self) -> TensorData:
        """The tensor without its history; called, its raw values in row-major order.

        Assigning to it gives the tensor other contents.
        """
        if modes.tracer is not None:
            modes.tracer.saw((self,))
        made = detached_view(self, TensorData, silent=True)
        made._source = weakref.ref(self)
        return made

    @data.setter
    def data(self, value: Any) -> None:
        new: Any = convert(value, self.dtype) if not isinstance(value, Handle) else value
        if modes.tracer is not None:
            self._renew(new)
            return
        old, alias = self._value, self._alias
        twin = detached_view(new, type(self), silent=True)
        if alias is not None:
            alias.family.storage.changed()  # a compiled function that reads it must look again
        if twin._value.spec is not old.spec:
            mode_changes[0] += 1
        made = twin._value
        made.leaf, made.needs_grad = old.leaf, old.needs_grad
        if made.layout is None:
            made.layout = old.layout
        made.handles += 1
        old.handles -= 1
        self._value, self._alias = made, twin._alias
        if old.array is None:
            unread.add(old, made)
        twin._alias.family.storage.joined(self)

    def item(self) -> Any:
        """The one element as a Python number."""
        if self._value.spec.numel != 1:
            raise ValueError(f"item() takes a tensor of one element, this one has shape {self.shape}")
        return self._array().item()

    def tolist(self) -> Any:
        """The contents as nested lists of Python numbers."""
        return self._array().tolist()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        array = self.numpy(copy=bool(copy))
        if dtype is None or array.dtype == dtype:
            return array
        if copy is False:
            raise ValueError(f"a {self.dtype.name} tensor becomes {np.dtype(dtype)} only by a copy")
        return array.astype(dtype)

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        return apply_ufunc(ufunc, method, inputs, options)

    def __array_function__(self, function: Any, _types: Any, args: Any, kwargs: Any) -> Any:
        return function(*plain_arrays(args), **plain_arrays(kwargs))

    def __dlpack__(self, **options: Any) -> Any:
        return dlpack_capsule(self._array(), options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)

    def __buffer__(self, flags: int) -> memoryview:
        return self.numpy(copy=False).data

    def __bool__(self) -> bool:
        if self._value.spec.numel != 1:
            raise ValueError(
                f"a tensor of shape {self.shape} is neither true nor false; use any(), all() or where() on it"
            )
        return bool(self._array().item())

    def __int__(self) -> int:
        return int(self.item())

    def __float__(self) -> float:
        return float(self.item())

    def __index__(self) -> int:
        if self.dtype.is_inexact:
            raise TypeError(f"only tensors of integers can be an index, this one is {self.dtype}")
        return int(self.item())

    def __format__(self, spec: str) -> str:
        return format(self.item(), spec) if spec and self._value.spec.numel == 1 else format(str(self), spec)

    def __repr__(self) -> str:
        return tensor_repr(self)

    def __str__(self) -> str:
        return tensor_text(self)

    def __len__(self) -> int:
        if self.ndim == 0:
            raise TypeError("a tensor without dimensions has no length")
        return self.shape[0]

    def __iter__(self) -> Iterator[Tensor]:
        if self.ndim == 0:
            raise TypeError("a tensor without dimensions cannot be iterated")
        return iter(unbind(self))

    def __contains__(self, value: Any) -> bool:
        return bool((self == value).any())

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        twin = _new_handle(type(self), detached(self._value))
        if self.requires_grad and self.is_leaf:
            twin.requires_grad_()
        memo[id(self)] = twin
        return twin

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (type(self), self._array(), self.requires_grad, self._value.layout)

    # ------------------------------------------------------------------ elements

    __getitem__ = getitem

    def __setitem__(self, key: Any, value: Any) -> None:
        alias = self._alias
        first = 0 if alias is None or not alias.steps else next_serial()
        if first and geometry_of(self).overlaps:
            getitem(self, key).copy_(value)
        elif (made := entry_put(self._value, key, value)) is not None:
            overwrite(self, made)
        else:
            # torch takes a part as a view of its own, and so reads this tensor before it writes.
            whole = alias is not None and first and alias.linked >= first and not names_part(self, key)
            start = first if whole else next_serial()
            self._modify(setitem(self, key, value), since=start)

    # ------------------------------------------------------------------ gradients

    @property
    def requires_grad(self) -> bool:
        """Whether gradients flow to or through it."""
        return self._value.needs_grad

    @requires_grad.setter
    def requires_grad(self, value: bool) -> None:
        self.requires_grad_(value)

    def requires_grad_(self, requires_grad: bool = True) -> Tensor:
        """Make it a leaf that gradients are computed for, or stop that."""
        v = self._value
        if requires_grad == v.needs_grad:
            if requires_grad and v.leaf is None and v.expr is None:
                v.leaf = Leaf(True)
            return self
        if not requires_grad and not self.is_leaf:
            raise RuntimeError("only leaves can stop requiring gradients; use detach() on a computed tensor")
        if requires_grad and not self.dtype.is_inexact:
            raise RuntimeError(f"only floating-point tensors can require gradients, this one is {self.dtype}")
        if requires_grad and modes.inference:
            raise RuntimeError("inside inference_mode() no tensor can require gradients")
        if self._alias is None:
            if v.spec.known is not None or v.handles > 1:
                old, v = v, detached(v)
                v.leaf = old.leaf
                old.handles -= 1
                v.handles += 1
                self._value = v
        else:
            if self._alias.steps and requires_grad:
                v = apart(self)._value
            self._alias.family.storage.changed()
        v.leaf = v.leaf or Leaf()
        v.leaf.requires_grad = requires_grad
        mode_changes[0] += 1
        v.needs_grad = requires_grad
        return self

    @property
    def is_leaf(self) -> bool:
        """True unless gradients flow through it to others."""
        v = self._value
        return not v.needs_grad or (v.leaf is not None and v.leaf.requires_grad)

    @property
    def grad(self) -> Tensor | None:
        """The gradient of the last backward pass; lazy like any tensor."""
        found = self._value.leaf
        if found is None:
            return None
        if modes.tracer is not None:
            modes.tracer.note_grad(found)
        return found.grad

    @grad.setter
    def grad(self, value: Tensor | None) -> None:
        v = self._value
        if value is not None and tuple(value.shape) != tuple(self.shape):
            raise core.ShapeMismatchError(f"a gradient of shape {value.shape} does not fit {self.shape}")
        if v.leaf is None:
            if value is None:
                return
            v.leaf = Leaf()
        if modes.tracer is not None:
            modes.tracer.note_grad(v.leaf)
        v.leaf.grad = value

    @property
    def grad_fn(self) -> str | None:
        """The operator that made it, where gradients flow through it; None for leaves."""
        v = self._value
        return None if self.is_leaf or v.expr is None else v.expr.rule.op.full_name

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradient, or set it to zeros."""
        found = self._value.leaf
        if set_to_none and found is not None:
            if modes.tracer is not None:
                modes.tracer.clear_grad(found)
            found.grad = None
            return
        if self.grad is None:
            return
        from pyflame.ops.creation import zeros_like

        self.grad = zeros_like(self)

    def backward(
        self, gradient: Any = None, retain_graph: bool | None = None, create_graph: bool = False, inputs: Any = None
    ) -> None:
        """Add the gradient of this number to ``.grad`` of every leaf that requires one."""
        from pyflame.autograd.api import backward

        backward(self, gradient, retain_graph=retain_graph, create_graph=create_graph, inputs=inputs)

    def detach(self) -> Tensor:
        """The same values, without their history: gradients stop here."""
        if modes.tracer is not None:
            modes.tracer.saw((self,))
        return detached_view(self, Tensor)

    def detach_(self) -> Tensor:
        """Cut the tensor itself off from its history."""
        old, alias = self._value, self._alias
        if not old.needs_grad:
            return self
        if alias is not None and alias.steps:
            raise RuntimeError("a view cannot be cut off from its history in place; use detach()")
        value = detached(old)
        old.handles -= 1
        value.handles += 1
        if alias is not None:
            if modes.tracer is not None:
                modes.tracer.note_write(alias.family)
            alias.family.storage.changed()
            alias.family.bind(value)
            alias.family.storage.outdate(keep=self)
        self._value = value
        return self

    def retain_grad(self) -> None:
        """Keep the gradient of this computed tensor in ``.grad``."""
        if not self._value.needs_grad:
            raise RuntimeError("a tensor that does not require gradients has none to keep")
        if self._value.leaf is None:
            self._value.leaf = Leaf()
        self._value.leaf.retains = True

    @property
    def retains_grad(self) -> bool:
        """Whether :meth:`retain_grad` was called on a computed tensor."""
        return not self.is_leaf and self._value.leaf is not None and self._value.leaf.retains

    def register_hook(self, hook: Callable[[Tensor], Tensor | None]) -> HookHandle:
        """Call a function with the gradient when it is computed; what it returns replaces it."""
        if not self._value.needs_grad:
            raise RuntimeError("a tensor that does not require gradients has no gradient to hook")
        if self._value.leaf is None:
            self._value.leaf = Leaf()
        hooks = self._value.leaf.hooks
        key = max(hooks, default=0) + 1
        hooks[key] = hook
        return HookHandle(hooks, key)

    # ------------------------------------------------------------------ conversion

    def to_layout(self, layout: MeshLayout) -> Tensor:
        """The same values in another layout; moving them is a node of the graph."""
        from pyflame.layout import redistribute

        return wrap(redistribute(self._value, layout))

    def __hash__(self) -> int:
        return id(self)

    def __eq__(self, other: object) -> Any:
        return NotImplemented if other is None or isinstance(other, str) else ar.eq(self, other)

    def __ne__(self, other: object) -> Any:
        return NotImplemented if other is None or isinstance(other, str) else ar.ne(self, other)


class TensorData(Tensor):
    """What ``tensor.data`` is: a tensor without history that, called, gives the raw values."""

    __slots__ = ("_source",)

    def __call__(self) -> np.ndarray[Any, Any]:
        """The raw values."""
        source = self._source()
        target = self if source is None else source.eval()
        return target.numpy(copy=False).reshape(-1)

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        """A tensor of its own: changes of a copy are not changes of the source."""
        twin = memo[id(self)] = _new_handle(Tensor, detached(self._value))
        return twin

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (Tensor, self._array(), False, self._value.layout)


def _new_handle(cls: type, value: Val) -> Any:
    handle = object.__new__(cls)
    handle._value, handle._alias = value, None
    value.handles += 1
    return handle


def _restore(cls: type, array: np.ndarray[Any, Any], requires_grad: bool, layout: Any) -> Tensor:
    """Unpickle a tensor."""
    made = _new_handle(cls, leaf(array, to_dtype(array.dtype)))
    made._value.layout = layout
    return made.requires_grad_() if requires_grad else made


core._tensor_class[0] = Tensor
