"""Small programs written as trees, for tests of the machine that need no front end."""

from wsesim.csl.program import typed_tree as T
from wsesim.csl.program.elaborated import (
    ColorConfig,
    Export,
    Function,
    Global,
    MemoryMap,
    PeProgram,
    Program,
    QueueInit,
    TaskBinding,
)
from wsesim.csl.sema.types import F32, VOID, ArrayType, DsdType, FnType, HandleType, PtrType

BASE = 128
LOCAL = HandleType("local_task_id")
UNBLOCK = T.ExprStmt(T.Builtin(VOID, "intrinsic", (), intrinsic="memcpy.unblock_cmd_stream"))
DONE = Function("done", "done", FnType((), VOID, True), (), (), 0, (UNBLOCK,))


def memory(n, offset=0, stride=1, base="a"):
    return T.DsdConst(DsdType("mem1d_dsd"), base=base, offset=offset, extents=(n,), strides=(stride,), elem=F32)


def fabin(n, color=1, queue=2):
    return T.DsdConst(DsdType("fabin_dsd"), extents=(n,), color=color, queue=queue)


def fabout(n, color=1, queue=2, **more):
    return T.DsdConst(DsdType("fabout_dsd"), extents=(n,), color=color, queue=queue, **more)


def op(name, dest, *sources, **options):
    return T.ExprStmt(T.DsdOp(VOID, name, dest, sources, T.OpOptions(**options)))


def starting(name, dest, *sources):
    """An asynchronous operation that activates ``done``."""
    return op(name, dest, *sources, is_async=True, activate=T.Const(LOCAL, 9))


def unit(*body, n=100, colors=(1,)):
    """A PE program with an exported f32 array ``a`` and function ``main``."""
    image = bytearray(BASE + 4 * n)
    image[64:66] = BASE.to_bytes(2, "little")
    pointer = PtrType(F32, many=True)
    queues = [QueueInit(d, 2 + i, c) for i, c in enumerate(colors) for d in ("input", "output")]
    return PeProgram(
        "unit.csl",
        {},
        {
            "a": Global("a", "a", ArrayType((n,), F32), BASE, 4 * n, 4),
            "p": Global("p", "p", pointer, 64, 2, 2),
        },
        {"main": Function("main", "main", FnType((), VOID), (), (), 0, body), "done": DONE},
        tasks=(TaskBinding("local", 9, "done"),),
        queues=tuple(queues),
        exports=(
            Export("a", 0, "variable", "p", pointer),
            Export("main", 1, "function", "main", FnType((), VOID)),
        ),
        memory=MemoryMap(4 * n, 0, 1024, BASE),
        memory_image=bytes(image),
    )


def row(units, colors, arch="wse3"):
    """A row of PEs; ``colors[x]`` maps a colour to (rx, tx) or a configuration."""
    tiles = {(x, 0): x for x in range(len(units))}
    made = {}
    for x, configs in enumerate(colors):
        made[(x, 0)] = {
            c: r if isinstance(r, ColorConfig) else ColorConfig(rx=tuple(r[0]), tx=tuple(r[1]))
            for c, r in configs.items()
        }
    return Program(arch, len(units), 1, tuple(units), tiles, made, memcpy=True)
