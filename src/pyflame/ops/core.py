"""What every function on tensors is written with: operands, promotion, recording."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from functools import wraps
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import numpy as np

from pyflame.dtypes import DType, WrongTypeError, category, get_default_dtype, result_dtype, scalar_dtype, to_dtype
from pyflame.lazy import (
    MAX_MEMORY,
    Rule,
    Spec,
    Val,
    apply,
    apply_many,
    apply_rule,
    const,
    find_rule,
    leaf,
    modes,
    rule_for,
    unusual,
)  # fmt: skip
from pyflame_rt.graph.errors import ShapeMismatchError
from pyflame_rt.ops.core.registry import Op, get_op
from pyflame_rt.ops.onnx.cast import Cast
from pyflame_rt.ops.onnx.logic import Equal, Not

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyflame.storage import Alias
    from pyflame.tensors import Tensor

P = ParamSpec("P")
R = TypeVar("R")

__all__ = ["Handle", "as_tensor", "as_type", "call", "call_many", "cast", "const", "operands", "wrap"]


class _Slots:
    """What a handle holds."""

    __slots__ = ("__weakref__", "_alias", "_value")

    _value: Val
    _alias: Alias | None


class Handle(_Slots):
    """What tensors are to the functions: something that refers to a value.

    A tensor that shares a storage (`pyflame.storage`) has no value while that is out of date; reading it gets one.
    """

    __slots__ = ()

    if not TYPE_CHECKING:  # type checkers would take it that there is every attribute

        def __getattr__(self, name: str) -> Any:
            if name == "_value" and self._alias is not None:
                return self._alias.read(self)
            if name == "_alias":
                return None  # not quite made yet
            if name.startswith("_"):  # asked for by protocols, often
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}", name=name)
            from pyflame.suggestions import missing

            raise missing("Tensor", name, dir(type(self)))

    def _empty(self, held: Callable[[Any], Val] = _Slots.__dict__["_value"].__get__) -> None:
        """The value is out of date."""
        try:
            value = held(self)  # as it is: this regenerates nothing
        except AttributeError:  # out of date before, or not quite made
            return
        value.handles -= 1
        del self._value

    def __del__(self, held: Callable[[Any], Val] = _Slots.__dict__["_value"].__get__) -> None:
        try:
            value = held(self)
        except AttributeError:
            return
        value.handles -= 1


_tensor_class: list[Any] = [Handle]


def wrap(value: Val) -> Tensor:
    """A tensor that refers to a value."""
    tensor = _new(_tensor_class[0])
    tensor._value = value
    tensor._alias = None
    value.handles += 1
    return tensor


_new = object.__new__
_ops: dict[str, Op] = {}


def op_named(name: str) -> Op:
    """An operator by name, ``pyflame::`` before those that ONNX lacks."""
    found = _ops.get(name)
    if found is None:
        domain, _, bare = name.rpartition("::")
        found = _ops[name] = get_op(bare, domain)
    return found


def call(op: Op | str, *inputs: Any, **attributes: Any) -> Tensor:
    """Record an operator of one output.

    Args:
        op: the operator, or the name of one that is not ours.
        inputs: tensors; tuples of ints for sizes, axes and the like; None for what is left out.
        attributes: of the operator; lists as tuples.
    """
    values = tuple([_input(v) for v in inputs])
    if modes.tracer is not None:
        modes.tracer.saw(inputs)
    return wrap(
        apply(op_named(op) if isinstance(op, str) else op, values, tuple(attributes.items()) if attributes else ())
    )


def quick(op: Op, a: Any, b: Any) -> Tensor | None:
    """An operator on two tensors of one floating-point type, or on one and a number; None for other operands."""
    if not isinstance(a, Handle) or (unusual and modes.tracer is not None):
        return None
    left = a._value
    spec = left.spec
    if isinstance(b, Handle):
        right = b._value
        if not spec.real or right.spec.dtype is not spec.dtype:
            return None
        rule = find_rule((op, (), spec, right.spec)) or rule_for(op, (), (spec, right.spec))
    elif spec.real and (type(b) is float or type(b) is int):
        rule, right = _numbers.get((op, spec, b)) or _with_number(op, spec, b)
    else:
        return None
    return wrap(apply_rule(rule, (left, right)))


_numbers: dict[Any, tuple[Rule, Val]] = {}


def _with_number(op: Op, spec: Spec, number: float) -> tuple[Rule, Val]:
    """The rule for a tensor and a number, and the number as a runtime input of the graph."""
    value = leaf(np.array(number, spec.numpy), spec.dtype)
    made = rule_for(op, (), (spec, value.spec)), value
    if number:  # 0.0 is -0.0 to a dict
        if len(_numbers) > 64:
            _numbers.clear()
        _numbers[op, spec, number] = made
    return made


def remembered(function: Callable[P, R]) -> Callable[P, R]:
    """Remember the one operator that a function of a floating-point tensor records, by its type and the settings."""
    known: dict[Any, tuple[Rule, tuple[Val | None, ...]]] = {}
    plain: Callable[..., Any] = function

    @wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        x = args[0] if args and not kwargs and (not unusual or modes.tracer is None) else None
        if not isinstance(x, Handle):
            return plain(*args, **kwargs)
        v = x._value
        key = v.spec if len(args) == 1 else (v.spec, *args[1:], *map(type, args[1:]))
        try:
            found = known.get(key)
        except TypeError:
            return plain(*args)
        if found is not None:
            rule, rest = found
            return wrap(apply_rule(rule, (v, *rest)))  # type: ignore[return-value]
        result = plain(*args)
        expr = result._value.expr
        rest = expr.inputs[1:] if expr is not None else ()
        if v.spec.real and v.spec.known is None and expr is not None and _is_one_rule(result, v):
            if len(known) > MAX_MEMORY // 10:
                known.clear()
            known[key] = (expr.rule, rest)
        return result

    return run


def _is_one_rule(result: Any, v: Val) -> bool:
    """Whether a tensor is what one operator gives for a value and constants."""
    expr = result._value.expr
    rest = expr.inputs[1:]
    if result._alias is not None or not expr.rule.single or expr.function is not None or expr.inputs[:1] != (v,):
        return False
    return all(other is None or other.spec.known is not None for other in rest)


def call_many(op: Op | str, *inputs: Any, **attributes: Any) -> list[Tensor]:
    """Record an operator of several outputs."""
    values = tuple([_input(v) for v in inputs])
    if modes.tracer is not None:
        modes.tracer.saw(inputs)
    given = tuple(attributes.items()) if attributes else ()
    return [wrap(v) for v in apply_many(op_named(op) if isinstance(op, str) else op, values, given)]


def _input(v: Any) -> Val | None:
    if isinstance(v, Handle):
        return v._value
    if v is None or isinstance(v, Val):
        return v
    return const(v)


def as_tensor(value: Any, dtype: DType | None = None) -> Tensor:
    """A tensor from a tensor, an array or a number."""
    if isinstance(value, Handle):
        return value if dtype is None else cast(value, dtype)  # type: ignore[return-value]
    from pyflame.ops.creation import tensor

    return tensor(value, dtype=dtype) if not is_scalar(value) else scalar(value, dtype or scalar_dtype(value))


def is_scalar(value: object) -> bool:
    """True for Python and NumPy numbers, which take the type of what they meet."""
    return isinstance(value, (int, float, complex, np.generic))


def scalar(value: Any, dtype: DType) -> Tensor:
    """A number as a runtime input of the graph; an integer that a small type cannot hold wraps round, as torch's do."""
    try:
        if isinstance(value, int) and dtype.numpy.kind in "iu":
            return wrap(leaf(np.array(value, np.int64).astype(dtype.numpy), dtype))
        return wrap(leaf(np.array(value, dtype.numpy), dtype))
    except OverflowError:
        raise ValueError(f"{str(value)[:40]} is beyond what {dtype} and int64 hold") from None


def cast(x: Any, dtype: DType) -> Tensor:
    """The tensor in another element type."""
    have = x._value.spec.dtype
    if have is dtype:
        return x
    if have.is_complex and not dtype.is_complex and dtype is not DType.bool:
        raise WrongTypeError(
            f"{have.name} does not become {dtype.name} by itself; take x.real, x.imag or x.abs(), or pf.view_as_real(x)"
        )
    if dtype is DType.bool and have.is_inexact:
        return call(Not, call(Equal, x, scalar(0, have)))
    return call(Cast, x, to=dtype.rt.onnx)


def as_type(x: Any, dtype: DType) -> Tensor:
    """The tensor in a type that was asked for by name: complex numbers lose their imaginary part, with a warning."""
    have = x._value.spec.dtype
    if not have.is_complex or dtype.is_complex or dtype is DType.bool:
        return cast(x, dtype)
    warnings.warn("Casting complex values to real discards the imaginary part; take x.real to say so", stacklevel=3)
    return call(Cast, x, to=dtype.rt.onnx)


def operands(*values: Any, floating: bool = False) -> list[Tensor]:
    """Tensors of one element type: numbers are weak, tensors are promoted.

    Args:
        values: tensors, arrays, numbers.
        floating: integers become floating point.
    """
    dtype = common_dtype(values)
    if floating and not dtype.is_inexact:
        dtype = get_default_dtype()
    return [convert(v, dtype) for v in values]


def common_dtype(values: Iterable[Any]) -> DType:
    """The type in which operands meet."""
    tensors: list[tuple[DType, bool]] = []
    scalars: list[object] = []
    first: DType | None = None
    mixed = False
    for v in values:
        if isinstance(v, Handle):
            spec = v._value.spec
            tensors.append((spec.dtype, spec.shape != ()))
        elif is_scalar(v):
            scalars.append(v)
            continue
        else:
            array = _read(v)
            tensors.append((to_dtype(array.dtype), array.ndim > 0))
        mixed = mixed or (first is not None and tensors[-1][0] is not first)
        first = tensors[-1][0]
    if first is not None and not mixed:
        if first.is_complex or not scalars:
            return first
        if first.is_floating_point and not any(isinstance(s, (complex, np.complexfloating)) for s in scalars):
            return first
        if all(category(scalar_dtype(s)) <= category(first) for s in scalars):
            return first
    return result_dtype(tensors, scalars)


def convert(v: Any, dtype: DType) -> Tensor:
    """An operand in the type that was agreed on."""
    if isinstance(v, Handle):
        return v if v._value.spec.dtype is dtype else cast(v, dtype)  # type: ignore[return-value]
    if is_scalar(v):
        return scalar(v, dtype)
    return cast(as_tensor(v), dtype)


def same_type(name: str, x: Tensor, source: Any) -> None:
    """Refuse to put elements of one type among those of another; numbers take the type of the tensor."""
    if isinstance(source, Handle) and source._value.spec.dtype is not x._value.spec.dtype:
        have, want = source._value.spec.dtype.name, x._value.spec.dtype.name
        raise WrongTypeError(f"{name}: elements of {have} into a tensor of {want}; convert them, as in x.to(pf.{want})")


def real_only(name: str, x: Any) -> Tensor:
    """The tensor, refused where it is complex."""
    x = as_tensor(x)
    if x._value.spec.dtype.is_complex:
        raise WrongTypeError(
            f"{name} takes no complex numbers; compute with pf.view_as_real(x), x.real, x.imag or x.abs()"
        )
    return x


def floating(x: Any) -> Tensor:
    """The tensor, integers as the default floating-point type."""
    x = as_tensor(x)
    return x if x._value.spec.dtype.is_inexact else cast(x, get_default_dtype())


def unary(op: Op, x: Any) -> Tensor:
    """A function of floating-point numbers, element by element."""
    return call(op, floating(x))


_HALF, _BRAIN, _SINGLE = DType.float16, DType.bfloat16, DType.float32


def rounded_once(function: Callable[P, R]) -> Callable[P, R]:
    """Let a composition compute operands of half the bits in float32 and round its results once, as torch does.

    Operands of other types are none of its business, and so are calls that name the type of the result by ``dtype=``.
    """

    @wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        for v in (*args, *kwargs.values()) if kwargs else args:
            if isinstance(v, Handle):
                kind = v._value.spec.dtype
                if kind is _HALF or kind is _BRAIN:
                    return _in_single(function, args, kwargs)
            elif type(v) in (list, tuple) and any(isinstance(w, Handle) for w in v):  # type: ignore[union-attr]
                return _in_single(function, args, kwargs)
        return function(*args, **kwargs)

    return run


def _in_single(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    given = [v for part in (*args, *kwargs.values()) for v in (part if type(part) in (list, tuple) else [part])]
    tensors = [v for v in given if isinstance(v, Handle) and v._value.spec.dtype.is_floating_point]
    target = common_dtype(tensors) if tensors else _SINGLE
    if target not in (_HALF, _BRAIN) or kwargs.get("dtype") is not None:
        return function(*args, **kwargs)
    result = function(*_retyped(args, target, _SINGLE), **{k: _retyped(v, target, _SINGLE) for k, v in kwargs.items()})
    return _retyped(result, _SINGLE, target)


def _retyped(value: Any, have: DType, want: DType) -> Any:
    """Tensors of one type in another, also within lists and tuples."""
    if isinstance(value, Handle):
        return cast(value, want) if value._value.spec.dtype is have else value
    return type(value)(_retyped(v, have, want) for v in value) if type(value) in (list, tuple) else value


def axis_of(dim: Any, rank: int) -> int:
    """A dimension as a number from 0 on."""
    if not isinstance(dim, (int, np.integer)) or isinstance(dim, bool):
        raise TypeError(f"a dimension is an int, got {type(dim).__name__} ({dim!r})")
    size = max(rank, 1)
    if not -size <= dim < size:
        raise DimensionError(f"dimension {dim} is out of range for a tensor with {rank} dimensions")
    return int(dim) + size if dim < 0 else int(dim)


class DimensionError(ShapeMismatchError, IndexError):
    """A dimension that the tensor does not have."""


def axes_of(dim: Any, rank: int) -> tuple[int, ...]:
    """Dimensions as numbers from 0 on; all of them for None."""
    if dim is None:
        return tuple(range(rank))
    if isinstance(dim, (int, np.integer)):
        return (axis_of(dim, rank),) if rank else _checked_none(dim)
    listed = tuple(axis_of(d, rank) for d in dim)
    if len(set(listed)) != len(listed):
        raise ShapeMismatchError(f"dimensions {tuple(dim)} name one dimension twice")
    if not rank:
        return ()
    return listed or tuple(range(rank))


def _checked_none(dim: Any) -> tuple[int, ...]:
    axis_of(dim, 0)
    return ()


def _read(value: Any) -> np.ndarray[Any, Any]:
    """An operand that is no tensor, as an array."""
    try:
        return np.asarray(value)
    except (ValueError, RecursionError):
        raise ValueError(f"{type(value).__name__} does not make a tensor: its rows differ in length") from None


def sizes_of(shape: Sequence[Any]) -> tuple[int, ...]:
    """Sizes from ``f(2, 3)``, ``f([2, 3])`` or ``f([[2, 3]])``."""
    given: Any = shape
    for _ in range(2):
        if len(given) != 1 or isinstance(given[0], (int, str, bytes, Handle)) or not isinstance(given[0], Iterable):
            break
        given = tuple(given[0])
    sizes = []
    for size in given:
        if isinstance(size, Handle):
            size = size.item()  # type: ignore[attr-defined]
        if not isinstance(size, (int, np.integer)) or isinstance(size, bool):
            raise TypeError(f"a size is an int, got {type(size).__name__} in {tuple(given)!r}")
        sizes.append(int(size))
    return tuple(sizes)


def dim_argument(dim: Any, axis: Any) -> Any:
    """``dim=``, or ``axis=`` as NumPy calls it."""
    if axis is not None:
        if dim is not None:
            raise TypeError("give dim or axis, not both")
        return axis
    return dim


__all__ += [
    "DimensionError",
    "Val",
    "axes_of",
    "axis_of",
    "floating",
    "is_scalar",
    "quick",
    "remembered",
    "scalar",
    "unary",
]
__all__ += ["common_dtype", "convert", "dim_argument", "op_named", "rounded_once", "sizes_of"]
__all__ += ["WrongTypeError", "real_only", "same_type"]
