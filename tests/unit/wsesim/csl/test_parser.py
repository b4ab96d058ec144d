import pytest

from wsesim.csl.syntax import nodes as s
from wsesim.csl.syntax.diagnostics import CompileError, Diagnostics
from wsesim.csl.syntax.parser import parse, parse_text
from wsesim.csl.syntax.printer import print_expr, print_file
from wsesim.csl.syntax.source import Source


def expr(text):
    decl = parse_text(f"const x = {text};").decls[0]
    assert isinstance(decl, s.VarDecl)
    return decl.init


@pytest.mark.parametrize(
    ("text", "grouped"),
    [
        ("a + b * c", "(a + (b * c))"),
        ("a - b - c", "((a - b) - c)"),
        ("a or b and c", "(a or (b and c))"),
        ("a & b == c", "((a & b) == c)"),
        ("a << 1 + b", "(a << (1 + b))"),
        ("-a.b[1].*", "(-a.b[1].*)"),
        ("!a and b < c", "((!a) and (b < c))"),
    ],
)
def test_precedence(text, grouped):
    def show(node):
        match node:
            case s.Binary(op, left, right):
                return f"({show(left)} {op} {show(right)})"
            case s.Unary(op, operand):
                return f"({op}{show(operand)})"
            case _:
                return print_expr(node)

    assert show(expr(text)) == grouped


@pytest.mark.parametrize(
    "text",
    [
        "param n: u16;\nparam t = 4;",
        "export var a: [4]f32 align(16) = @zeros([4]f32);",
        'var g: i16 linksection(".s") linkname("h") = 10;',
        "extern fn g(a: f16, b: f16) f16;",
        "inline fn f(comptime T: type, x: anytype) T { return x; }",
        "task t(a: u16, b: u16) void { if (a == b) return; else b(); }",
        ("fn f() void { outer: while (true) : (i += 1) { for (@range(u16, 4)) |x, k| { if (k == 2) break :outer; "
        "continue; } } }"),
        "fn f(e: m) i16 { return switch (e) { m.A => 1, m.B, m.C => -10, 3...5 => 2, else => 100 }; }",
        "fn f() void { switch (x) { 0 => { a(); }, 1 => b = 2, else => return } }",
        ("const s = packed struct { x: i8, y: u3 };\nconst u = extern union { a: i32, b: f32 };\nconst e = enum(u16) "
        "{ r, w = 4 };"),
        "const c = complex { .re = 1.0, .im = 0.5e-3 };\nconst p = pair(i32, f16) { .a = 1 };",
        "const d = @get_dsd(mem4d_dsd, .{ .tensor_access = |i, j|{2, N} -> A[i + 1, 2 * j] });",
        "fn f(p: [*]const f32, q: *const [4]i16, r: *const fn (i16) void) void { q.*[1] = p[2]; }",
        "const v = blk: { x += 1; break :blk x; };\nconst w = if (a) b else if (c) d else e;",
        ("fn f() void { comptime { var i: u16 = 0; while (i < 3) : (i += 1) {} } comptime var k = 3; const z = "
        "comptime g(1); }"),
        'const s = "a\\n\\x41\\"";\nconst c = \'\\n\';\nconst h = 0xFF_ff + 0b10 + 0o7;',
        "layout { @set_rectangle(1, 2); }\ncomptime { @export_symbol(m.x, \"y\"); }",
    ],
)  # fmt: skip
def test_print_and_parse_again(text):
    tree = parse_text(text)
    printed = print_file(tree)
    assert parse_text(printed) == tree
    assert print_file(parse_text(printed)) == printed


def test_several_errors_in_one_run():
    text = "var a = ;\nfn f() void {\n  const x = 1\n  y = (2;\n  z = 3;\n}\nvar b: = 4;\nvar good = 1;\n"
    diagnostics = Diagnostics()
    tree = parse(Source("m.csl", text), diagnostics)
    assert [(d.pos.line, d.code) for d in diagnostics.errors] == [
        (1, "syntax"),
        (3, "missing-semicolon"),
        (4, "syntax"),
        (7, "syntax"),
    ]
    assert [d.name for d in tree.decls if isinstance(d, s.VarDecl)] == ["good"]
    function = next(d for d in tree.decls if isinstance(d, s.FunctionDecl))
    assert function.body is not None
    assert len(function.body.body) == 2  # x and z survive


GOLDEN = """\
m.csl:2:13: error: expected an expression, found ';' [syntax]
    2 |   const x = ;
      |             ^
m.csl:3:10: error: expected ')', found '{' [syntax]
    3 |   if (a  { b(); }
      |          ^
2 errors"""


def test_messages_show_the_line_and_a_caret():
    text = "fn f() void {\n  const x = ;\n  if (a  { b(); }\n}\n"
    with pytest.raises(CompileError) as caught:
        parse_text(text, "m.csl")
    assert str(caught.value) == GOLDEN


@pytest.mark.parametrize(
    ("text", "code", "word"),
    [
        ("var x = 'ab';", "unterminated-literal", "character"),
        ('var x = "ab;\n', "unterminated-literal", "string"),
        ("/* no */ var x = 1;", "bad-character", "block comments"),
        ("var x = 3 # 4;", "bad-character", "'#'"),
        ("const b = a < b < c;", "syntax", "'and' or 'or'"),
        ("const d = |i, j|{2} -> A[i, j];", "syntax", "as many lengths"),
        ("fn f() void {", "syntax", "'}'"),
        ("banana;", "syntax", "a declaration"),
        ("var while = 1;", "syntax", "the variable's name"),
        ("const x = " + "(" * 500 + "1" + ")" * 500 + ";", "syntax", "nested too deeply"),
        ("const x = " + "-" * 5000 + "1;", "syntax", "nested too deeply"),
        ("fn f() void " + "{" * 3000, "too-deep", "nested"),
    ],
)
def test_bad_text_gets_a_named_error(text, code, word):
    with pytest.raises(CompileError) as caught:
        parse_text(text)
    found = [d for d in caught.value.diagnostics if d.code == code]
    assert found
    assert word in found[0].message
