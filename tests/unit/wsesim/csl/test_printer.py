"""Print, parse, compare: on random trees, and on every file of a checkout of published programs."""

import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wsesim.csl.syntax import nodes as s
from wsesim.csl.syntax.diagnostics import Diagnostics
from wsesim.csl.syntax.expressions import PRECEDENCE
from wsesim.csl.syntax.parser import parse, parse_text
from wsesim.csl.syntax.printer import print_file
from wsesim.csl.syntax.source import Source

names = st.sampled_from(["a", "b", "count", "x1", "_y"])
leaves = st.one_of(
    names.map(s.Name),
    st.sampled_from(["0", "17", "0xff", "0b101"]).map(s.IntLiteral),
    st.sampled_from(["1.5", "2e-3"]).map(s.FloatLiteral),
    st.booleans().map(s.BoolLiteral),
    st.sampled_from(['"t"', '"\\n\\""']).map(s.StringLiteral),
)


@st.composite
def fields(draw, depth):
    count = draw(st.integers(0, 2))
    named = draw(st.booleans())
    return tuple(s.FieldInit(f"f{i}" if named else None, draw(expressions(depth))) for i in range(count))


@st.composite
def types(draw, depth):
    elem = s.Name(draw(names))
    match draw(st.integers(0, 2)):
        case 0:
            return elem
        case 1:
            return s.PtrTypeExpr(elem, draw(st.booleans()), draw(st.booleans()))
        case _:
            return s.ArrayTypeExpr(tuple(draw(expressions(depth)) for _ in range(draw(st.integers(1, 2)))), elem)


@st.composite
def expressions(draw, depth=3):
    """A random expression; every child is one level less deep."""
    if depth == 0:
        return draw(leaves)

    def one():
        return draw(expressions(depth - 1))

    def some(low=0):
        return tuple(one() for _ in range(draw(st.integers(low, 2))))

    makers = [
        lambda: draw(leaves),
        lambda: s.Binary(draw(st.sampled_from(sorted(PRECEDENCE))), one(), one()),
        lambda: s.Unary(draw(st.sampled_from(["-", "!", "~", "&"])), one()),
        lambda: s.Call(one(), some()),
        lambda: s.BuiltinCall(draw(names), some()),
        lambda: s.Field(one(), draw(names)),
        lambda: s.Deref(one()),
        lambda: s.Index(one(), some(1)),
        lambda: s.AnonStruct(draw(fields(depth - 1))),
        lambda: s.InitList(s.Name(draw(names)), tuple(f for f in draw(fields(depth - 1)) if f.name)),
        lambda: s.InitList(s.ArrayTypeExpr((one(),), s.Name(draw(names))), draw(fields(depth - 1))),
        lambda: s.IfExpr(one(), one(), one()),
        lambda: s.ComptimeExpr(one()),
        lambda: s.TensorAccess(("i",), (one(),), s.Index(s.Name(draw(names)), (one(),))),
        lambda: draw(types(depth - 1)),
    ]
    return makers[draw(st.integers(0, len(makers) - 1))]()


@st.composite
def blocks(draw, depth):
    return s.Block(tuple(draw(statements(depth)) for _ in range(draw(st.integers(0, 2)))))


@st.composite
def statements(draw, depth=2):
    """A random statement."""

    def value():
        return draw(expressions(1))

    def step():
        return s.Assignment(s.Name(draw(names)), draw(st.sampled_from(["=", "+=", "<<="])), value())

    makers = [
        lambda: s.ExpressionStmt(s.BuiltinCall(draw(names), (value(),))),
        step,
        lambda: s.ReturnStmt(draw(st.none() | expressions(1))),
        s.BreakStmt,
        lambda: s.VarDecl(draw(names), draw(st.none() | types(1)), value(), draw(st.booleans())),
    ]
    if depth:
        makers += [
            lambda: draw(blocks(depth - 1)),
            lambda: s.IfStmt(value(), draw(blocks(depth - 1)), draw(st.none() | blocks(depth - 1))),
            lambda: s.WhileStmt(value(), step() if draw(st.booleans()) else None, draw(blocks(depth - 1))),
            lambda: s.ForStmt(value(), draw(names), draw(st.none() | names), draw(blocks(depth - 1))),
            lambda: s.ComptimeBlock(draw(blocks(depth - 1))),
        ]
    return makers[draw(st.integers(0, len(makers) - 1))]()


@settings(max_examples=150, deadline=None)
@given(st.lists(statements(), max_size=3), expressions())
def test_random_trees_survive(body, value):
    tree = s.File(
        (
            s.ParamDecl("p", s.Name("u16"), value),
            s.FunctionDecl("f", (s.Parameter("x", s.Name("i16")),), s.Name("void"), s.Block(tuple(body))),
        )
    )
    assert parse_text(print_file(tree)) == tree


@settings(max_examples=200, deadline=None)
@given(st.text(alphabet="abc@{}()[];:.,|=<>+-*&!\"' \n019fnvariftask", max_size=80))
def test_no_text_breaks_the_parser(text):
    diagnostics = Diagnostics()
    tree = parse(Source("x.csl", text), diagnostics)
    assert isinstance(tree, s.File)
    if not diagnostics.errors:
        assert parse_text(print_file(tree)) == tree


CORPUS = os.environ.get("WSESIM_CSL_CORPUS", "")


@pytest.mark.skipif(
    not CORPUS,
    reason="NOT CHECKED: WSESIM_CSL_CORPUS names no checkout of published CSL programs (see `make csl-corpus`)",
)
def test_every_published_file_prints_back():
    files = [p for p in Path(CORPUS).rglob("*.csl") if p.is_file()]
    assert files, f"no .csl file under {CORPUS}"
    wrong = []
    for path in files:
        diagnostics = Diagnostics()
        tree = parse(Source(str(path), path.read_text(encoding="utf-8")), diagnostics)
        if diagnostics.items or parse_text(print_file(tree)) != tree:
            wrong.append(str(path))
    assert not wrong
