import pytest

from tests.unit.wsesim.csl.support import assert_comptime, codes, errors
from wsesim.csl.program.driver import compile_texts


def test_arithmetic_and_types():
    assert_comptime(
        "7 / 2 == 3 and -7 / 2 == -3 and -7 % 2 == -1",
        "@as(i16, -10.8) == -10 and @as(u8, 300) == 44 and @as(bool, -5) and !@as(bool, 0)",
        "@is_same_type(@type_of(@as(i16, 1) + 1), i16)",
        "@is_same_type(@type_of(@as(u8, 1) + @as(u16, 1)), u16)",
        "@is_same_type(@type_of(@as(f16, 1.0) * 2.0), f16)",
        "@bitcast(u16, @as(f16, 1.0)) == 0x3c00",
        "@bitcast(u16, @as(cb16, 6.0)) == 0b0101100100000000",
        "@bitcast(u16, @as(bf16, 6.0)) == 0b0100000011000000",
        "~@as(u8, 0b10101111) == 0b01010000 and (1 << 8) == 256 and 0b1010 >> 1 == 0b101",
        '@strlen(@strcat("ab", "c")) == 3 and "abc\\x00xyz" != "abc"',
        "'a' == 97 and @get_array(\"abc\")[2] == 99",
        "(false and nonsense) == false and (true or nonsense)",
        "if (1 < 2) true else nonsense",
        "1000 * 1000 * 1000 * 1000 / (1000 * 1000) == 1000000",
    )


def test_structs_enums_unions_and_generics():
    assert_comptime(
        "c.re + c.im == 3.0",
        "@type_of(pair(i32, f16){ .a = 1, .b = 2.0 }.b) == f16",
        "s1 == s1 and s1 != s2 and pair(i16, i16) == pair(i16, i16) and pair(i16, i32) != pair(i16, i16)",
        "@as(u16, e.blue) == 2 and @as(e, 1) == e.white and @get_int(e.red) == 0",
        "@has_field(.{ .x = 1 }, \"x\") and !@has_field(.{ .x = 1 }, \"y\")",
        "@concat_structs(.{ .x = 1 }, .{ .y = 2 }).y == 2",
        "@field(c, \"re\") == 1.0 and .{ 4, 5 }[1] == 5",
        "@rank([3, 5]f16) == 2 and @dimensions([3, 5]f16)[1] == 5 and @element_count([3, 5]f16) == 15",
        "u{ .i = 57 }.i == 57",
        before="""
        const complex = struct { re: f16, im: f16 };
        const c: complex = .{ .im = 2.0, .re = 1.0 };
        fn pair(comptime A: type, comptime B: type) type { return struct { a: A, b: B }; }
        const s1 = struct { x: i16 };
        const s2 = struct { x: i16 };
        const e = enum(u16) { red, white = 1, blue };
        const u = union { i: i16, f: f16 };
        """,
    )  # fmt: skip


def test_control_flow_at_compile_time():
    assert_comptime(
        "fib(12) == 144",
        "identity[2, 2] == 1.0 and identity[1, 2] == 0.0",
        "find(7) == 3 and find(8) == -1",
        "label() == 12",
        "pick(e.b) == 20",
        before="""
        const e = enum(u16) { a, b };
        fn fib(n: u16) u32 { if (n < 2) return n; return fib(n - 1) + fib(n - 2); }
        const identity = make();
        fn make() [4, 4]f16 {
          var m = @zeros([4, 4]f16);
          var i: u16 = 0;
          while (i < 4) : (i += 1) { m[i, i] = 1.0; }
          return m;
        }
        const primes = [5]i16 { 2, 3, 5, 7, 11 };
        fn find(x: i16) i16 { for (primes) |p, k| { if (p == x) return @as(i16, k); } return -1; }
        fn label() i16 {
          var n: i16 = 0;
          outer: for (@range(i16, 10)) |i| {
            for (@range(i16, 0, 10, 2)) |j| { if (j > i) continue :outer; if (i == 4) break :outer; n += j; }
          }
          return n + blk: { if (n > 100) break :blk 0; break :blk 8; };
        }
        fn pick(x: e) i16 { return switch (x) { e.a => 10, e.b => 20 }; }
        """,
    )


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("const x: i16 = 40000;", "out-of-range"),
        ("const x: u8 = @as(u8, 255) + @as(u8, 1);", "overflow"),
        ("const x = 1 / 0;", "division-by-zero"),
        ("const x = y; const y = x;", "cyclic-definition"),
        ("const x = nope;", "undefined-name"),
        ("var v: i16 = 1; const x = v;", "not-comptime"),
        ("const a = [2]i16{ 1, 2 }; const x = a[2];", "index-out-of-bounds"),
        ("const x = [2]i16{ 1, 2, 3 };", "type-mismatch"),
        ('const x: i16 = "t";', "type-mismatch"),
        ("const x = @as(f32, 1.0) + @as(u16, 1);", "incompatible-types"),
        ("const p = struct { x: i32 }; const x: p = .{ .y = 1 };", "type-mismatch"),
        ("const x = .{ .a = 1 }.b;", "undefined-member"),
        ("fn f() i16 { while (true) {} } const x = f();", "comptime-limit"),
        ("fn f(n: i16) i16 { return f(n); } const x = f(1);", "comptime-depth"),
        ("const x = @zeros([4][4]f32);", "nested-array"),
        ("const x = @foo(1);", "unknown-builtin"),
        ("const x = @get_color(24);", "id-out-of-range"),
        ("const x = @get_local_task_id(3);", "id-out-of-range"),
        ("const x = @get_data_task_id(@get_color(3));", "type-mismatch"),
        ("var x = 10;", "comptime-only"),
        ("const u = union { i: i16, f: f16 }; const x = u{ .i = 1 }.f;", "inactive-variant"),
        ('const m = @import_module("<nothing>");', "unknown-library"),
        ('const m = @import_module("nothing.csl");', "missing-file"),
        ('const m = @import_module("pe.csl");', "import-depth"),
        ("const e = enum(u16) { a = 1, b = 1 };", "duplicate-value"),
        ("const x = 1; const x = 2;", "duplicate-name"),
    ],
)
def test_wrong_constants(text, code, monkeypatch):
    monkeypatch.setattr("wsesim.csl.sema.execute.STEP_LIMIT", 2000)
    names = [w for w in ("x", "m", "e") if f"const {w} =" in text or f"const {w}:" in text]
    use = (
        f"comptime {{ const used = {names[-1]}; }}"
        if names
        else "export var y: u16 = 0; comptime { @export_symbol(x); }"
    )
    assert code in codes(f"{text}\n{use}")


def test_a_failed_name_is_reported_once():
    found = errors('const bad = 1 + "t";\nconst a = bad; const b = bad;\ncomptime { @comptime_assert(a == b); }')
    assert [d.code for d in found] == ["incompatible-types"]


def test_suggestions():
    (found,) = errors("const length = 3;\ncomptime { @comptime_assert(lenght == 3); }")
    assert found.hint == "did you mean 'length'?"
    assert (found.pos.line, found.pos.column) == (2, 29)


def test_architecture_and_asserts():
    assert_comptime('@is_arch("wse2")', arch="wse2")
    (found,) = errors('comptime { @comptime_assert(@is_arch("wse2"), "only WSE-2"); }')
    assert (found.code, found.message) == ("comptime-assert", "assertion failed: only WSE-2")


def test_modules_are_independent_copies():
    texts = {
        "counter.csl": "param start: i16 = 5; var n: i16 = start; fn bump() void { n += 1; }",
    }
    found = compile_texts(
        {
            "layout.csl": 'layout { @set_rectangle(1, 1); @set_tile_code(0, 0, "pe.csl"); }',
            "pe.csl": 'const a = @import_module("counter.csl");\n'
            'const b = @import_module("counter.csl", .{ .start = 9 });\n'
            "task t() void { a.bump(); b.bump(); }\n"
            "comptime { @bind_local_task(t, @get_local_task_id(9)); }",
            **texts,
        }
    ).pe(0, 0)
    assert sorted((g.name, g.init) for g in found.globals.values()) == [("n", b"\x05\x00"), ("n", b"\x09\x00")]
    assert len([f for f in found.functions.values() if f.name == "bump"]) == 2
