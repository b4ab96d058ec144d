"""What a generated kernel computes, as frozen data; `emit` turns it into LLVM IR.

A `RowKernel` walks an outer index space row by row and runs its stages over the inner axis of each row. Expressions are
a DAG of `Expr`, built with `load`, `const`, `scalar`, `count`, `index`, `cast` and `apply`; a node used twice in a
stage is computed once (nodes are compared with `is`).

Kernel ABI: `void kernel(i8** bufs, i64* params, i64 begin, i64 end)`, where `bufs` holds the operands (inputs, then
outputs) and `params` is `[n, d_0..d_{r-1}, then per operand: its r outer strides and, when inner is 'strided', its
inner stride]`, strides in elements.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal, Protocol

from pyflame_rt.graph.cached import cached_property
from pyflame_rt.graph.records import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = [
    "FLOATS",
    "INTEGERS",
    "OPS",
    "Expr",
    "FillKernel",
    "GatherKernel",
    "Kernel",
    "Map",
    "Operand",
    "Reduce",
    "Reduction",
    "RowKernel",
    "Scalar",
    "SelfEmitted",
    "Stage",
    "Store",
    "TransposeKernel",
    "apply",
    "cast",
    "compute_type",
    "const",
    "count",
    "index",
    "itemsize",
    "load",
    "ordered",
    "roots_of",
    "row_params",
    "scalar",
    "shared",
    "structure_of",
    "walk",
]

FLOATS = ("float32", "float64")
INTEGERS = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")
NARROW = ("float16", "bfloat16")
_SIZES = {"bool": 1, "8": 1, "16": 2, "32": 4, "64": 8}

# Operator name -> (number of arguments, kinds of argument it takes, type of the result).
# Kinds: f(loat), i(nteger), b(ool).
OPS: dict[str, tuple[int, str, Literal["same", "bool", "int32"]]] = {
    **dict.fromkeys(("add", "sub", "mul", "div", "pow", "rem", "mod"), (2, "fi", "same")),
    **dict.fromkeys(("max", "min"), (2, "fib", "same")),
    **dict.fromkeys(("neg", "abs", "sign"), (1, "fi", "same")),
    **dict.fromkeys(
        ("sqrt", "rsqrt", "reciprocal", "exp", "log", "log2", "log1p", "expm1", "tanh", "erf", "decay"),
        (1, "f", "same"),
    ),
    **dict.fromkeys(("sigmoid", "sin", "cos", "floor", "ceil", "round", "trunc"), (1, "f", "same")),
    **dict.fromkeys(("tan", "asin", "acos", "atan", "sinh", "cosh", "asinh", "acosh", "atanh"), (1, "f", "same")),
    **dict.fromkeys(("eq", "ne", "lt", "le", "gt", "ge"), (2, "fib", "bool")),
    **dict.fromkeys(("isnan", "isinf"), (1, "f", "bool")),
    "nearest": (1, "f", "int32"),  # of numbers that 32 bits hold
    **dict.fromkeys(("and", "or", "xor"), (2, "ib", "same")),
    "not": (1, "ib", "same"),
    **dict.fromkeys(("shl", "shr"), (2, "i", "same")),
}
_LEAVES = ("load", "const", "scalar", "count", "index")

Inner = Literal["unit", "zero", "strided"]
ReduceKind = Literal["sum", "prod", "max", "min", "top"]


def itemsize(dtype: str) -> int:
    """Bytes of one stored element.

    Example:
        >>> itemsize("bfloat16"), itemsize("bool"), itemsize("int64")
        (2, 1, 8)
    """
    return _SIZES[dtype.lstrip("bfloatuin") if dtype != "bool" else dtype]


def compute_type(dtype: str) -> str:
    """The type in which values of a stored type are computed: narrow floats become float32."""
    return "float32" if dtype in NARROW else dtype


def _kind(dtype: str) -> str:
    return "f" if dtype in FLOATS else "i" if dtype in INTEGERS else "b"


@dataclass(frozen=True, eq=False)
class Expr:
    """A node of an expression: an operator (see `OPS`, and where, cast) over arguments, or a leaf with a value."""

    op: str
    dtype: str
    args: tuple[Expr, ...] = ()
    value: int | float | bool | str | None = None


def load(operand: int, dtype: str) -> Expr:
    """The element of an operand (numbered inputs, then outputs); `dtype` is the operand's stored type.

    An output may be loaded in a stage after the one that stored it.

    Example:
        >>> load(0, "bfloat16").dtype
        'float32'
    """
    return Expr("load", compute_type(dtype), value=operand)


def const(value: int | float | bool, dtype: str = "float32") -> Expr:
    """A constant, part of the code."""
    python = bool if dtype == "bool" else int if dtype in INTEGERS else float
    return Expr("const", compute_type(dtype), value=python(value))


def scalar(name: str, dtype: str = "float32") -> Expr:
    """The row scalar of that name, made by an earlier `Reduce` or `Scalar` stage."""
    return Expr("scalar", dtype, value=name)


def count(dtype: str = "float32") -> Expr:
    """The number n of inner elements, as `dtype`."""
    return Expr("count", dtype)


def index() -> Expr:
    """The position of the element on the inner axis (int64); of the element itself in a flat kernel."""
    return Expr("index", "int64")


def cast(value: Expr, dtype: str) -> Expr:
    """Convert as C does; to float16 or bfloat16 means rounding to it, the value stays float32.

    Example:
        >>> cast(load(0, "int32"), "float16").dtype
        'float32'
    """
    return Expr("cast", compute_type(dtype), (value,), dtype)


def apply(op: str, *args: Expr | float | bool) -> Expr:
    """An operator over expressions; Python numbers take the type of the first expression (for where: of a branch).

    Example:
        >>> x = load(0, "float32")
        >>> apply("max", apply("mul", x, 2), 0).dtype, apply("lt", x, 0).dtype
        ('float32', 'bool')
    """
    values = args[1:] if op == "where" else args
    dtype = next((a.dtype for a in values if isinstance(a, Expr)), "float32")
    nodes = tuple(a if isinstance(a, Expr) else const(a, dtype) for a in values)
    if op == "where":
        condition = args[0]
        if len(args) != 3 or not isinstance(condition, Expr) or condition.dtype != "bool":
            raise ValueError("where takes a bool expression and two values")
        _same_types(op, nodes, "fib")
        return Expr(op, dtype, (condition, *nodes))
    if op not in OPS:
        raise ValueError(f"no operator {op!r} in generated kernels; there are: {', '.join(OPS)}, where, cast")
    arity, kinds, result = OPS[op]
    if len(nodes) != arity:
        raise ValueError(f"{op} takes {arity} arguments, got {len(nodes)}")
    _same_types(op, nodes, kinds)
    return Expr(op, dtype if result == "same" else result, nodes)


def _same_types(op: str, nodes: Sequence[Expr], kinds: str) -> None:
    types = {node.dtype for node in nodes}
    if len(types) != 1 or _kind(types.copy().pop()) not in kinds:
        raise ValueError(f"{op} takes equal types of kind {'/'.join(kinds)} (float, int, bool), got {sorted(types)}")


@dataclass(frozen=True)
class Operand:
    """A buffer: stored type, and how it advances along the inner axis ('zero': one element for the whole row)."""

    dtype: str
    inner: Inner = "unit"


@dataclass(frozen=True)
class Store:
    """Element of an output operand := value (converted to the stored type only from float32 to a narrow float)."""

    operand: int
    value: Expr


@dataclass(frozen=True)
class Reduction:
    """Row scalar `name` := the fold of `value` (not bool) over the row, in its type; of nothing, the identity."""

    name: str
    kind: ReduceKind
    value: Expr


@dataclass(frozen=True)
class Map:
    """One pass over the row that stores."""

    stores: tuple[Store, ...]


@dataclass(frozen=True)
class Reduce:
    """One pass over the row that folds, and may store what it computed on the way."""

    reductions: tuple[Reduction, ...]
    stores: tuple[Store, ...] = ()


@dataclass(frozen=True)
class Scalar:
    """Row scalar `name` := an expression over row scalars, constants, n and loads of 'zero' operands.

    `store` names a 'zero' output to keep it in.
    """

    name: str
    value: Expr
    store: int | None = None


Stage = Map | Reduce | Scalar


@dataclass(frozen=True)
class RowKernel:
    """Stages over every row of an outer space of rank `outer_rank` (0 to 6).

    Rank 0 is a flat loop over the elements [begin, end) with `Map` stages only. `fast` allows a*b+c to be rounded once.
    """

    outer_rank: int
    inputs: tuple[Operand, ...]
    outputs: tuple[Operand, ...]
    stages: tuple[Stage, ...]
    fast: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.outer_rank <= 6:
            raise ValueError(f"outer_rank is 0 to 6, got {self.outer_rank}")
        if self.outer_rank == 0 and not all(isinstance(stage, Map) for stage in self.stages):
            raise ValueError("a flat kernel (outer_rank 0) has Map stages only")
        _check_stages(self)

    @property
    def operands(self) -> tuple[Operand, ...]:
        """Inputs, then outputs: the order of `bufs`."""
        return (*self.inputs, *self.outputs)

    @cached_property
    def key(self) -> str:
        """A text that is equal for kernels of equal structure: what compiled code is kept under."""
        return _structure(self)


@dataclass(frozen=True)
class TransposeKernel:
    """Blocked transpose of 4-byte elements: dst[o.., i, j] = src[o.., i, j], src contiguous along i and dst along j.

    bufs: src, dst. params: [n_i, n_j, src stride of j, dst stride of i, d_0.., src outer strides, dst outer strides].
    rows: product of the outer dims x ceil(n_i / BLOCK).
    """

    BLOCK: ClassVar[int] = 16  # a cache line of the source

    outer_rank: int = 0

    @property
    def key(self) -> str:
        """Equal for kernels of equal structure."""
        return f"transpose{self.outer_rank}"


@dataclass(frozen=True)
class GatherKernel:
    """dst[o, k, :n] = src[o, indices[k], :n]; negative indices count from the end.

    bufs: src, indices, dst, flag (int64). params: [n, number of indices, size of the axis, src stride of o, src stride
    of the axis]; dst is contiguous. rows: o x number of indices. An index out of range writes zeros and sets flag to
    1 + the row. `single` is for n = 1: elements are moved without a call.
    """

    dtype: str
    index_dtype: Literal["int32", "int64"] = "int64"
    single: bool = False

    @property
    def key(self) -> str:
        """Equal for kernels of equal structure."""
        return f"gather{itemsize(self.dtype)}{self.index_dtype}{'one' if self.single else ''}"


@dataclass(frozen=True)
class FillKernel:
    """dst[begin:end] = the element at src[0]. bufs: src, dst; no params; rows are elements."""

    dtype: str

    @property
    def key(self) -> str:
        """Equal for kernels of equal structure."""
        return f"fill{itemsize(self.dtype)}"


class SelfEmitted(Protocol):
    """A kernel that writes its own module."""

    @property
    def key(self) -> str:
        """Equal for kernels of equal structure."""
        ...

    def emit(self, name: str) -> str:
        """The IR module, its function called `name`."""
        ...


Kernel = RowKernel | TransposeKernel | GatherKernel | FillKernel | SelfEmitted


def row_params(kernel: RowKernel, n: int, dims: Sequence[int], strides: Sequence[Sequence[int]]) -> list[int]:
    """The params of a row kernel; `strides` gives per operand its outer strides, then (when 'strided') its inner one.

    Example:
        >>> x, y = Operand("float32"), Operand("float32", "strided")
        >>> k = RowKernel(1, (x,), (y,), (Map((Store(1, load(0, "float32")),)),))
        >>> row_params(k, 4, [3], [[4], [1, 3]])
        [4, 3, 4, 1, 3]
    """
    if len(dims) != kernel.outer_rank or len(strides) != len(kernel.operands):
        raise ValueError(
            f"{kernel.outer_rank} dims and {len(kernel.operands)} lists of strides are needed, got {dims}, {strides}"
        )
    for position, (operand, given) in enumerate(zip(kernel.operands, strides, strict=True)):
        if len(given) != kernel.outer_rank + (operand.inner == "strided"):
            raise ValueError(f"operand {position} ({operand}): wrong number of strides {given}")
    return [n, *dims, *(s for given in strides for s in given)]


def walk(roots: Sequence[Expr]) -> Iterator[Expr]:
    """Every node once, arguments before users."""
    seen: set[int] = set()
    stack = [(root, False) for root in reversed(roots)]
    while stack:
        node, ready = stack.pop()
        if ready:
            yield node
        elif id(node) not in seen:
            seen.add(id(node))
            stack.append((node, True))
            stack.extend((arg, False) for arg in reversed(node.args))


def roots_of(stage: Stage) -> list[Expr]:
    """The expressions a stage evaluates: stores, then reductions."""
    match stage:
        case Map(stores):
            return [s.value for s in stores]
        case Reduce(reductions, stores):
            return [*(s.value for s in stores), *(r.value for r in reductions)]
        case Scalar(_, value):
            return [value]


def _check_stages(kernel: RowKernel) -> None:
    known: dict[str, str] = {}
    for position, stage in enumerate(kernel.stages):
        where = f"stage {position} ({type(stage).__name__})"
        for node in walk(roots_of(stage)):
            _check_leaf(where, kernel, node, known, isinstance(stage, Scalar))
        match stage:
            case Map(stores) | Reduce(_, stores):
                for store in stores:
                    _check_store(where, kernel, store.operand, store.value, zero=False)
            case Scalar(name, value, store):
                known[name] = value.dtype
                if store is not None:
                    _check_store(where, kernel, store, value, zero=True)
        if isinstance(stage, Reduce):
            if any(r.value.dtype == "bool" for r in stage.reductions):
                raise ValueError(f"{where}: bool values are reduced as integers: cast them")
            known |= {r.name: r.value.dtype for r in stage.reductions}


def _check_leaf(where: str, kernel: RowKernel, node: Expr, known: dict[str, str], in_scalar: bool) -> None:
    if node.op == "load":
        operand = (
            kernel.operands[node.value]
            if isinstance(node.value, int) and 0 <= node.value < len(kernel.operands)
            else None
        )
        if operand is None or compute_type(operand.dtype) != node.dtype:
            raise ValueError(f"{where}: load({node.value}) as {node.dtype}, the operand is {operand}")
        if in_scalar and operand.inner != "zero":
            raise ValueError(f"{where}: a scalar may load 'zero' operands only, operand {node.value} is {operand}")
    if node.op == "scalar" and known.get(str(node.value)) != node.dtype:
        raise ValueError(f"{where}: row scalar {node.value!r} as {node.dtype}; known here: {known}")
    if in_scalar and node.op == "index":
        raise ValueError(f"{where}: a scalar has no index")
    if kernel.outer_rank == 0 and node.op in ("count", "scalar"):
        raise ValueError(f"{where}: a flat kernel has no {node.op}")


def _check_store(where: str, kernel: RowKernel, operand: int, value: Expr, *, zero: bool) -> None:
    if not len(kernel.inputs) <= operand < len(kernel.operands):
        raise ValueError(f"{where}: operand {operand} is not an output")
    target = kernel.operands[operand]
    if compute_type(target.dtype) != value.dtype or (target.inner == "zero") != zero:
        raise ValueError(f"{where}: cannot store {value.dtype} into operand {operand} ({target})")


def ordered(root: Expr) -> Expr:
    """The same expression with the arguments of sums and products in one order, in whichever it was written.

    Example:
        >>> x, y = load(0, "float32"), load(1, "float32")
        >>> structure_of(ordered(apply("add", y, x))) == structure_of(apply("add", x, y))
        True
    """
    made: dict[int, Expr] = {}
    depths: dict[int, int] = {}  # of what was made, downwards: the deepest first, then by structure
    for node in walk([root]):
        args = tuple(made[id(a)] for a in node.args)
        depth = min((depths[id(a)] for a in args), default=0) - 1
        if node.op in ("add", "mul"):
            equal = len({depths[id(a)] for a in args}) < len(args)
            args = tuple(sorted(args, key=lambda a: (depths[id(a)], structure_of(a) if equal else "")))
        same = all(a is b for a, b in zip(args, node.args, strict=True))
        new = made[id(node)] = node if same else Expr(node.op, node.dtype, args, node.value)
        depths[id(new)] = depth
    return made[id(root)]


def shared(root: Expr) -> Expr:
    """The same expression with parts of equal structure computed once.

    Example:
        >>> x, y = load(0, "float32"), load(0, "float32")
        >>> structure_of(shared(apply("mul", x, y)))
        'load/float32/0();mul/float32/None(0,0)'
    """
    made: dict[int, Expr] = {}
    known: dict[tuple[object, ...], Expr] = {}
    for node in walk([root]):
        args = tuple(made[id(a)] for a in node.args)
        key = (node.op, node.dtype, type(node.value), node.value, *map(id, args))
        made[id(node)] = known.setdefault(key, Expr(node.op, node.dtype, args, node.value))
    return made[id(root)]


def structure_of(root: Expr) -> str:
    """A text equal for expressions of equal structure.

    Example:
        >>> structure_of(apply("add", load(0, "float32"), 1.0))
        'load/float32/0();const/float32/1.0();add/float32/None(0,1)'
    """
    names: dict[int, int] = {}
    parts = []
    for node in walk([root]):
        names[id(node)] = len(names)
        parts.append(f"{node.op}/{node.dtype}/{node.value!r}({','.join(str(names[id(a)]) for a in node.args)})")
    return ";".join(parts)


def _structure(kernel: RowKernel) -> str:
    parts = [f"r{kernel.outer_rank}{'f' if kernel.fast else ''}"]
    parts.append(
        ",".join(f"{o.dtype}:{o.inner}" for o in kernel.inputs)
        + ">"
        + ",".join(f"{o.dtype}:{o.inner}" for o in kernel.outputs)
    )
    for stage in kernel.stages:
        names: dict[int, int] = {}
        for node in walk(roots_of(stage)):
            names[id(node)] = len(names)
            parts.append(f"{node.op}/{node.dtype}/{node.value!r}({','.join(str(names[id(a)]) for a in node.args)})")
        parts.append(_stage_text(stage, names))
    return ";".join(parts)


def _stage_text(stage: Stage, names: dict[int, int]) -> str:
    match stage:
        case Map(stores):
            return "map " + ",".join(f"{s.operand}={names[id(s.value)]}" for s in stores)
        case Reduce(reductions, stores):
            folds = ",".join(f"{r.name}={r.kind} {names[id(r.value)]}" for r in reductions)
            return f"reduce {folds} " + ",".join(f"{s.operand}={names[id(s.value)]}" for s in stores)
        case Scalar(name, value, store):
            return f"scalar {name}={names[id(value)]} {store}"
