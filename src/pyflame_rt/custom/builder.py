"""Stating a custom operator: step by step with a builder, or in one call."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

from pyflame_rt.custom.addresses import ARRAYS, BUFFERS, is_machine_code, native_call
from pyflame_rt.custom.operator import BackendType, CustomOp, Formal, OpSchema
from pyflame_rt.custom.registry import CustomOpRegistry
from pyflame_rt.graph import DType
from pyflame_rt.graph.errors import InputError
from pyflame_rt.ops.core.signature import REQUIRED, read_signature
from pyflame_rt.registry import split_name

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["CustomOpBuilder", "register_custom_op"]


class CustomOpBuilder:
    """Collects what an operator is, and registers it with :meth:`build`.

    Example:
        >>> import numpy as np
        >>> from pyflame_rt.custom import CustomOpBuilder, CustomOpRegistry
        >>> op = (
        ...     CustomOpBuilder("Shift")
        ...     .input("X")
        ...     .output("Y")
        ...     .attr_float("by", default=1.0)
        ...     .kernel(lambda inputs, attrs: inputs[0].numpy() + attrs["by"])
        ...     .shape_inference(lambda shapes: [shapes[0]])
        ...     .build()
        ... )
        >>> op.execute([np.zeros(2, np.float32)], {"by": 3.0})[0].numpy()
        array([3., 3.], dtype=float32)
        >>> CustomOpRegistry.instance().unregister("Shift")
    """

    def __init__(self, name: str) -> None:
        self._schema = OpSchema(name, attributes={})

    def domain(self, name: str) -> Self:
        """Its domain in models, "custom" unless given."""
        self._schema.domain = name
        return self

    def version(self, number: int) -> Self:
        """The version of its domain when it took this form."""
        self._schema.version = number
        return self

    def doc(self, text: str) -> Self:
        """What it computes."""
        self._schema.doc = text
        return self

    def input(self, name: str, dtype: DType | None = DType.Float32, optional: bool = False) -> Self:
        """The next input; of any type where ``dtype`` is None."""
        self._schema.inputs.append(Formal(name, dtype, optional))
        return self

    def variadic_input(self, name: str, dtype: DType | None = DType.Float32) -> Self:
        """The last input, which takes any number of values."""
        self._schema.inputs.append(Formal(name, dtype, variadic=True))
        return self

    def output(self, name: str, dtype: DType | None = DType.Float32) -> Self:
        """The next output; of the first input's type where ``dtype`` is None."""
        self._schema.outputs.append(Formal(name, dtype))
        return self

    def attr_int(self, name: str, required: bool = False, default: int | None = None) -> Self:
        """A whole number."""
        return self._attribute(name, "int", required, default)

    def attr_float(self, name: str, required: bool = False, default: float | None = None) -> Self:
        """A number. Without a default, a kernel finds it in ``attrs`` only where the model has it."""
        return self._attribute(name, "float", required, default)

    def attr_string(self, name: str, required: bool = False, default: str | None = None) -> Self:
        """A text."""
        return self._attribute(name, "str", required, default)

    def attr_ints(self, name: str, required: bool = False, default: list[int] | None = None) -> Self:
        """Whole numbers."""
        return self._attribute(name, "list[int]", required, default)

    def attr_floats(self, name: str, required: bool = False, default: list[float] | None = None) -> Self:
        """Numbers."""
        return self._attribute(name, "list[float]", required, default)

    def _attribute(self, name: str, kind: str, required: bool, default: Any) -> Self:
        if required and default is not None:
            raise InputError(f"attribute {name!r} of {self._schema.name}: what is required has no default")
        assert self._schema.attributes is not None
        self._schema.attributes[name] = REQUIRED if required else default
        self._schema.kinds[name] = kind
        return self

    def function(self, fn: Callable[..., Any]) -> Self:
        """Compute it with a function over operators: kernels, shapes, gradient and CSL follow from it.

        Args:
            fn: positional parameters are inputs, keyword-only ones attributes; no ``input``, ``output`` or
                ``attr_...`` is stated besides.
        """
        self._schema.function = fn
        return self

    def kernel(self, fn: Any, backend: BackendType = BackendType.ALL, *, signature: str = "") -> Self:
        """Compute it with a Python function on the host, between native steps, or with machine code.

        Args:
            fn: called as ``fn(inputs, attrs)`` with Tensors; gives a list of Tensors or arrays, or one.
            backend: CPU or ALL.
            signature: of another form of ``fn``, see :func:`register_custom_op`.
        """
        if backend not in (BackendType.CPU, BackendType.ALL):
            raise InputError(
                f"custom operator {self._schema.name}: a Python kernel runs on the host, not on {backend.name}. "
                f"State it with .function(...) over operators to run there"
            )
        self._schema.kernel, self._schema.backend, self._schema.signature = fn, backend, signature
        return self

    def shape_inference(self, fn: Callable[[list[Any]], Sequence[Any]]) -> Self:
        """Shapes of the outputs from those of the inputs; without it they are known when the kernel ran."""
        self._schema.shape_inference = fn
        return self

    def gradient(self, fn: Callable[..., Any]) -> Self:
        """Gradients of the inputs by ``fn(inputs, grad_outputs)``, or with ``attrs`` as a third parameter."""
        self._schema.gradient = fn
        return self

    def build(self, *, override: bool = False) -> CustomOp:
        """Register the operator; one of the same name and domain is replaced, with a warning."""
        return _register(self._schema, override)


def register_custom_op(
    name: str,
    domain: str = "custom",
    input_names: Sequence[str] | None = None,
    output_names: Sequence[str] = ("Y",),
    kernel_fn: Any = None,
    *,
    signature: str = "",
    function: Callable[..., Any] | None = None,
    shape_inference: Callable[[list[Any]], Sequence[Any]] | None = None,
    gradient: Callable[..., Any] | None = None,
    output_dtypes: Sequence[DType | None] | None = None,
    version: int = 1,
    doc: str = "",
    override: bool = False,
) -> CustomOp:
    """Register an operator in one call, from a function over operators or from a Python kernel.

    Args:
        name: its name in models; one of the same name and domain is replaced, with a warning.
        domain: its domain in models; "custom" may be left out there.
        input_names: of a kernel; any number where not given.
        output_names: of a kernel.
        kernel_fn: ``kernel_fn(inputs, attrs)`` on Tensors, run on the host; takes any attributes. Or what
            ``signature`` says.
        signature: of a kernel of another form, which takes no attributes. ``"arrays"``: ``kernel_fn(inputs, outputs)``
            writes into NumPy arrays, on the host. Machine code (a numba ``cfunc``, a function of ctypes, an address)
            runs between native steps, perhaps on several threads at once: such as ``"float32(float32, float32)"``,
            called for each element of inputs that broadcast; ``"buffers"``: ``void f(void **inputs, void **outputs,
            int64_t *sizes)``, called once on contiguous memory, all of the outputs to be written, ``sizes`` being rank
            and sizes of each input, then of each output. ``arrays`` and ``buffers`` need ``shape_inference``.
        function: over operators; positional parameters are inputs, keyword-only ones attributes.
        shape_inference: of a kernel: shapes of the outputs from those of the inputs.
        gradient: of a kernel: ``gradient(inputs, grad_outputs)``, or with ``attrs`` as a third parameter.
        output_dtypes: of a kernel: None for that of the first input. Results are cast to it.
        version: of the domain, when the operator took this form.
        doc: what it computes.
        override: with ``domain=""``: replace a built-in operator too.

    Example:
        >>> import numpy as np
        >>> from pyflame_rt import ops
        >>> from pyflame_rt.custom import CustomOpRegistry
        >>> op = register_custom_op("Swish", function=lambda x: x * ops.get_op("Sigmoid")(x))
        >>> op.execute([np.zeros(1, np.float32)])[0].numpy(), op.has_gradient()
        (array([0.], dtype=float32), True)
        >>> CustomOpRegistry.instance().unregister("Swish")
    """
    if "::" in name:
        name, domain = split_name(name, "")
    schema = OpSchema(name, domain, version, doc, function=function, kernel=kernel_fn, signature=signature)
    schema.shape_inference, schema.gradient = shape_inference, gradient
    if function is None:
        schema.outputs = _outputs(name, output_names, output_dtypes)
    if input_names is not None:
        schema.inputs = [Formal(n) for n in input_names]
    elif function is None and signature in ("", ARRAYS, BUFFERS):
        schema.inputs = [Formal("inputs", variadic=True)]
    return _register(schema, override)


def _outputs(op: str, names: Sequence[str], dtypes: Sequence[DType | None] | None) -> list[Formal]:
    kinds = [None] * len(names) if dtypes is None else dtypes
    if len(kinds) != len(names):
        raise InputError(f"custom operator {op}: {len(kinds)} output_dtypes for {len(names)} outputs")
    return [Formal(n, d) for n, d in zip(names, kinds, strict=True)]


def _register(schema: OpSchema, override: bool) -> CustomOp:
    at = f"custom operator {schema.name!r}"
    if not schema.name or not isinstance(schema.name, str):
        raise InputError(f"a custom operator needs a name, got {schema.name!r}")
    if not isinstance(schema.version, int) or isinstance(schema.version, bool) or schema.version < 1:
        raise InputError(f"{at}: a version is a whole number from 1, got {schema.version!r}")
    if (schema.function is None) == (schema.kernel is None):
        raise InputError(f"{at}: give either a function over operators or a Python kernel")
    if schema.signature not in ("", ARRAYS):
        _check_machine_code(schema, native_call(schema.kernel, schema.signature, at).dtypes, at)
    elif not callable(schema.function or schema.kernel):
        raise InputError(f"{at}: {schema.function or schema.kernel!r} cannot be called")
    elif is_machine_code(schema.kernel):
        raise InputError(f"{at}: state the signature= of machine code, such as 'float32(float32)' or 'buffers'")
    if schema.function is not None:
        _check_function(schema, schema.function, at)
    elif not schema.outputs:
        raise InputError(f"{at}: a kernel needs its outputs stated")
    if any(f.variadic for f in schema.inputs[:-1]):
        raise InputError(f"{at}: only the last input may be variadic")
    if schema.signature:
        _check_form(schema, at)
    return CustomOpRegistry.instance().register_op(schema, override=override, stacklevel=5)


def _check_function(schema: OpSchema, fn: Callable[..., Any], at: str) -> None:
    if schema.gradient is not None or schema.shape_inference is not None:
        raise InputError(f"{at}: gradient and shapes follow from the function; state them for kernels only")
    if schema.inputs or schema.outputs or schema.attributes:
        raise InputError(
            f"{at}: inputs, outputs and attributes are read from the function; state them for kernels only"
        )
    try:
        read_signature(fn, skip_first=False)
    except (TypeError, ValueError) as error:
        raise InputError(f"{at}: the parameters of {fn!r} cannot be read: {error}") from error


def _check_machine_code(schema: OpSchema, dtypes: Sequence[str], at: str) -> None:
    """Inputs and output of a function of elements are those of its signature."""
    if not dtypes:
        return
    *given, made = [DType.of(label) for label in dtypes]
    if schema.shape_inference is not None:
        raise InputError(f"{at}: the shape follows from the inputs of a function of elements; state no rule for it")
    if not schema.inputs:
        schema.inputs = [Formal(f"x{i}") for i in range(len(given))]
    if len(schema.inputs) != len(given) or len(schema.outputs) > 1:
        told = f"{len(schema.inputs)} inputs and {len(schema.outputs)} outputs"
        raise InputError(f"{at}: {told} were stated for the signature {schema.signature!r}")
    schema.outputs = schema.outputs or [Formal("Y")]
    for formal, dtype in zip((*schema.inputs, *schema.outputs), (*given, made), strict=True):
        if formal.dtype not in (None, dtype) or formal.optional or formal.variadic:
            raise InputError(f"{at}: {formal.name!r} is one {dtype.label} in the signature {schema.signature!r}")
    schema.inputs = [Formal(f.name, d) for f, d in zip(schema.inputs, given, strict=True)]
    schema.outputs = [Formal(schema.outputs[0].name, made)]


def _check_form(schema: OpSchema, at: str) -> None:
    """Kernels that write into buffers, and machine code, get no attributes."""
    if schema.function is not None:
        raise InputError(f"{at}: a signature is stated for kernels only")
    if schema.attributes:
        raise InputError(f"{at}: a kernel of signature {schema.signature!r} gets no attributes; make them inputs")
    schema.attributes = {}
    if schema.signature in (ARRAYS, BUFFERS) and schema.shape_inference is None:
        raise InputError(f"{at}: a kernel that writes into its outputs needs shape_inference=, which says how large")
    if any(f.optional for f in schema.inputs):
        raise InputError(f"{at}: a kernel of signature {schema.signature!r} has no optional inputs")
