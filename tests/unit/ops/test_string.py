"""Strings: splitting, casing without a locale, RE2's syntax, n-grams."""

import numpy as np
import pytest

from pyflame_rt.graph import DType, Node, Shape, TensorType, symbol
from pyflame_rt.graph.errors import PyFlameRTError
from pyflame_rt.ops import Context, Value, evaluate, get_op
from pyflame_rt.ops.core.trace import infer_outputs
from pyflame_rt.ops.onnx.regex import compile_re2

N = symbol("N")


def words(*items):
    return np.array(items, object)


def run(op, *arrays, library="numpy", outputs=1, **attributes):
    node = Node("n", op, [f"i{i}" for i in range(len(arrays))], [f"o{i}" for i in range(outputs)], attributes)
    made = evaluate(node, arrays, Context.of(library))
    return made[0] if outputs == 1 else made


def infer(op, *shapes, dtype=DType.String, **attributes):
    found = get_op(op)
    values = [Value("v", TensorType(dtype, None if s is None else Shape(s))) for s in shapes]
    return [v.type for v in infer_outputs(found, values, found.signature.bind(attributes, op))]


def test_concat_broadcasts_and_keeps_scalars():
    assert run("StringConcat", words("a", "b"), np.array("!", object)).tolist() == ["a!", "b!"]
    made = run("StringConcat", np.array("a", object), np.array("b", object))
    assert (made.shape, made.tolist()) == ((), "ab")
    assert run("StringConcat", np.array(["a"]), words("é")).tolist() == ["aé"]
    assert run("StringConcat", words(b"a"), words("b")).tolist() == ["ab"]
    assert infer("StringConcat", [N, 1], [3])[0].shape == [N, 3]


@pytest.mark.parametrize(
    ("text", "attributes", "expected"),
    [
        ("a,b,,c", {"delimiter": ","}, ["a", "b", "", "c"]),
        ("a,b,c", {"delimiter": ",", "maxsplit": 1}, ["a", "b,c"]),
        ("  a \t b ", {}, ["a", "b"]),
        ("  a \t b ", {"delimiter": ""}, ["a", "b"]),
        ("a", {"delimiter": ",", "maxsplit": 0}, ["a"]),
        ("", {"delimiter": ","}, [""]),
        ("", {}, []),
    ],
)
def test_split(text, attributes, expected):
    parts, counts = run("StringSplit", words(text), outputs=2, **attributes)
    assert parts.shape == (1, len(expected))
    assert parts[0].tolist() == expected
    assert counts.tolist() == [len(expected)]
    assert counts.dtype == np.int64


def test_split_fills_up_short_rows_and_keeps_the_shape():
    parts, counts = run("StringSplit", words("a b", "c").reshape(2, 1), outputs=2)
    assert parts.tolist() == [[["a", "b"]], [["c", ""]]]
    assert counts.tolist() == [[2], [1]]
    parts, counts = run("StringSplit", np.array("a b", object), outputs=2)
    assert (parts.tolist(), counts.tolist()) == (["a", "b"], 2)
    text, numbers = infer("StringSplit", [N, 2])
    assert (text.shape, numbers.shape, numbers.dtype) == ([N, 2, None], [N, 2], DType.Int64)


@pytest.mark.parametrize(
    ("attributes", "expected"),
    [
        ({"stopwords": ["MONDAY"]}, ["tuesday", "Straße"]),
        ({"stopwords": ["MONDAY"], "is_case_sensitive": 1}, ["monday", "tuesday", "Straße"]),
        ({"case_change_action": "UPPER"}, ["MONDAY", "TUESDAY", "STRASSE"]),
        ({"case_change_action": "LOWER", "locale": "xx_NOWHERE"}, ["monday", "tuesday", "straße"]),
        ({"stopwords": ["monday", "tuesday", "straße"]}, [""]),
    ],
)
def test_normalizer(attributes, expected):
    x = words("monday", "tuesday", "Straße")
    for library in ("numpy", "torch", "mlx"):
        assert run("StringNormalizer", x, library=library, **attributes).tolist() == expected
        assert run("StringNormalizer", x[None], library=library, **attributes).tolist() == [expected]


def test_normalizer_knows_the_turkic_i():
    x = words("I\u0131iİ")
    assert run("StringNormalizer", x, case_change_action="UPPER", locale="tr_TR").tolist() == ["IIİİ"]
    assert run("StringNormalizer", x, case_change_action="LOWER", locale="az").tolist() == ["\u0131\u0131ii"]


def test_normalizer_refuses():
    with pytest.raises(PyFlameRTError, match="LOWER, UPPER"):
        run("StringNormalizer", words("a"), case_change_action="TITLE")
    with pytest.raises(PyFlameRTError, match=r"\[1, C\]"):
        run("StringNormalizer", words("a", "b").reshape(2, 1))
    assert infer("StringNormalizer", [1, N])[0].shape == [1, None]


@pytest.mark.parametrize(
    ("pattern", "matching", "other"),
    [
        (r"[[:alpha:]]+", "abc", "ab1"),
        (r"[^[:space:]]", "a", " "),
        (r"[[:^digit:]]", "a", "1"),
        (r"\d+", "12", "٣"),
        (r"[\D]", "٣", "3"),
        (r"\S\W", "a-", "a "[::-1]),
        (r"\pL+", "äß", "ä1"),
        (r"[\p{Lu}1]+", "Ä1", "ä1"),
        (r"\P{L}", "1", "a"),
        (r"a(?i)b|c", "aB", "Ab"),
        (r"(?i)abc|def", "DEF", "DE"),
        (r"((?i)a)b", "Ab", "AB"),
        (r"\Qa.b\E", "a.b", "axb"),
        (r"(?<n>a)(?P<m>b)", "ab", "a"),
        (r"ab\z", "ab", "ab\n"),
        (r"a$", "a", "a\n"),
        (r"[]a]+", "]a", "b"),
        (r"[[&~|]+", "[&~|", "a"),
        (r"\x{e4}", "ä", "a"),
        (r".*", "abc", "a\nb"),
        (r"(?s).*", "a\nb", None),
        (r"", "", "a"),
        (r"(a|ab)(c|bcd)", "abcd", "abc0"),
    ],
)
def test_patterns_are_those_of_re2(pattern, matching, other):
    assert compile_re2(pattern)(matching)
    assert other is None or not compile_re2(pattern)(other)


@pytest.mark.parametrize("pattern", ["(", "a(?=b)", "a(?<=b)", r"(a)\1", r"\p{Nope}", "[[:nope:]]", "*"])
def test_patterns_that_are_refused(pattern):
    with pytest.raises(PyFlameRTError):
        run("RegexFullMatch", words("a"), pattern=pattern)


def test_regex_keeps_the_shape():
    x = words("ab", "b", "").reshape(3, 1)
    made = run("RegexFullMatch", x, pattern="a?b", library="torch")
    assert np.asarray(made).tolist() == [[True], [True], [False]]
    assert infer("RegexFullMatch", [N, 2], pattern="a")[0] == TensorType(DType.Bool, Shape([N, 2]))


GRAMS = {
    "ngram_counts": [0, 2],
    "ngram_indexes": [0, 3, 1],
    "min_gram_length": 1,
    "max_gram_length": 2,
    "max_skip_count": 1,
}


@pytest.mark.parametrize(
    ("mode", "weights", "expected"),
    [
        ("TF", None, [2, 1, 0, 1]),
        ("IDF", [0.5, 2.0, 3.0], [0.5, 3, 0, 2]),
        ("TFIDF", [0.5, 2.0, 3.0], [1, 3, 0, 2]),
        ("TFIDF", None, [2, 1, 0, 1]),
    ],
)
def test_n_grams(mode, weights, expected):
    attributes = {**GRAMS, "mode": mode} | ({} if weights is None else {"weights": weights})
    made = run("TfIdfVectorizer", np.array([1, 2, 1, 3], np.int32), pool_int64s=[1, 3, 1, 3], **attributes)
    assert made.dtype == np.float32
    assert made.tolist() == expected
    text = run("TfIdfVectorizer", words("a", "b", "a", "c")[None], pool_strings=["a", "c", "a", "c"], **attributes)
    assert text.tolist() == [made.tolist()]


def test_n_grams_types_and_errors():
    assert infer("TfIdfVectorizer", [N, 5], dtype=DType.Int64, mode="TF", pool_int64s=[1], **GRAMS)[0].shape == [N, 4]
    with pytest.raises(PyFlameRTError, match="one of pool_int64s and pool_strings"):
        run("TfIdfVectorizer", np.array([1]), mode="TF", **GRAMS)
    with pytest.raises(PyFlameRTError, match="TF, IDF or TFIDF"):
        run("TfIdfVectorizer", np.array([1]), mode="TX", pool_int64s=[1], **GRAMS)
