"""Operators on strings. They run on the host, on NumPy arrays of Python strings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from pyflame_rt.graph import DType, Shape, TensorType
from pyflame_rt.graph.errors import InputError, ShapeMismatchError
from pyflame_rt.ops.core.registry import primitive
from pyflame_rt.ops.core.type_rules import boolean, broadcast, tensor_like
from pyflame_rt.ops.onnx.regex import compile_re2

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyflame_rt.ops.core.value import Value

__all__ = ["RegexFullMatch", "StringConcat", "StringNormalizer", "StringSplit", "TfIdfVectorizer"]

Strings = np.ndarray[Any, Any]


def _text(value: Any) -> str:
    return value.decode("utf-8", "surrogateescape") if isinstance(value, bytes) else str(value)


def _each(function: Callable[[str], Any], x: Strings, dtype: Any = object) -> Strings:
    """A function applied to every string; the result keeps the shape."""
    made: Strings = np.empty(x.size, dtype=dtype)
    made[:] = [function(_text(v)) for v in x.ravel()]
    return made.reshape(x.shape)


@primitive(since=20, infer=broadcast, host=True, types="string string > string")
def StringConcat(_ops: Any, X: Strings, Y: Strings, /) -> Strings:
    """Strings joined one by one, with broadcasting."""
    a, b = np.broadcast_arrays(X, Y)
    made = np.empty(a.shape, dtype=object)
    made.reshape(-1)[:] = [_text(u) + _text(v) for u, v in zip(a.ravel(), b.ravel(), strict=True)]
    return made


# ---------------------------------------------------------------------- StringSplit


def _split_types(X: Value, /, **_: Any) -> tuple[TensorType, TensorType]:
    dims = X.tensor_type.shape
    return tensor_like(X, None if dims is None else [*dims, None]), tensor_like(X, dims, DType.Int64)


@primitive(since=20, infer=_split_types, host=True, types="string > string int64")
def StringSplit(
    _ops: Any, X: Strings, /, *, delimiter: str | None = None, maxsplit: int | None = None
) -> tuple[Strings, Strings]:
    """The parts of each string, filled up with empty ones; and how many there are."""
    parts = [_text(v).split(delimiter or None, -1 if maxsplit is None else maxsplit) for v in X.ravel()]
    longest = max(map(len, parts), default=0)
    made = np.full((len(parts), longest), "", dtype=object)
    for row, words in zip(made, parts, strict=True):
        row[: len(words)] = words
    counts = np.asarray([len(words) for words in parts], dtype=np.int64)
    return made.reshape(*X.shape, longest), counts.reshape(X.shape)


# ---------------------------------------------------------------------- StringNormalizer

# Python's own casing needs no locale of the system; these languages alone differ from it.
_TURKIC = ("tr", "az")
_CASING: dict[str, Callable[[str], str]] = {"NONE": lambda s: s, "LOWER": str.lower, "UPPER": str.upper}
_TURKIC_CASING: dict[str, Callable[[str], str]] = {
    "NONE": lambda s: s,
    "LOWER": lambda s: s.replace("İ", "i").replace("I", "\u0131").lower(),
    "UPPER": lambda s: s.replace("i", "İ").upper(),
}


def _normalizer_type(X: Value, /, **_: Any) -> TensorType:
    dims = X.tensor_type.shape
    if dims is None:
        return tensor_like(X, None)
    if len(dims) not in (1, 2) or (len(dims) == 2 and isinstance(dims[0], int) and dims[0] != 1):
        raise ShapeMismatchError(f"takes shape [C] or [1, C], got {dims}")
    return tensor_like(X, [None] if len(dims) == 1 else [1, None])


@primitive(since=10, infer=_normalizer_type, host=True, types="string > string")
def StringNormalizer(
    _ops: Any,
    X: Strings,
    /,
    *,
    case_change_action: str = "NONE",
    is_case_sensitive: int = 0,
    locale: str | None = None,
    stopwords: list[str] | None = None,
) -> Strings:
    """Strings without the stop words, in lower or upper case if asked for."""
    if X.ndim not in (1, 2) or (X.ndim == 2 and X.shape[0] != 1):
        raise ShapeMismatchError(f"takes shape [C] or [1, C], got {Shape(X.shape)}")
    casing = _TURKIC_CASING if (locale or "")[:2].lower() in _TURKIC else _CASING
    if case_change_action not in casing:
        raise InputError(f"case_change_action is one of {', '.join(casing)}, got {case_change_action!r}")
    fold = casing["NONE" if is_case_sensitive else "LOWER"]
    stop = {fold(word) for word in stopwords or ()}
    change = casing[case_change_action]
    kept = [change(word) for word in map(_text, X.ravel()) if fold(word) not in stop]
    made = np.asarray(kept or [""], dtype=object)
    return made if X.ndim == 1 else made.reshape(1, -1)


# ---------------------------------------------------------------------- RegexFullMatch


@primitive(since=20, infer=boolean, host=True, types="string > bool")
def RegexFullMatch(_ops: Any, X: Strings, /, *, pattern: str | None = None) -> Strings:
    """Whether a pattern in RE2's syntax matches each string from end to end."""
    if pattern is None:
        raise InputError("attribute 'pattern' is required")
    return _each(compile_re2(pattern), X, np.bool_)


# ---------------------------------------------------------------------- TfIdfVectorizer


def _tfidf_type(X: Value, /, *, ngram_indexes: list[int], **_: Any) -> TensorType:
    width = max(ngram_indexes, default=-1) + 1
    dims = X.tensor_type.shape
    if dims is None:
        return tensor_like(X, None, DType.Float32)
    if len(dims) not in (1, 2):
        raise ShapeMismatchError(f"takes shape [C] or [N, C], got {dims}")
    return tensor_like(X, [*dims[:-1], width], DType.Float32)


@primitive(since=9, infer=_tfidf_type, host=True, types="T > float32")
def TfIdfVectorizer(
    _ops: Any,
    X: np.ndarray[Any, Any],
    /,
    *,
    max_gram_length: int,
    max_skip_count: int,
    min_gram_length: int,
    mode: str,
    ngram_counts: list[int],
    ngram_indexes: list[int],
    pool_int64s: list[int] | None = None,
    pool_strings: list[str] | None = None,
    weights: list[float] | None = None,
) -> np.ndarray[Any, Any]:
    """How often each n-gram of a pool occurs in each row, weighted if asked for."""
    if mode not in ("TF", "IDF", "TFIDF"):
        raise InputError(f"mode is TF, IDF or TFIDF, got {mode!r}")
    if (pool_int64s is None) == (pool_strings is None):
        raise InputError("one of pool_int64s and pool_strings must be given")
    pool = _pool(pool_int64s if pool_strings is None else pool_strings, ngram_counts)
    rows = X if X.ndim > 1 else X.reshape(1, -1)
    counts = np.zeros((len(rows), len(ngram_indexes)), dtype=np.float32)
    # No n-gram is longer than a row.
    lengths = range(max(min_gram_length, 1), min(max_gram_length, rows.shape[-1]) + 1)
    for row, words in zip(counts, rows.tolist(), strict=True):
        tokens = words if pool_strings is None else [_text(w) for w in words]
        for gram in _ngrams(tokens, lengths, max_skip_count):
            if gram in pool:
                row[pool[gram]] += 1
    if mode == "IDF":
        counts = np.minimum(counts, 1)
    if mode != "TF" and weights is not None:
        counts = counts * np.asarray(weights, dtype=np.float32)
    result = np.zeros((len(rows), max(ngram_indexes, default=-1) + 1), dtype=np.float32)
    result[:, ngram_indexes] = counts
    return result.reshape(*X.shape[:-1], result.shape[1])


def _pool(items: Sequence[Any] | None, starts: Sequence[int]) -> dict[tuple[Any, ...], int]:
    """The number of each n-gram; those of length n lie from ``starts[n - 1]`` on."""
    pool: dict[tuple[Any, ...], int] = {}
    listed = list(items or ())
    number = 0
    for i, start in enumerate(starts):
        stop = starts[i + 1] if i + 1 < len(starts) else len(listed)
        if not 0 <= start <= stop <= len(listed):
            raise InputError(f"ngram_counts {list(starts)} do not divide a pool of {len(listed)}")
        for place in range(start, stop, i + 1):
            pool[tuple(listed[place : place + i + 1])] = number
            number += 1
    return pool


def _ngrams(tokens: Sequence[Any], lengths: Sequence[int], max_skip: int) -> list[tuple[Any, ...]]:
    found: list[tuple[Any, ...]] = []
    for length in lengths:
        # A single word skips nothing: each is counted once.
        for skip in range(max_skip + 1 if length > 1 else 1):
            reach = (length - 1) * (skip + 1)
            if reach >= len(tokens):
                break
            found += [tuple(tokens[i : i + reach + 1 : skip + 1]) for i in range(len(tokens) - reach)]
    return found
