"""A custom operator: what was stated about it, turned into an operator with kernel, type rule and gradient."""

from __future__ import annotations

import inspect
import pickle
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, fields
from enum import Enum
from typing import TYPE_CHECKING, Any

import numpy as np

from pyflame_rt.custom.addresses import ARRAYS, BUFFERS, call_buffers, call_elements, native_call
from pyflame_rt.graph import DType, Node, Shape, Tensor, TensorType
from pyflame_rt.graph.errors import BackendError, DTypeMismatchError, InputError, UndeterminedError
from pyflame_rt.graph.records import dataclass
from pyflame_rt.ops.core.evaluate import evaluate
from pyflame_rt.ops.core.registry import Op
from pyflame_rt.ops.core.signature import Input, Signature
from pyflame_rt.ops.core.type_rules import broadcast_shapes
from pyflame_rt.registry import KernelContext, OpenSignature, kernel_arrays

if TYPE_CHECKING:
    from pyflame_rt.ops.core.native_call import NativeCall

__all__ = ["CONTEXT", "BackendType", "CustomOp", "Formal", "OpSchema"]

CONTEXT = "context"  # signature of a kernel of which nothing is stated: (inputs, context), any number of outputs
Kernel = Callable[[list[Any], dict[str, Any]], Any]


class BackendType(Enum):
    """Where a kernel runs."""

    CPU = "cpu"
    WSE = "wse"
    CUDA = "cuda"
    ALL = "all"


@dataclass(frozen=True, slots=True)
class Formal:
    """A formal input or output; without ``dtype`` an input is of any type, an output of the first input's."""

    name: str
    dtype: DType | None = None
    optional: bool = False
    variadic: bool = False


@dataclass(slots=True)
class OpSchema:
    """All that was stated about an operator.

    Attributes:
        name: its name in models.
        domain: its domain in models.
        version: of its domain, when it took this form.
        doc: what it computes.
        inputs: formal inputs in order.
        outputs: formal outputs in order.
        attributes: defaults by name, ``REQUIRED`` or None where there is none; None: any are taken.
        kinds: the kind of each attribute, such as ``list[int]``.
        function: over operators; or
        kernel: ``kernel(inputs, attrs)`` on Tensors; with a ``signature`` what that says.
        signature: of a kernel of another form: ``arrays``, ``buffers``, or such as ``float32(float32)``.
        backend: where ``kernel`` runs.
        shape_inference: shapes of the outputs from those of the inputs.
        gradient: ``gradient(inputs, grad_outputs)`` or ``gradient(inputs, grad_outputs, attrs)`` on Tensors; of a
            function: ``gradient(grad_outputs, outputs, *inputs, **attrs)`` over operators.
    """

    name: str
    domain: str = "custom"
    version: int = 1
    doc: str = ""
    inputs: list[Formal] = field(default_factory=list)
    outputs: list[Formal] = field(default_factory=list)
    attributes: dict[str, Any] | None = None
    kinds: dict[str, str] = field(default_factory=dict)
    function: Callable[..., Any] | None = None
    kernel: Any = None
    signature: str = ""
    backend: BackendType = BackendType.ALL
    shape_inference: Callable[[list[Any]], Sequence[Any]] | None = None
    gradient: Callable[..., Any] | None = None

    def __reduce__(self) -> Any:
        if self.signature not in _PYTHON:
            raise pickle.PicklingError(f"{self.name} is machine code, whose address is another one in every process")
        return OpSchema, tuple(getattr(self, part.name) for part in fields(self))


class CustomOp:
    """A registered operator.

    Attributes:
        name: its name in models.
        domain: its domain in models.
        version: of its domain, when it took this form.
        doc: what it computes.
        ops: the operators made of it: itself and, of a kernel with one, its gradient.

    Example:
        >>> from pyflame_rt.custom import CustomOpRegistry, register_custom_op
        >>> op = register_custom_op("Cube", function=lambda x: x * x * x)
        >>> op.execute([np.array([2.0], np.float32)])[0].numpy()
        array([8.], dtype=float32)
        >>> CustomOpRegistry.instance().unregister("Cube")
    """

    def __init__(self, schema: OpSchema) -> None:
        self._schema = schema
        self.name, self.domain = schema.name, schema.domain
        self.version, self.doc = schema.version, schema.doc
        self.ops: list[Op] = _made_of(schema)

    @property
    def schema(self) -> OpSchema:
        """All that was stated about it."""
        return self._schema

    def full_name(self) -> str:
        """The bare name in the domain "custom", ``domain::name`` in others."""
        return self.name if self.domain in ("custom", "") else f"{self.domain}::{self.name}"

    def has_gradient(self) -> bool:
        """True when it can be differentiated: by its function, or by a gradient given for its kernel."""
        return self._schema.function is not None or self._schema.gradient is not None

    def supports_backend(self, backend: BackendType) -> bool:
        """True where it runs: functions everywhere, Python kernels on the host."""
        return self._schema.function is not None or backend in (BackendType.CPU, self._schema.backend)

    def execute(self, inputs: Sequence[Any], attrs: Mapping[str, Any] | None = None) -> list[Tensor]:
        """Compute it once, on Tensors or arrays."""
        return self._run(self.ops[0], inputs, attrs, max(1, len(self._schema.outputs)))

    def gradient(
        self, inputs: Sequence[Any], grad_outputs: Sequence[Any], attrs: Mapping[str, Any] | None = None
    ) -> list[Tensor]:
        """Gradients of the inputs, by the function given for the kernel."""
        if len(self.ops) < 2:
            raise InputError(
                f"custom operator {self.full_name()} has no gradient function of its own. "
                f"Differentiate a graph that uses it with pyflame_rt.autodiff.gradient"
            )
        attributes = {**(attrs or {}), "num_inputs": len(inputs)}
        return self._run(self.ops[1], [*inputs, *grad_outputs], attributes, len(inputs))

    def _run(self, op: Op, inputs: Sequence[Any], attrs: Mapping[str, Any] | None, count: int) -> list[Tensor]:
        arrays = [None if x is None else x.raw() if isinstance(x, Tensor) else np.asarray(x) for x in inputs]
        names = ["" if x is None else f"x{i}" for i, x in enumerate(inputs)]
        node = Node(op.name, op.name, names, [f"y{i}" for i in range(count)], dict(attrs or {}), domain=op.domain)
        return [Tensor(np.asarray(y)) for y in evaluate(node, arrays)]

    def __call__(self, *inputs: Any, **attributes: Any) -> Any:
        """Use the operator inside the function of another."""
        return self.ops[0](*inputs, **attributes)

    def is_native(self) -> bool:
        """True when no Python runs in it: it is a function over operators, or a kernel that is an address."""
        return self._schema.function is not None or self.ops[0].native is not None

    def __repr__(self) -> str:
        kind = "function" if self._schema.function is not None else "kernel"
        return f"<custom operator {self.full_name()}-{self.version} by a {kind}>"


def _made_of(schema: OpSchema) -> list[Op]:
    if schema.function is not None:
        return [Op(schema.name, schema.domain, schema.version, schema.function, composite=True, vjp=schema.gradient)]
    rule = None if schema.gradient is None else _gradient_op(schema, schema.gradient)
    native = _native(schema)
    made_by = "addresses are called natively only" if native else f"a Python kernel {_PYTHON[schema.signature]}"
    op = Op(
        *(schema.name, schema.domain, schema.version, _kernel_body(schema, native), False),
        infer=_type_rule(schema),
        native=native,
        host_reason=made_by,
        vjp=None if rule is None else _vjp(rule),
        host=True,
        schema=_signature(schema),
    )
    return [op] if rule is None else [op, rule]


def _signature(schema: OpSchema) -> Signature:
    inputs = [Input(f.name, f.optional, f.variadic, f.optional) for f in schema.inputs]
    if schema.attributes is None:
        return OpenSignature(tuple(inputs or [Input("inputs", variadic=True)]), {})
    return Signature(tuple(inputs), schema.attributes, schema.kinds)


def _tensors(arrays: Sequence[Any]) -> list[Any]:
    return [None if a is None else Tensor(np.asarray(a)) for a in arrays]


def _stated(attributes: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in attributes.items() if value is not None}


_PYTHON = {"": "(inputs, attrs)", CONTEXT: "(inputs, context)", ARRAYS: "(inputs, outputs)"}


def _native(schema: OpSchema) -> NativeCall | None:
    """The address of a kernel that has one."""
    if schema.signature in _PYTHON:
        return None
    return native_call(schema.kernel, schema.signature, f"custom operator {schema.name!r}")


def _kernel_body(schema: OpSchema, native: NativeCall | None) -> Callable[..., tuple[Any, ...]]:
    if native is not None and native.form == "elements":
        elements = call_elements(native)
        return lambda _ops, *arrays: (elements(*map(np.asarray, arrays)),)
    if schema.signature == CONTEXT:
        return _context_body(schema)
    if schema.signature:
        return _writing_body(schema, native)
    kernel: Kernel = schema.kernel

    def body(ops: Any, *arrays: Any, **attributes: Any) -> tuple[Any, ...]:
        del ops
        inputs = _tensors(arrays)
        results = kernel_arrays(kernel(inputs, _stated(attributes)), schema.name)
        if len(results) != len(schema.outputs):
            raise BackendError(f"the kernel gave {len(results)} results for {len(schema.outputs)} outputs")
        dtypes = _output_dtypes(schema, [t.dtype for t in inputs if t is not None])
        return tuple(_cast(r, d, f.name) for r, d, f in zip(results, dtypes, schema.outputs, strict=True))

    return body


def _context_body(schema: OpSchema) -> Callable[..., tuple[Any, ...]]:
    def body(ops: Any, *arrays: Any, **attributes: Any) -> tuple[Any, ...]:
        del ops
        node = Node(schema.name, schema.name, attributes=attributes, domain=schema.domain)
        return kernel_arrays(schema.kernel(_tensors(arrays), KernelContext(node)), schema.name)

    return body


def _writing_body(schema: OpSchema, native: NativeCall | None) -> Callable[..., tuple[Any, ...]]:
    """A kernel that writes into arrays it is given, whose shapes its rule says."""

    def body(ops: Any, *arrays: Any) -> tuple[Any, ...]:
        del ops
        inputs = [np.ascontiguousarray(a).view() if np.ndim(a) else np.array(a) for a in arrays]
        for array in inputs:
            array.flags.writeable = False
        shapes = _stated_shapes(schema, [list(a.shape) for a in inputs])
        dtypes = _output_dtypes(schema, [DType.of(a.dtype) for a in inputs])
        if any(s is None or not all(isinstance(n, int) for n in s) for s in shapes):
            raise BackendError(
                f"the shapes of {schema.name}'s outputs do not follow from those of its inputs: {shapes}"
            )
        outputs = [np.zeros([int(n) for n in s], d.numpy) for s, d in zip(shapes, dtypes, strict=True)]  # type: ignore[union-attr, arg-type]
        if native is None:
            _check_nothing_new(schema.kernel(inputs, outputs), outputs, schema.name)
        else:
            call_buffers(native, inputs, outputs)
        return tuple(outputs)

    return body


def _check_nothing_new(returned: Any, outputs: Sequence[Any], name: str) -> None:
    """Refuse a kernel that gives an array back where it should have written it: the zeros would be the answer."""
    for one in returned if isinstance(returned, (list, tuple)) else [returned]:
        if isinstance(one, (np.ndarray, Tensor)) and not any(one is o or np.may_share_memory(one, o) for o in outputs):
            raise BackendError(f"the kernel of {name} returned an array; of signature 'arrays' it writes into outputs")


def _output_dtypes(schema: OpSchema, given: Sequence[DType]) -> list[DType]:
    first = given[0] if given else DType.Float32
    return [first if f.dtype is None else f.dtype for f in schema.outputs]


def _cast(result: Any, dtype: DType, name: str) -> Any:
    """The declared type: NumPy's own scalars make float64 of float32 on the way."""
    if not isinstance(result, np.ndarray) or result.dtype == dtype.numpy:
        return result
    if not np.can_cast(result.dtype, dtype.numpy, "same_kind"):
        raise DTypeMismatchError(f"the kernel gave {result.dtype} for output {name!r}, which is {dtype.label}")
    return result.astype(dtype.numpy)


def _type_rule(schema: OpSchema) -> Callable[..., tuple[TensorType, ...]]:
    def infer(*values: Any, **attributes: Any) -> tuple[TensorType, ...]:
        del attributes
        if schema.signature == CONTEXT:
            raise UndeterminedError(f"what the kernel of {schema.name} gives is known when it ran")
        formals = schema.inputs + schema.inputs[-1:] * (len(values) - len(schema.inputs))
        for value, formal in zip(values, formals, strict=False):
            if value is not None and formal.dtype not in (None, value.dtype):
                raise DTypeMismatchError(f"input {formal.name!r} must be {formal.dtype.label}, got {value.dtype.label}")
        dtypes = _output_dtypes(schema, [v.dtype for v in values if v is not None])
        if schema.signature == BUFFERS and DType.String in (*dtypes, *(v.dtype for v in values)):
            raise DTypeMismatchError(f"{schema.name} is machine code on buffers, and strings are objects of Python")
        if schema.signature not in (*_PYTHON, BUFFERS):
            return (TensorType(dtypes[0], broadcast_shapes(*[v.tensor_type.shape for v in values])),)
        shapes = _output_shapes(schema, values)
        return tuple(TensorType(d, s) for d, s in zip(dtypes, shapes, strict=True))

    return infer


def _output_shapes(schema: OpSchema, values: Sequence[Any]) -> list[Shape | None]:
    known = [None if v is None else v.tensor_type.shape for v in values]
    if schema.shape_inference is None or any(s is None and v is not None for s, v in zip(known, values, strict=True)):
        return [None] * len(schema.outputs)
    try:
        return _stated_shapes(schema, [None if s is None else list(s) for s in known])
    except UndeterminedError:
        return [None] * len(schema.outputs)


def _stated_shapes(schema: OpSchema, known: list[list[Any] | None]) -> list[Shape | None]:
    """What the rule for shapes gives."""
    assert schema.shape_inference is not None
    shapes = list(schema.shape_inference(known))
    if len(shapes) != len(schema.outputs):
        raise InputError(f"shape inference gave {len(shapes)} shapes for {len(schema.outputs)} outputs")
    return [None if s is None else Shape(s) for s in shapes]


def _gradient_op(schema: OpSchema, rule: Callable[..., Any]) -> Op:
    """The gradient function as a host operator, from inputs and gradients of the outputs to those of float inputs."""
    takes_attributes = len(inspect.signature(rule).parameters) > 2

    def body(ops: Any, *arrays: Any, num_inputs: int, **attributes: Any) -> tuple[Any, ...]:
        del ops
        inputs, grads = _tensors(arrays[:num_inputs]), _tensors(arrays[num_inputs:])
        more = (_stated(attributes),) if takes_attributes else ()
        results = kernel_arrays(rule(inputs, grads, *more), f"{schema.name}'s gradient")
        if len(results) != num_inputs:
            raise BackendError(f"the gradient gave {len(results)} results for {num_inputs} inputs; give None for some")
        return tuple(
            _gradient_like(x, g, i) for i, (x, g) in enumerate(zip(inputs, results, strict=True)) if _is_float(x)
        )

    def infer(*values: Any, num_inputs: int, **attributes: Any) -> tuple[TensorType, ...]:
        del attributes
        return tuple(v.tensor_type for v in values[:num_inputs] if _is_float(v))

    formals = (Input("values", variadic=True),)
    if not any(f.variadic for f in schema.inputs):
        names = [f.name for f in schema.inputs] + [f"grad_{f.name}" for f in schema.outputs]
        formals = tuple(Input(n, optional=True, nullable=True) for n in names)
    name, signature = f"{schema.name}Gradient", OpenSignature(formals, {})
    return Op(name, schema.domain, schema.version, body, False, infer=infer, host=True, schema=signature)


def _is_float(x: Any) -> bool:
    return x is not None and x.dtype.is_float


def _gradient_like(x: Tensor, gradient: Any, index: int) -> Any:
    if gradient is None:
        return np.zeros_like(x.raw())
    if gradient.shape != x.raw().shape:
        raise BackendError(f"the gradient of input {index} has shape {gradient.shape}, the input {x.raw().shape}")
    return _cast(gradient, x.dtype, f"gradient of input {index}")


def _vjp(rule: Op) -> Callable[..., list[Any]]:
    def vjp(gradients: Any, outputs: Any, *inputs: Any, **attributes: Any) -> list[Any]:
        del outputs
        arrived = gradients if isinstance(gradients, tuple) else (gradients,)
        made = rule(*inputs, *arrived, num_inputs=len(inputs), **_stated(attributes))
        results = iter(made if isinstance(made, tuple) else (made,))
        return [next(results) if _is_float(x) else None for x in inputs]

    return vjp
