"""Values and bindings in ONNX Runtime's form: OrtValue, OrtDevice, IOBinding."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from pyflame_rt.graph import DType, MapType, OptionalType, SequenceType, TensorType, ValueType
from pyflame_rt.graph.arguments import expect_graph_of
from pyflame_rt.graph.errors import InputError
from pyflame_rt.graph.tensor import whole

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["IOBinding", "OrtDevice", "OrtValue", "ort_type_text"]

_ORT_LABELS = {"float32": "float", "float64": "double"}


def ort_type_text(kind: ValueType) -> str:
    """A type as ONNX Runtime writes it.

    Example:
        >>> ort_type_text(TensorType(DType.Float32))
        'tensor(float)'
    """
    match kind:
        case TensorType(dtype=dtype):
            return f"tensor({_ORT_LABELS.get(dtype.label, dtype.label)})"
        case SequenceType(elem=elem):
            return f"seq({ort_type_text(elem)})"
        case OptionalType(elem=elem):
            return f"optional({ort_type_text(elem)})"
        case MapType(key=key, value=value):
            return f"map({_ORT_LABELS.get(key.label, key.label)},{ort_type_text(value)})"
        case _:
            return ""


class OrtDevice:
    """A device; here always the CPU.

    Example:
        >>> OrtDevice.make("cpu", 0).device_type()
        0
    """

    def __init__(self, device_type: str = "cpu", device_id: int = 0) -> None:
        _check_device(device_type)
        self._id = device_id

    @staticmethod
    def make(ort_device_name: str, device_id: int, vendor_id: int = -1) -> OrtDevice:
        """The device of that name and number."""
        del vendor_id
        return OrtDevice(ort_device_name, device_id)

    def device_id(self) -> int:
        """Number of the device."""
        return self._id

    def device_type(self) -> int:
        """0: the CPU."""
        return 0

    def device_vendor_id(self) -> int:
        """0: any vendor."""
        return 0

    def device_mem_type(self) -> int:
        """0: ordinary memory."""
        return 0


def _check_device(device_type: str) -> None:
    if str(device_type).lower() != "cpu":
        raise InputError(f"device {device_type!r} is not available. Devices: cpu")


def _dtype_of(element_type: Any) -> DType:
    if isinstance(element_type, int) and not isinstance(element_type, bool):
        return DType.from_onnx(element_type)
    return DType.of(element_type)


class OrtValue:
    """A tensor, or a list of tensors, that sessions take and give without copying.

    Example:
        >>> value = OrtValue.ortvalue_from_numpy(np.ones((2, 3), np.float32))
        >>> value.shape(), value.data_type(), value.device_name()
        ([2, 3], 'tensor(float)', 'cpu')
    """

    __slots__ = ("value",)

    def __init__(self, value: Any, numpy_obj: Any = None) -> None:
        del numpy_obj
        self.value = value.value if isinstance(value, OrtValue) else value

    # ------------------------------------------------------------------ making

    @staticmethod
    def ortvalue_from_numpy(
        numpy_obj: np.ndarray[Any, Any], /, device_type: str = "cpu", device_id: int = 0, vendor_id: int = -1
    ) -> OrtValue:
        """A value on the memory of an array: changes of one show in the other."""
        del device_id, vendor_id
        _check_device(device_type)
        try:
            given = np.asanyarray(numpy_obj)
        except (TypeError, ValueError, RuntimeError) as error:
            raise InputError(f"{type(numpy_obj).__name__} cannot be read as an array: {error}") from error
        array = whole(given, "the value")
        DType.of(array.dtype)
        return OrtValue(array)

    @staticmethod
    def ortvalue_from_numpy_with_onnx_type(data: np.ndarray[Any, Any], /, onnx_element_type: int) -> OrtValue:
        """A value whose bytes are read as another type of the same width (uint16 as bfloat16)."""
        dtype = DType.from_onnx(onnx_element_type)
        if data.dtype.itemsize != dtype.numpy.itemsize:
            raise InputError(f"{data.dtype} has not the width of {dtype.label}")
        return OrtValue(data.view(dtype.numpy))

    @staticmethod
    def ortvalue_from_shape_and_type(
        shape: Sequence[int],
        element_type: Any = np.float32,
        device_type: str = "cpu",
        device_id: int = 0,
        vendor_id: int = -1,
        memory_info: Any = None,
    ) -> OrtValue:
        """A value of zeros; ``element_type`` is a NumPy type or an ONNX number."""
        del device_id, vendor_id, memory_info
        _check_device(device_type)
        dtype = _dtype_of(element_type)
        fill = "" if dtype is DType.String else 0
        for size in shape:
            if not isinstance(size, (int, np.integer)) or size < 0:
                raise InputError(f"a size is a whole number from 0 on, got {size!r} in the shape {list(shape)}")
        return OrtValue(np.full(tuple(shape), fill, dtype=dtype.numpy))

    @staticmethod
    def from_dlpack(data: Any, /) -> OrtValue:
        """A value on the memory of an object with ``__dlpack__``."""
        return OrtValue(np.from_dlpack(data))

    # ------------------------------------------------------------------ asking

    def is_tensor(self) -> bool:
        """True for a tensor."""
        return isinstance(self.value, np.ndarray)

    def is_tensor_sequence(self) -> bool:
        """True for a list of tensors."""
        return isinstance(self.value, list)

    def is_sparse_tensor(self) -> bool:
        """False: sparse tensors are spelled out when a model is loaded."""
        return False

    def has_value(self) -> bool:
        """False for an empty optional."""
        return self.value is not None

    def shape(self) -> list[int]:
        """Dimensions."""
        return list(self._tensor().shape)

    def data_type(self) -> str:
        """Type as text, such as ``tensor(float)``."""
        if isinstance(self.value, list):
            inner = OrtValue(self.value[0]).data_type() if self.value else "tensor(float)"
            return f"seq({inner})"
        return ort_type_text(TensorType(DType.of(self._tensor().dtype)))

    def element_type(self) -> int:
        """ONNX number of the element type."""
        return DType.of(self._tensor().dtype).onnx

    def device_name(self) -> str:
        """Where it lives: "cpu"."""
        return "cpu"

    def data_ptr(self) -> int:
        """Address of the first element."""
        return int(self._tensor().ctypes.data)

    def tensor_size_in_bytes(self) -> int:
        """Bytes of data."""
        return int(self._tensor().nbytes)

    def numpy(self) -> Any:
        """A copy as a NumPy array (a list of them, or of maps, for a sequence)."""
        if isinstance(self.value, list):
            return [dict(item) if isinstance(item, dict) else np.array(item) for item in self.value]
        return np.array(self._tensor())

    def update_inplace(self, data: np.ndarray[Any, Any]) -> None:
        """Overwrite the elements; shape and type stay."""
        target, source = self._tensor(), np.asarray(data)
        if not target.flags.writeable:
            raise InputError("this OrtValue is on a read-only array: it cannot be overwritten")
        if source.size != target.size or source.dtype != target.dtype:
            raise InputError(
                f"cannot update {target.dtype}{list(target.shape)} from {source.dtype}{list(source.shape)}"
            )
        target[...] = source.reshape(target.shape)

    def _tensor(self) -> np.ndarray[Any, Any]:
        if not isinstance(self.value, np.ndarray):
            raise InputError(f"this OrtValue holds {type(self.value).__name__}, not a tensor")
        return self.value

    def __dlpack__(self, **settings: Any) -> Any:
        return self._tensor().__dlpack__(**settings)

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        return np.array(self._tensor(), dtype=dtype, copy=copy)

    def __repr__(self) -> str:
        return f"OrtValue({self.data_type() if self.has_value() else 'empty'})"


class _Session(Protocol):
    """What a binding asks of its session."""

    def run(self, output_names: Any, input_feed: Any, run_options: Any = None) -> list[Any]: ...
    def _run_into(self, output_names: Any, input_feed: Any, outputs: list[Any]) -> bool: ...
    def get_inputs(self) -> Sequence[Any]: ...
    def get_outputs(self) -> Sequence[Any]: ...
    def get_overridable_initializers(self) -> Sequence[Any]: ...


class IOBinding:
    """Inputs and outputs tied to memory before a run.

    Example:
        >>> import pyflame_rt
        >>> g = pyflame_rt.Graph("g")
        >>> _ = g.add_input("x", [2]), g.add_node("n", "Neg", ["x"], ["y"]), g.add_output("y", [2])
        >>> session = pyflame_rt.InferenceSession(g)
        >>> binding = session.io_binding()
        >>> binding.bind_cpu_input("x", np.ones(2, np.float32))
        >>> binding.bind_output("y")
        >>> session.run_with_iobinding(binding)
        >>> binding.copy_outputs_to_cpu()
        [array([-1., -1.], dtype=float32)]
    """

    def __init__(self, session: _Session) -> None:
        self._session = session
        expect_graph_of(session, "an IOBinding")
        known = (*session.get_inputs(), *session.get_overridable_initializers())
        self._known_inputs = {arg.name for arg in known}
        self._known_outputs = {arg.name for arg in session.get_outputs()}
        self._inputs: dict[str, OrtValue] = {}
        self._buffers: dict[str, OrtValue | None] = {}
        self._results: dict[str, OrtValue] = {}

    # ------------------------------------------------------------------ inputs

    def bind_cpu_input(self, name: str, arr_on_cpu: np.ndarray[Any, Any]) -> None:
        """Tie an input to an array; it is read when the session runs."""
        if not isinstance(arr_on_cpu, np.ndarray):
            raise TypeError(f"input {name!r} is bound to a NumPy array, got {type(arr_on_cpu).__name__}")
        self.bind_ortvalue_input(name, OrtValue.ortvalue_from_numpy(arr_on_cpu))

    def bind_input(
        self,
        name: str,
        device_type: str,
        device_id: int,
        element_type: Any,
        shape: Sequence[int],
        buffer_ptr: int,
    ) -> None:
        """Tie an input to memory at an address."""
        del device_id
        _check_device(device_type)
        self.bind_ortvalue_input(name, _at_address(buffer_ptr, element_type, shape))

    def bind_ortvalue_input(self, name: str, ortvalue: OrtValue) -> None:
        """Tie an input to an OrtValue."""
        if name not in self._known_inputs:
            raise InputError(f"the model has no input {name!r}. Inputs: {sorted(self._known_inputs)}")
        self._inputs[name] = ortvalue

    # ------------------------------------------------------------------ outputs

    def bind_output(
        self,
        name: str,
        device_type: str = "cpu",
        device_id: int = 0,
        element_type: Any = None,
        shape: Sequence[int] | None = None,
        buffer_ptr: int | None = None,
    ) -> None:
        """Ask for an output, in memory of ours or, with the last three given, of the caller."""
        del device_id
        _check_device(device_type)
        if buffer_ptr is None:
            self._bind(name, None)
            return
        if element_type is None or shape is None:
            raise InputError(f"output {name!r}: a buffer needs element_type and shape")
        self._bind(name, _at_address(buffer_ptr, element_type, shape))

    def bind_ortvalue_output(self, name: str, ortvalue: OrtValue) -> None:
        """Ask for an output to be written into an OrtValue."""
        self._bind(name, ortvalue)

    def _bind(self, name: str, buffer: OrtValue | None) -> None:
        if name not in self._known_outputs:
            raise InputError(f"the model has no output {name!r}. Outputs: {sorted(self._known_outputs)}")
        if buffer is not None:
            self._check_buffer(name, _array_of(name, buffer))
        self._buffers[name] = buffer

    def _check_buffer(self, name: str, memory: np.ndarray[Any, Any]) -> None:
        """Refuse memory that cannot be written to, or that another output writes to."""
        if not memory.flags.writeable:
            raise InputError(f"output {name!r} is bound to a read-only array")
        for other, buffer in self._buffers.items():
            if other != name and buffer is not None and np.shares_memory(memory, _array_of(other, buffer)):
                raise InputError(f"outputs {other!r} and {name!r} are bound to the same memory")

    def run(self, run_options: Any = None) -> None:
        """Run the session on what is bound."""
        if not self._buffers:
            names = [arg.name for arg in self._session.get_outputs()]
            raise InputError(f"no output is bound: call bind_output first. Outputs: {names}")
        feed = {name: value.value for name, value in self._inputs.items()}
        names = list(self._buffers)
        bound = [buffer.value for buffer in self._buffers.values() if buffer is not None]
        if run_options is None and len(bound) == len(names) and self._session._run_into(names, feed, bound):
            self._results = {name: buffer for name, buffer in self._buffers.items() if buffer is not None}
            return
        for name, result in zip(names, self._session.run(names, feed, run_options), strict=True):
            buffer = self._buffers[name]
            if buffer is not None:
                _write(name, _array_of(name, buffer), result)
            self._results[name] = OrtValue(result) if buffer is None else buffer

    def get_outputs(self) -> list[OrtValue]:
        """Results of the last run, in the order they were bound."""
        return [self._results[name] for name in self._buffers if name in self._results]

    get_outputs_as_ortvaluevector = get_outputs

    def copy_outputs_to_cpu(self) -> list[Any]:
        """Results of the last run as new arrays."""
        return [value.numpy() for value in self.get_outputs()]

    def clear_binding_inputs(self) -> None:
        """Forget the inputs."""
        self._inputs.clear()

    def clear_binding_outputs(self) -> None:
        """Forget the outputs."""
        self._buffers.clear()
        self._results.clear()

    def synchronize_inputs(self) -> None:
        """Nothing to wait for on the CPU."""

    def synchronize_outputs(self) -> None:
        """Nothing to wait for on the CPU."""


def _array_of(name: str, buffer: OrtValue) -> np.ndarray[Any, Any]:
    if not isinstance(buffer, OrtValue) or not isinstance(buffer.value, np.ndarray):
        held = type(buffer.value if isinstance(buffer, OrtValue) else buffer).__name__
        raise InputError(f"output {name!r} must be bound to an OrtValue of a tensor, got {held}")
    return buffer.value


def _write(name: str, memory: np.ndarray[Any, Any], result: Any) -> None:
    """Put an output into the memory that it is bound to."""
    if not isinstance(result, np.ndarray):
        raise InputError(f"output {name!r} is a {type(result).__name__}: it cannot be bound to the memory of a tensor")
    if result.shape != memory.shape or result.dtype != memory.dtype:
        bound, made = (f"{a.dtype}{list(a.shape)}" for a in (memory, result))
        raise InputError(f"output {name!r} is {made}, the array it is bound to is {bound}")
    memory[...] = result


def _at_address(address: int, element_type: Any, shape: Sequence[int]) -> OrtValue:
    dtype = _dtype_of(element_type)
    if dtype is DType.String:
        raise InputError("strings have no fixed memory; bind an OrtValue")
    count = int(np.prod(shape, dtype=np.int64))
    memory: Any = (ctypes.c_byte * (count * dtype.itemsize)).from_address(int(address))
    return OrtValue(np.frombuffer(memory, dtype=dtype.numpy).reshape(tuple(shape)))
