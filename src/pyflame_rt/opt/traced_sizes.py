"""Sizes that remember how they were worked out, so that a plan made for one length can be made for others.

A `Size` is a number during planning: it adds, multiplies, divides and compares as its value does. It also knows which
polynomial of the sizes of the inputs it is, and every decision that depends on its value is noted by the `Trace`. What
was planned holds for other input sizes exactly where all of these decisions come out the same.

To the interpreter a `Size` is no int, so that whatever needs its machine number (memory, arrays, native calls) asks for
it, which ends the trace: it would hold for that number alone. ``isinstance(size, int)`` is true all the same, because
the planner tells numbers from unknown sizes by that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias, TypeGuard

from pyflame_rt.graph.dim import Dim

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = ["MARK", "BoundError", "Numbers", "Size", "Trace", "is_traced", "least", "most"]

# Texts with sizes in them have this mark: they are good for people, but name nothing that is kept.
MARK = "\N{SECTION SIGN}"

# A polynomial: the atoms multiplied in each term, by number, and its factor.
Terms: TypeAlias = "tuple[tuple[tuple[int, ...], int], ...]"


class BoundError(Exception):
    """Planning needs the number of a size that is to stay open."""


class Size(Dim):
    """A traced size; made by a :class:`Trace` and by arithmetic.

    Example:
        >>> trace = Trace()
        >>> n = trace.symbol(40)
        >>> rows = -(-n // 16) * 4
        >>> rows.value, n > 256, trace.numbers([70]).of(rows), trace.holds([70]), trace.holds([300])
        (12, False, 20, True, False)
    """

    __slots__ = ("number", "trace", "value")

    terms: Any

    def __init__(self, trace: Trace, terms: Terms, value: int, number: int) -> None:
        self.terms = terms
        self._hash = hash(terms)
        self.trace = trace
        self.value = value
        self.number = number

    __class__: Any = property(lambda _: int)

    # ------------------------------------------------------------------ arithmetic

    def __add__(self, other: Any) -> Any:
        terms = _terms(other)
        return NotImplemented if terms is None else self.trace.sum_of(self.terms, terms)

    __radd__ = __add__

    def __neg__(self) -> Any:
        return self.trace.size(tuple((m, -c) for m, c in self.terms))

    def __sub__(self, other: Any) -> Any:
        terms = _terms(other)
        return NotImplemented if terms is None else self.trace.sum_of(self.terms, [(m, -c) for m, c in terms])

    def __rsub__(self, other: Any) -> Any:
        terms = _terms(other)
        return NotImplemented if terms is None else self.trace.sum_of([(m, -c) for m, c in self.terms], terms)

    def __mul__(self, other: Any) -> Any:
        if type(other) is int:
            return self.trace.size(tuple((m, c * other) for m, c in self.terms)) if other else 0
        terms = _terms(other)
        if terms is None:
            return NotImplemented
        total: dict[tuple[int, ...], int] = {}
        for left, a in self.terms:
            for right, b in terms:
                monomial = tuple(sorted(left + right))
                total[monomial] = total.get(monomial, 0) + a * b
        return self.trace.size(tuple(sorted(total.items())))

    __rmul__ = __mul__

    def __floordiv__(self, other: Any) -> Any:
        terms = _terms(other)
        return NotImplemented if terms is None else self.trace.quotient(self.terms, tuple(terms))

    def __rfloordiv__(self, other: Any) -> Any:
        terms = _terms(other)
        return NotImplemented if terms is None else self.trace.quotient(tuple(terms), self.terms)

    def __truediv__(self, other: Any) -> Any:
        """Integer division as operators on sizes mean it: towards zero, which is downwards for what is not negative."""
        if self < 0 or other <= 0:
            return int(self) / other
        return self // other

    def __mod__(self, other: Any) -> Any:
        return self - (self // other) * other

    def __rmod__(self, other: Any) -> Any:
        return other - (other // self) * self

    def __divmod__(self, other: Any) -> tuple[Any, Any]:
        quotient = self // other
        return quotient, self - quotient * other

    def __abs__(self) -> Any:
        return -self if self < 0 else self

    # ------------------------------------------------------------------ decisions

    def __eq__(self, other: object) -> bool:
        if other is self:
            return True
        if type(other) is Size and other.trace is not self.trace:
            return False
        terms = _terms(other)
        if terms is None:
            return int(self) == other if type(other) is float else False
        return self.trace.decide("eq", self.trace.sum_of(self.terms, [(m, -c) for m, c in terms]))

    def __hash__(self) -> int:
        return self._hash

    def __lt__(self, other: Any) -> bool:
        return self._below(self - other)

    def __gt__(self, other: Any) -> bool:
        return self._below(other - self)

    def __le__(self, other: Any) -> bool:
        return not self._below(other - self)

    def __ge__(self, other: Any) -> bool:
        return not self._below(self - other)

    def _below(self, difference: Any) -> bool:
        return self.trace.decide("lt", difference)

    def __bool__(self) -> bool:
        return not self.trace.decide("eq", self)

    def __int__(self) -> int:
        """There is none that would hold for every size."""
        self.trace.pin(self)

    __index__ = __int__

    def __float__(self) -> float:
        return float(int(self))

    # ------------------------------------------------------------------ what else numbers do

    def __repr__(self) -> str:
        return f"{MARK}{self.value}"

    __str__ = __repr__

    def __format__(self, spec: str) -> str:
        return f"{MARK}{self.value:{spec}}"

    def __reduce__(self) -> Any:
        raise TypeError("a traced size belongs to its trace and does not travel")


def is_traced(value: Any) -> TypeGuard[Size]:
    """Whether a number is a :class:`Size`."""
    return type(value) is Size


def _terms(value: Any) -> Iterable[tuple[tuple[int, ...], int]] | None:
    if type(value) is Size:
        return value.terms
    if type(value) is int:
        return (((), value),) if value else ()
    if isinstance(value, (bool, float)) or not hasattr(value, "__index__"):
        return None
    return (((), int(value)),)


class Trace:
    """The sizes of one planning run, and the decisions it took.

    Attributes:
        closed: planning is over, nothing more may be decided.
    """

    def __init__(self) -> None:
        self.values: list[int] = []  # of atoms
        self.atoms: dict[tuple[str, Terms, Terms], int] = {}  # what is no polynomial -> its number
        self.made: dict[Terms, Size] = {}
        self.decisions: dict[tuple[str, Terms], bool] = {}
        self.closed = False

    def symbol(self, value: int) -> Size:
        """A size of the inputs; all of these come first."""
        assert not self.atoms
        self.values.append(value)
        made: Any = self.size((((len(self.values) - 1,), 1),))
        return made

    def size(self, terms: Terms) -> Any:
        """The size with these terms, sorted and without zeros; a plain number where nothing is open."""
        if not terms:
            return 0
        if len(terms) == 1 and not terms[0][0]:
            return terms[0][1]
        found = self.made.get(terms)
        if found is None:
            found = self.made[terms] = Size(self, terms, _value(terms, self.values), len(self.made))
        return found

    def sum_of(self, left: Iterable[Any], right: Iterable[Any]) -> Any:
        """The sum of two polynomials."""
        total = dict(left)
        for monomial, factor in right:
            total[monomial] = total.get(monomial, 0) + factor
        return self.size(tuple(sorted(item for item in total.items() if item[1])))

    def quotient(self, dividend: Terms, divisor: Terms) -> Any:
        """The quotient rounded down: a polynomial where it divides evenly, a new atom elsewhere."""
        below = self.size(divisor)
        if below == 0:
            raise ZeroDivisionError("integer division or modulo by zero")
        exact = _divided(dividend, divisor)
        if exact is not None:
            return self.size(exact)
        return self.atom("//", dividend, divisor)

    def atom(self, kind: str, left: Terms, right: Terms) -> Any:
        """A size that is no polynomial of others: a quotient, or the larger of two."""
        number = self.atoms.get((kind, left, right))
        if number is None:
            number = self.atoms[kind, left, right] = len(self.values)
            self.values.append(_atom_value(kind, left, right, self.values))
        return self.size((((number,), 1),))

    def decide(self, kind: str, size: Any) -> bool:
        """Whether a size is zero (``eq``) or negative (``lt``); noted where that is open."""
        value = size.value if type(size) is Size else size
        result = value == 0 if kind == "eq" else value < 0
        if type(size) is Size:
            if self.closed and self.decisions.get((kind, size.terms)) is not result:
                raise BoundError("a decision was taken on traced sizes after planning")
            self.decisions[kind, size.terms] = result
        return result

    def pin(self, size: Size) -> NoReturn:
        """Give up: a size had to be one number."""
        raise BoundError(f"a step needs the number {size}, so the plan serves no other size")

    def numbers(self, symbols: Sequence[int]) -> Numbers:
        """What sizes are for other sizes of the inputs.

        Raises:
            ZeroDivisionError: one of them is divided by.
        """
        return Numbers(self, symbols)

    def holds(self, symbols: Sequence[int]) -> bool:
        """Whether every decision comes out the same."""
        try:
            values = self.numbers(symbols).values
        except ZeroDivisionError:
            return False
        for (kind, terms), result in self.decisions.items():
            value = _value(terms, values)
            if (value == 0 if kind == "eq" else value < 0) is not result:
                return False
        return True


class Numbers:
    """Values of the atoms of a trace for given sizes of the inputs, and of sizes made of them."""

    __slots__ = ("known", "values")

    def __init__(self, trace: Trace, symbols: Sequence[int]) -> None:
        self.values = list(symbols)
        self.known: dict[int, int] = {}
        for kind, left, right in trace.atoms:
            self.values.append(_atom_value(kind, left, right, self.values))

    def of(self, size: Any) -> Any:
        """The number a size stands for; anything else is what it is."""
        if type(size) is not Size:
            return size
        found = self.known.get(size.number)
        if found is None:
            found = self.known[size.number] = _value(size.terms, self.values)
        return found

    def all(self, sizes: Iterable[Any]) -> tuple[Any, ...]:
        """The numbers of several sizes."""
        of = self.of
        return tuple([s if type(s) is int else of(s) for s in sizes])


def most(a: int, b: int) -> int:
    """The larger of two sizes; of traced ones a size again, without deciding which it is.

    Example:
        >>> trace = Trace()
        >>> size = most(trace.symbol(40) - 30, 16)
        >>> most(2, 3), size.value, trace.numbers([50]).of(size)
        (3, 16, 20)
    """
    one = a if type(a) is Size else b
    if type(one) is not Size:
        return max(a, b)
    left, right = _terms(a), _terms(b)
    assert left is not None
    assert right is not None
    return one.trace.atom("max", tuple(left), tuple(right))


def least(a: int, b: int) -> int:
    """The smaller of two sizes; see :func:`most`."""
    return -most(-a, -b)


def _atom_value(kind: str, left: Terms, right: Terms, values: Sequence[int]) -> int:
    a, b = _value(left, values), _value(right, values)
    return max(a, b) if kind == "max" else a // b


def _value(terms: Terms, values: Sequence[int]) -> int:
    total = 0
    for monomial, factor in terms:
        for atom in monomial:
            factor *= values[atom]
        total += factor
    return total


def _divided(dividend: Terms, divisor: Terms) -> Terms | None:
    """The quotient by a single term where it goes in evenly."""
    if dividend == divisor:
        return (((), 1),)
    if len(divisor) != 1:
        return None
    ((below, by),) = divisor
    result = []
    for monomial, factor in dividend:
        rest = list(monomial)
        if factor % by or any(rest.count(atom) < below.count(atom) for atom in below):
            return None
        for atom in below:
            rest.remove(atom)
        result.append((tuple(rest), factor // by))
    return tuple(sorted(result))
