"""A writer of LLVM IR text: blocks, values, and vectors with operators.

Text is written directly because building it through objects costs several times what compiling it does.
"""

from __future__ import annotations

import struct
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyflame_rt.backends.cpu.jit.target import Host

__all__ = ["Brevity", "Builder", "Lanes", "V", "briefly", "float_literal"]

Number = int | float
_INTRINSIC_SUFFIX = {"float": "f32", "double": "f64", "half": "f16", "ptr": "p0"}
_BITS = {"float": 32, "double": 64, "half": 16}


def float_literal(value: float) -> str:
    """The exact spelling of a float constant (a float32 constant must be exact in float32).

    Example:
        >>> float_literal(1.0)
        '0x3FF0000000000000'
    """
    return f"0x{struct.unpack('<Q', struct.pack('<d', value))[0]:016X}"


def round_to_single(value: float) -> float:
    """The float32 nearest to a Python float (overflow gives infinity)."""
    try:
        return struct.unpack("<f", struct.pack("<f", value))[0]
    except OverflowError:
        return float("inf") if value > 0 else float("-inf")


class Brevity:
    """What became of the wish for short code; ``heeded`` when some was written that would else be longer."""

    heeded = False


_brevity: ContextVar[Brevity | None] = ContextVar("brevity", default=None)


@contextmanager
def briefly() -> Iterator[Brevity]:
    """Code written inside is meant to be compiled soon, and to run seldom: it computes the same in fewer lines."""
    brevity = Brevity()
    token = _brevity.set(brevity)
    try:
        yield brevity
    finally:
        _brevity.reset(token)


class Builder:
    """Collects the text of one module; `op` appends an instruction to the current block."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self.block = "entry"
        self._lines: list[str] = []
        self._phis: dict[str, int] = {}  # where each stands
        self._names = 0
        self._declared: dict[str, str] = {}
        self._functions: list[str] = []
        self._brevity = _brevity.get()

    @property
    def brief(self) -> bool:
        """Whether to write short code where there is a longer and faster form; ask only there."""
        if self._brevity is not None:
            self._brevity.heeded = True
        return self._brevity is not None

    def op(self, text: str) -> str:
        """Append an instruction with a result; its name is returned."""
        self._names += 1
        name = f"%v{self._names}"
        self._lines.append(f"  {name} = {text}")
        return name

    def do(self, text: str) -> None:
        """Append an instruction without a result."""
        self._lines.append(f"  {text}")

    def label(self, hint: str) -> str:
        """A fresh block name."""
        self._names += 1
        return f"{hint}{self._names}"

    def place(self, label: str) -> None:
        """Start a block."""
        self._lines.append(f"{label}:")
        self.block = label

    def jump(self, label: str) -> None:
        """End the block: go to `label`."""
        self.do(f"br label %{label}")

    def branch(self, condition: str, yes: str, no: str) -> None:
        """End the block: go to one of two labels."""
        self.do(f"br i1 {condition}, label %{yes}, label %{no}")

    def phi(self, kind: str, *incoming: tuple[str, str]) -> str:
        """A value chosen by the block control came from: (value, block) pairs; complete it with `add_incoming`."""
        pairs = ", ".join(f"[ {value}, %{block} ]" for value, block in incoming)
        name = self.op(f"phi {kind} {pairs}")
        self._phis[name] = len(self._lines) - 1
        return name

    def add_incoming(self, phi: str, value: str, block: str) -> None:
        """Give a phi of a loop the value that comes round."""
        self._lines[self._phis[phi]] += f", [ {value}, %{block} ]"

    def call(self, result: str, name: str, args: Sequence[tuple[str, str]]) -> str:
        """Call an external function or an intrinsic, declaring it once; arguments are (type, value)."""
        self.declare(result, name, [kind for kind, _ in args])
        text = f"call {result} @{name}({', '.join(f'{kind} {value}' for kind, value in args)})"
        if result != "void":
            return self.op(text)
        self.do(text)
        return ""

    def declare(self, result: str, name: str, kinds: Sequence[str]) -> None:
        """Declare a function of another module."""
        self._declared[name] = f"declare {result} @{name}({', '.join(kinds)})"

    def integer(self, text: str) -> str:
        """An i64 instruction, written `add a, b`."""
        operation, _, rest = text.partition(" ")
        return self.op(f"{operation} i64 {rest}")

    def load_i64(self, pointer: str, position: int) -> str:
        """The i64 at a position of an array."""
        return self.op(f"load i64, ptr {self.element('i64', pointer, str(position))}")

    def element(self, kind: str, pointer: str, position: str) -> str:
        """Address of an element."""
        return self.op(f"getelementptr {kind}, ptr {pointer}, i64 {position}")

    def begin(self) -> None:
        """Start the body of a function."""
        self._lines, self._phis = ["entry:"], {}
        self.block = "entry"

    def end(self, signature: str, attributes: str = "nounwind") -> None:
        """Finish a function: `signature` is `result @name(args)`."""
        if self.host.big_vectors:
            attributes += ' "prefer-vector-width"="512" "min-legal-vector-width"="512"'
        self._functions.append(f"define {signature} {attributes} {{\n" + "\n".join(self._lines) + "\n}")

    def helper(self, name: str) -> Builder | None:
        """A builder for an internal function `name` of this module, or None when it exists; finish it with `adopt`."""
        if name in self._declared:
            return None
        self._declared[name] = ""
        inner = Builder(self.host)
        inner._declared = self._declared
        inner.begin()
        return inner

    def adopt(self, inner: Builder) -> None:
        """Take the functions of a helper builder into this module."""
        self._functions = inner._functions + self._functions

    def text(self) -> str:
        """The module."""
        declared = [line for line in self._declared.values() if line]
        return "\n".join([*declared, *self._functions]) + "\n"


class V:
    """A value of one lane or of several; operators emit instructions (signed for integers)."""

    __slots__ = ("at", "elem", "name")

    def __init__(self, at: Lanes, elem: str, name: str) -> None:
        self.at, self.elem, self.name = at, elem, name

    @property
    def kind(self) -> str:
        """Its LLVM type."""
        return self.at.type(self.elem)

    @property
    def is_float(self) -> bool:
        """Whether lanes are floating-point."""
        return self.elem in ("float", "double", "half")

    def _bin(self, operation: str, other: V | Number) -> V:
        prefix = "f" if self.is_float and operation in ("add", "sub", "mul", "div", "rem") else ""
        return self.at.bin(prefix + operation, self, other)

    def __add__(self, other: V | Number) -> V:
        return self._bin("add", other)

    def __sub__(self, other: V | Number) -> V:
        return self._bin("sub", other)

    def __mul__(self, other: V | Number) -> V:
        return self._bin("mul", other)

    def __truediv__(self, other: V | Number) -> V:
        return self._bin("div", other)

    def __and__(self, other: V | Number) -> V:
        return self._bin("and", other)

    def __or__(self, other: V | Number) -> V:
        return self._bin("or", other)

    def __xor__(self, other: V | Number) -> V:
        return self._bin("xor", other)

    def __lshift__(self, other: int) -> V:
        return self._bin("shl", other)

    def __rshift__(self, other: int) -> V:
        return self._bin("ashr", other)

    def __neg__(self) -> V:
        if self.is_float:
            return self.at.wrap(self.elem, f"fneg {self.kind} {self.name}")
        return self.at.const(self.elem, 0) - self

    def __invert__(self) -> V:
        return self ^ -1

    def cmp(self, predicate: str, other: V | Number) -> V:
        """Compare: an LLVM predicate (olt, uno, slt, ult, ...)."""
        word = "fcmp" if self.is_float else "icmp"
        return self.at.wrap("i1", f"{word} {predicate} {self.kind} {self.name}, {self.at.same(self, other).name}")

    def where(self, yes: V | Number, no: V | Number) -> V:
        """For a condition: `yes` where true, `no` elsewhere (one of them is a V)."""
        like = yes if isinstance(yes, V) else no
        assert isinstance(like, V)
        a, b = self.at.same(like, yes), self.at.same(like, no)
        return self.at.wrap(like.elem, f"select {self.kind} {self.name}, {a.kind} {a.name}, {b.kind} {b.name}")

    def bits(self, elem: str) -> V:
        """The same bits as another type of that size."""
        return self.at.convert("bitcast", self, elem)

    def to(self, operation: str, elem: str) -> V:
        """Convert: an LLVM conversion (sext, fptrunc, sitofp, ...)."""
        return self.at.convert(operation, self, elem)

    def below(self, bound: float) -> V:
        """Not above a bound; NaN stays."""
        limit = self.at.const(self.elem, bound)
        return limit.cmp("olt", self).where(limit, self)

    def above(self, bound: float) -> V:
        """Not below a bound; NaN stays."""
        limit = self.at.const(self.elem, bound)
        return limit.cmp("ogt", self).where(limit, self)

    def intrinsic(self, name: str, *others: V) -> V:
        """llvm.<name> over values of this type."""
        args = [(v.kind, v.name) for v in (self, *others)]
        suffix = self.at.suffix(self.elem)
        return V(self.at, self.elem, self.at.builder.call(self.kind, f"llvm.{name}.{suffix}", args))

    def __abs__(self) -> V:
        return self.intrinsic("fabs")


class Lanes:
    """Makes values of a number of lanes in a builder; one lane means plain scalars."""

    def __init__(self, builder: Builder, lanes: int) -> None:
        self.builder, self.lanes = builder, lanes

    def type(self, elem: str) -> str:
        """The LLVM type of a value with that element."""
        return elem if self.lanes == 1 else f"<{self.lanes} x {elem}>"

    def suffix(self, elem: str) -> str:
        """The part of an intrinsic's name that says the type."""
        base = _INTRINSIC_SUFFIX.get(elem, elem)
        return base if self.lanes == 1 else f"v{self.lanes}{base}"

    def wrap(self, elem: str, text: str) -> V:
        """The result of an instruction as a value."""
        return V(self, elem, self.builder.op(text))

    def const(self, elem: str, value: Number) -> V:
        """A constant in every lane (floats are rounded to the element type)."""
        if elem == "float":
            literal = float_literal(round_to_single(float(value)))
        elif elem == "double":
            literal = float_literal(float(value))
        elif elem == "i1":
            literal = "true" if value else "false"
        else:
            literal = str(int(value))
        return V(self, elem, literal if self.lanes == 1 else f"splat ({elem} {literal})")

    def same(self, like: V, value: V | Number) -> V:
        """A number as a constant of the type of `like`; values pass."""
        return value if isinstance(value, V) else self.const(like.elem, value)

    def bin(self, operation: str, a: V, b: V | Number, flags: str = "") -> V:
        """A binary instruction."""
        return self.wrap(a.elem, f"{operation} {flags}{a.kind} {a.name}, {self.same(a, b).name}")

    def convert(self, operation: str, value: V, elem: str) -> V:
        """A conversion of element types."""
        return self.wrap(elem, f"{operation} {value.kind} {value.name} to {self.type(elem)}")

    def fma(self, a: V, b: V | Number, c: V | Number) -> V:
        """The sum a * b + c, rounded once where the machine can."""
        b, c = self.same(a, b), self.same(a, c)
        return a.intrinsic("fma", b, c) if self.builder.host.fma else a * b + c

    def polynomial(self, x: V, coefficients: Sequence[float]) -> V:
        """Horner's rule, lowest coefficient first."""
        result = self.const(x.elem, coefficients[-1])
        for coefficient in reversed(coefficients[:-1]):
            result = self.fma(result, x, coefficient)
        return result

    def splat(self, elem: str, name: str) -> V:
        """One scalar in every lane."""
        if self.lanes == 1:
            return V(self, elem, name)
        kind = self.type(elem)
        first = self.builder.op(f"insertelement {kind} poison, {elem} {name}, i64 0")
        return self.wrap(elem, f"shufflevector {kind} {first}, {kind} poison, <{self.lanes} x i32> zeroinitializer")

    def iota(self, start: str, elem: str = "i64") -> V:
        """start, start + 1, ..."""
        if self.lanes == 1:
            return V(self, elem, start)
        steps = "<" + ", ".join(f"{elem} {k}" for k in range(self.lanes)) + ">"
        if start == "0":
            return V(self, elem, steps)
        base = self.splat(elem, start)
        return self.wrap(elem, f"add {base.kind} {base.name}, {steps}")

    def gather_lanes(self, elem: str, names: Sequence[str]) -> V:
        """A value from one scalar per lane."""
        if self.lanes == 1:
            return V(self, elem, names[0])
        kind, result = self.type(elem), "poison"
        for lane, name in enumerate(names):
            result = self.builder.op(f"insertelement {kind} {result}, {elem} {name}, i64 {lane}")
        return V(self, elem, result)

    def lane(self, value: V, lane: int) -> str:
        """One lane as a scalar."""
        return (
            value.name if self.lanes == 1 else self.builder.op(f"extractelement {value.kind} {value.name}, i64 {lane}")
        )

    def any(self, condition: V) -> str:
        """Whether any lane of a condition holds, as i1."""
        if self.lanes == 1:
            return condition.name
        packed = self.builder.op(f"bitcast {condition.kind} {condition.name} to i{self.lanes}")
        return self.builder.op(f"icmp ne i{self.lanes} {packed}, 0")
