"""Symbolic dimensions: integer polynomials over named sizes.

A dimension of a shape is an ``int``, a :class:`Dim` (known up to the sizes named in it)
or ``None`` (nothing is known). Arithmetic on Dims gives Dims in one normal form, so that
``(N + 1) * 2 == 2 * N + 2`` is decided by comparison.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, TypeAlias

from pyflame_rt.graph.errors import UndeterminedError
from pyflame_rt.graph.named_arguments import names_arguments

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = ["SIZE_BOUNDS", "Dim", "DimLike", "dim_from_text", "symbol"]

DimLike: TypeAlias = "int | Dim | None"
SIZE_BOUNDS = "custom.size_bounds"  # metadata: the least and the most that a named size may be
_Monomial: TypeAlias = "tuple[str, ...]"


class Dim:
    """A size that is an integer polynomial over symbols.

    Example:
        >>> n = symbol("N")
        >>> (n + 1) * 2, (n + 1) * 2 == 2 * n + 2, 2 * n // 2
        (2*N + 2, True, N)
    """

    __slots__ = ("_hash", "terms")

    @names_arguments
    def __init__(self, terms: Mapping[_Monomial, int]) -> None:
        self.terms = tuple(sorted((m, c) for m, c in terms.items() if c))
        self._hash = hash(self.terms)

    def symbols(self) -> set[str]:
        """Names of the sizes it depends on."""
        return {name for monomial, _ in self.terms for name in monomial}

    def evaluate(self, sizes: Mapping[str, int]) -> int | None:
        """Its value for given sizes, or None when one is missing."""
        total = 0
        for monomial, coefficient in self.terms:
            for name in monomial:
                value = _atom_value(name, sizes)
                if value is None:
                    return None
                coefficient *= value
            total += coefficient
        return total

    def __add__(self, other: object) -> int | Dim:
        terms = _terms(other)
        if terms is None:
            return NotImplemented
        total = dict(self.terms)
        for monomial, coefficient in terms:
            total[monomial] = total.get(monomial, 0) + coefficient
        return _simplify(total)

    __radd__ = __add__

    def __neg__(self) -> int | Dim:
        return _simplify({monomial: -c for monomial, c in self.terms})

    def __sub__(self, other: object) -> int | Dim:
        terms = _terms(other)
        if terms is None:
            return NotImplemented
        return self + _simplify({monomial: -c for monomial, c in terms})

    def __rsub__(self, other: object) -> int | Dim:
        terms = _terms(other)
        if terms is None:
            return NotImplemented
        return _simplify(dict(terms)) + (-self)

    def __mul__(self, other: object) -> int | Dim:
        terms = _terms(other)
        if terms is None:
            return NotImplemented
        total: dict[_Monomial, int] = {}
        for left, a in self.terms:
            for right, b in terms:
                monomial = tuple(sorted(left + right))
                total[monomial] = total.get(monomial, 0) + a * b
        return _simplify(total)

    __rmul__ = __mul__

    def __floordiv__(self, other: object) -> int | Dim:
        if isinstance(other, Dim):
            return 1 if other == self else _divide_by_dim(self, other)
        if not _is_int(other) or int(other) == 0:  # type: ignore[call-overload]
            return NotImplemented
        divisor = int(other)  # type: ignore[call-overload]
        if all(c % divisor == 0 for _, c in self.terms):
            return _simplify({m: c // divisor for m, c in self.terms})
        return Dim({(f"floor(({self})/{divisor})",): 1})

    def __rfloordiv__(self, other: object) -> int | Dim:
        return Dim({(f"floor({other}/({self}))",): 1})

    __truediv__ = __floordiv__

    def __mod__(self, other: object) -> int | Dim:
        if _terms(other) is None:
            return NotImplemented
        quotient = self // other
        return self - quotient * other  # type: ignore[operator]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Dim) and self.terms == other.terms

    def __hash__(self) -> int:
        return self._hash

    def __reduce__(self) -> tuple[object, ...]:
        # The hash of a text differs between processes, so it must not travel.
        return (Dim, (dict(self.terms),))

    def __repr__(self) -> str:
        parts = [_term_text(m, c) for m, c in sorted(self.terms, key=lambda t: (-len(t[0]), t[0]))]
        return " + ".join(parts).replace("+ -", "- ")

    __str__ = __repr__

    def __int__(self) -> int:
        raise UndeterminedError(f"the size {self} is only known when running")

    __index__ = __int__

    def __lt__(self, other: object) -> bool:
        raise UndeterminedError(f"whether {self} < {other} is only known when running")

    __gt__ = __le__ = __ge__ = __lt__

    def __bool__(self) -> bool:
        # A symbolic size is some positive number in practice; guards on emptiness pass.
        return True


def dim_from_text(text: str) -> DimLike:
    """A dimension from its text: ``None``, a number, a name, or a polynomial such as ``2*N*M - 1``.

    Example:
        >>> dim_from_text("past + 1") - 1, dim_from_text("12"), dim_from_text("None")
        (past, 12, None)
    """
    if text in ("", "None", "?"):
        return None
    tokens = _TOKEN.findall(text)
    if _TOKEN.sub("", text).strip() or not _is_sum(tokens):
        return symbol(text)
    total: int | Dim = 0
    for sign, *factors in _terms_of(tokens):
        product: int | Dim = -1 if sign == "-" else 1
        for factor in factors:
            product = product * (int(factor) if factor.isdigit() else symbol(_unquoted(factor)))
        total = total + product
    return total


# A number, an operator sign, an opaque floor(...), a quoted name or a plain one.
_TOKEN = re.compile(r'\d+(?![A-Za-z_])|[-+*]|floor\(.*\)|"(?:[^"\\]|\\.)*"|[A-Za-z_][A-Za-z0-9_.]*')
_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_.]*|floor\(.*\)")


def _is_sum(tokens: list[str]) -> bool:
    """Operands and signs take turns; a leading minus is allowed."""
    body = tokens[1:] if tokens and tokens[0] == "-" else tokens
    return len(body) % 2 == 1 and all((t in "+-*") == (i % 2 == 1) for i, t in enumerate(body))


def _terms_of(tokens: list[str]) -> list[list[str]]:
    terms = [["+"]] if tokens[0] != "-" else []
    for token in tokens:
        if token in "+-":
            terms.append([token])
        elif token != "*":
            terms[-1].append(token)
    return terms


def _unquoted(name: str) -> str:
    return str(json.loads(name)) if name.startswith('"') else name


@names_arguments
def symbol(name: str) -> Dim:
    """The size called ``name``."""
    return Dim({(name,): 1})


def _is_int(value: object) -> bool:
    return isinstance(value, int) or (hasattr(value, "__index__") and not isinstance(value, Dim))


def _terms(value: object) -> Iterable[tuple[_Monomial, int]] | None:
    if isinstance(value, Dim):
        return value.terms
    if _is_int(value):
        return [((), int(value))]  # type: ignore[call-overload]
    return None


def _simplify(terms: Mapping[_Monomial, int]) -> int | Dim:
    kept = {m: c for m, c in terms.items() if c}
    if not kept:
        return 0
    if set(kept) == {()}:
        return kept[()]
    return Dim(kept)


def _divide_by_dim(dividend: Dim, divisor: Dim) -> int | Dim:
    """Exact division by a single monomial where it goes in; an opaque floor otherwise."""
    if len(divisor.terms) == 1:
        monomial, coefficient = divisor.terms[0]
        quotient: dict[_Monomial, int] = {}
        for m, c in dividend.terms:
            rest = list(m)
            if c % coefficient or any(rest.count(s) < monomial.count(s) for s in monomial):
                break
            for name in monomial:
                rest.remove(name)
            quotient[tuple(rest)] = c // coefficient
        else:
            return _simplify(quotient)
    return Dim({(f"floor(({dividend})/({divisor}))",): 1})


def _term_text(monomial: _Monomial, coefficient: int) -> str:
    if not monomial:
        return str(coefficient)
    name = "*".join(n if _PLAIN.fullmatch(n) else json.dumps(n) for n in monomial)
    if coefficient == 1:
        return name
    return f"-{name}" if coefficient == -1 else f"{coefficient}*{name}"


def _atom_value(name: str, sizes: Mapping[str, int]) -> int | None:
    # Opaque floor atoms cannot be evaluated from text alone; callers treat them as unknown.
    return sizes.get(name)
