"""Function bodies become typed trees: folded, converted, checked."""

import pytest

from tests.unit.wsesim.csl.support import codes, errors, pe
from wsesim.csl.program import typed_tree as tree
from wsesim.csl.sema import types as t
from wsesim.csl.syntax.walk import nodes

BIND = "comptime { @bind_local_task(main, @get_local_task_id(9)); }\n"


def body(text, before=""):
    """The statements of a task with this body."""
    program = pe(f"{before}\ntask main() void {{\n{text}\n}}\n{BIND}")
    return program.functions["main"].body, program


def test_constants_are_folded_and_branches_pruned():
    (only,), _ = body('if (@is_arch("wse2")) { nonsense(); } else { x = n * 2 + 1; }', "param n: i16 = 4; var x: i16;")
    assert isinstance(only, tree.Assign)
    assert only.value == tree.Const(t.I16, 9)


def test_conversions_are_written_out():
    (only,), _ = body("wide += small;", "var wide: i32; var small: u16 = 3;")
    assert isinstance(only, tree.Assign)
    assert isinstance(only.value, tree.Binary)
    assert only.value.type == t.I32
    assert isinstance(only.value.right, tree.Cast)
    assert (only.value.right.kind, only.value.right.type) == ("numeric", t.I32)


def test_elements_are_addresses():
    (_, only), program = body("var i: u16 = 1; a[2, i] = 1.5;", "var a: [4, 3]f32;")
    assert isinstance(only, tree.Assign)
    place = only.place
    assert isinstance(place, tree.MemRef)
    assert (place.offset, [(s, e) for _, s, e in place.indices]) == (24, [(4, 3)])
    assert program.globals["a"].size == 48


def test_address_taken_locals_live_in_the_frame():
    statements, program = body("var x: u32 = 7; f(&x);", "fn f(p: *u32) void { p.* += 1; }")
    assert program.functions["main"].frame_size == 4
    assert isinstance(statements[0], tree.Assign)
    call = statements[1]
    assert isinstance(call, tree.ExprStmt)
    assert isinstance(call.expr, tree.Call)
    assert isinstance(call.expr.args[0], tree.AddressOf)


def test_generic_functions_are_instantiated_per_type():
    _, program = body(
        "var a: i16 = 1; var b: f32 = 2.0; a = twice(a); b = twice(b); a = twice(a); c = scale(3, a);",
        "var c: i16; fn twice(x: anytype) @type_of(x) { return x + x; }"
        "fn scale(comptime k: i16, x: i16) i16 { return k * x; }",
    )
    assert sorted(str(f.type) for f in program.functions.values() if f.name == "twice") == [
        "fn(f32) f32",
        "fn(i16) i16",
    ]
    (scale,) = (f for f in program.functions.values() if f.name == "scale")
    assert [p.name for p in scale.params] == ["x"]
    assert tree.Const(t.I16, 3) in list(nodes(scale.body))


def test_loops_keep_their_shape():
    statements, _ = body(
        "for (@range(i16, 4)) |i| { if (i == 2) continue; s += i; }\n"
        "var k: u16 = 0; outer: while (k < 10) : (k += 1) { for (a) |v, j| { s += v; if (j == k) break :outer; } }",
        "var s: i16; const a = [3]i16{ 1, 2, 3 };",
    )
    first, _, second = statements
    assert isinstance(first, tree.ForRange)
    assert (first.start, first.stop) == (tree.Const(t.I16, 0), tree.Const(t.I16, 4))
    assert isinstance(second, tree.While)
    assert second.label == "outer"
    assert len(second.step) == 1
    inner = second.body[0]
    assert isinstance(inner, tree.ForRange)
    assert inner.stop == tree.Const(t.U16, 3)


def test_blocks_and_switches_as_values():
    statements, _ = body(
        "const v = blk: { if (s > 2) break :blk s; break :blk 7; };\n s = switch (s) { 0 => v, 1, 2 => 5, else => 6 };",
        "var s: i16 = 0;",
    )
    kinds = [type(x).__name__ for x in statements]
    assert kinds == ["Let", "Block", "Let", "Assign"] or kinds == ["Let", "Block", "Assign"]
    last = statements[-1]
    assert isinstance(last, tree.Assign)
    assert isinstance(last.value, tree.Select)


def test_dsd_operations_and_options():
    (only,), program = body(
        "@fmacs(d, d, e, 2, .{ .index = 3 });",
        "var a: [10]f32; const d = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{4} -> a[2 * i + 1] });\n"
        "var e = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{4} -> a[9 - i] });",
    )
    assert isinstance(only, tree.ExprStmt)
    op = only.expr
    assert isinstance(op, tree.DsdOp)
    assert isinstance(op.dest, tree.DsdConst)
    assert (op.dest.base, op.dest.offset, op.dest.strides, op.dest.extents) == ("a", 4, (2,), (4,))
    assert op.sources[2] == tree.Const(t.F32, 2.0)
    assert op.options.index == tree.Const(t.U16, 3)
    assert program.globals["e"].storage == "object"
    assert program.globals["e"].objects[0].strides == (-1,)


@pytest.mark.parametrize(
    ("access", "strides", "offset"),
    [
        ("|i, j|{5, 5} -> A[i, j]", (5, 1), 0),
        ("|i, j|{2, 3} -> A[1 + i, 2 * j]", (5, 2), 10),
        ("|i, j, k, l|{2, 2, 2, 2} -> A[i + j, k + l + 1]", (5, 5, 1, 1), 2),
    ],
)
def test_four_dimensional_access(access, strides, offset):
    (only,), _ = body(f"@mov16(@get_dsd(mem4d_dsd, .{{ .tensor_access = {access} }}), 1);", "var A: [5, 5]i16;")
    assert isinstance(only, tree.ExprStmt)
    assert isinstance(only.expr, tree.DsdOp)
    found = only.expr.dest
    assert isinstance(found, tree.DsdConst)
    assert (found.strides, found.offset) == (strides, offset)


def test_documented_incremental_strides():
    text = "@comptime_assert((|i, j|{5, 5} -> A[2 * i + j]).stride[1] == -2);"
    pe(f"var A: [20]i16; comptime {{ {text} }}")


def test_fabric_waits_are_marked():
    _, program = body(
        "wait(); @mov32(out, 1, .{ .async = true });",
        "const q = @get_input_queue(2); const o = @get_output_queue(3); var x: u32;\n"
        "const inp = @get_dsd(fabin_dsd, .{ .extent = 1, .input_queue = q });\n"
        "const out = @get_dsd(fabout_dsd, .{ .extent = 1, .output_queue = o });\n"
        "fn wait() void { @mov32(&x, inp); }\n"
        "fn other() void { @mov32(out, 1, .{ .async = true }); }\n"
        "comptime { @initialize_queue(q, .{ .color = @get_color(1) }); @initialize_queue(o, .{ .color = "
        "@get_color(2) }); }",
    )
    assert program.functions["main"].may_stall
    assert program.functions["wait"].may_stall


def test_only_reachable_globals_take_memory():
    _, program = body(
        "used[0] = ptr[1];", "var used: [4]i16; var unused: [20000]i16; var seen: [2]i16; var ptr: [*]i16 = &seen;"
    )
    assert sorted(program.globals) == ["ptr", "seen", "used"]
    ptr, seen = program.globals["ptr"], program.globals["seen"]
    assert ptr.init == seen.address.to_bytes(2, "little")


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("c = 2;", "const-write"),
        ("y = 2;", "undefined-name"),
        ("v = 1.5;", "type-mismatch"),
        ("v = w;", "type-mismatch"),
        ("v = v + h;", "incompatible-types"),
        ("f();", "argument-count"),
        ("f(1, 2);", "argument-count"),
        ("v = f(1.5);", "type-mismatch"),
        ("main();", "task-call"),
        ("v();", "not-callable"),
        ("a[4] = 1;", "index-out-of-bounds"),
        ("a[1, 2] = 1;", "index-count"),
        ("v.x = 1;", "undefined-member"),
        ("p.* = 1;", "const-write"),
        ("break;", "misplaced-jump"),
        ("while (true) { break :nope; }", "unknown-label"),
        ("if (v) {}", "type-mismatch"),
        ("const z: i16 = 1; const z: i16 = 2;", "duplicate-name"),
        ("switch (v) { 1 => {}, 2 => {} }", "switch-not-exhaustive"),
        ("@fmacs(d, d, d, v);", "type-mismatch"),
        ("@fadds(v, d, d);", "type-mismatch"),
        ("@fadds(d, d, d, .{ .async = true });", "async-without-fabric"),
        ("@fadds(d, d, d, .{ .activ = true });", "unknown-field"),
        ("@activate(9);", "type-mismatch"),
        ("@fadds(d, d);", "argument-count"),
        ("const r: u16 = if (v > 1) 3.5 else 2;", "type-mismatch"),
        ("@bind_local_task(main, @get_local_task_id(9));", "misplaced-builtin"),
        ("var arr = g();", "unsupported"),
        ("return 1;", "type-mismatch"),
        ("@comptime_assert(v == 1);", "not-comptime"),
        ("v = @bitcast(i16, w);", "type-mismatch"),
    ],
)
def test_wrong_statements(text, code):
    before = """
    const c: i16 = 1; var v: i16 = 1; var w: i32 = 1; var h: u16 = 1; var a: [4]i16; var x: [4]f32;
    var p: *const i16 = &c; const d = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{4} -> x[i] });
    fn f(n: i16) i16 { return n; }
    fn g() [4]i16 { return a; }
    """
    assert code in codes(f"{before}\ntask main() void {{\n{text}\n}}\n{BIND}")


def test_one_function_reports_all_its_errors():
    found = errors(
        f"var v: i16;\ntask main() void {{\n  v = 1.5;\n  const q = missing;\n  v = q + 1;\n  nope();\n}}\n{BIND}"
    )
    assert [(d.pos.line, d.code) for d in found] == [
        (3, "type-mismatch"),
        (4, "undefined-name"),
        (6, "undefined-name"),
    ]


def test_missing_return():
    assert codes(
        f"var v: i16; fn f(x: i16) i16 {{ if (x > 1) return 2; }}\ntask main() void {{ v = f(v); }}\n{BIND}"
    ) == ["missing-return"]


def test_structs_at_run_time():
    _, program = body(
        "var p: point = .{ .x = v, .y = 2 }; q = p; v = q.y + total(q); q.x += 1;",
        "const point = struct { x: i16, y: i16 }; var q: point; var v: i16;\nfn total(s: point) i16 { return s.x + "
        "s.y; }",
    )
    assert program.globals["q"].size == 4
    assert program.functions["total"].params[0].type == t.PtrType(program.globals["q"].type, const=True)


def test_packed_fields_have_bits():
    statements, _ = body("r.b = 3;", "const reg = packed struct { a: u3, b: u5, c: u8 }; var r: reg;")
    assert isinstance(statements[0], tree.Assign)
    assert isinstance(statements[0].place, tree.MemRef)
    assert statements[0].place.bits == (3, 5)
    assert "packed-address" in codes(
        f"const reg = packed struct {{ a: u3, b: u5, c: u8 }}; var r: reg;\ntask main() void {{ const p = &r.b; "
        f"}}\n{BIND}"
    )
