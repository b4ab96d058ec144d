r"""The compiler's driver: files and flags in, an elaborated program out.

>>> layout = "layout { @set_rectangle(1, 1); @set_tile_code(0, 0, 'pe.csl'); }".replace("'", '"')
>>> program = compile_texts({"layout.csl": layout, "pe.csl": "var x: [4]f32; export var y: u16 = 3;"}, arch="wse3")
>>> program.pe(0, 0).globals["y"].size
2
"""

from __future__ import annotations

import json
import os
import sys
import threading
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from wsesim import watch
from wsesim.csl.program import elaborated as p
from wsesim.csl.sema import types as t
from wsesim.csl.sema.checks import check_program
from wsesim.csl.sema.elaborate import Elaborator, evaluate_layout, merge_colors
from wsesim.csl.sema.modules import LIBRARIES, Files, Reported
from wsesim.csl.sema.unit import LayoutRecord, Session, TileCode
from wsesim.csl.sema.values import CV
from wsesim.csl.syntax.diagnostics import CompileError, CslInputError, Diagnostics
from wsesim.csl.syntax.nodes import BoolLiteral, FloatLiteral, IntLiteral, Name, StringLiteral, Unary, VarDecl
from wsesim.csl.syntax.parser import parse_text
from wsesim.csl.syntax.source import NOWHERE

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

__all__ = ["compile_program", "compile_texts", "elaborate_pe", "load_output", "parse_assignments", "write_output"]

Arch = Literal["wse2", "wse3"]
_FORMAT = 1


def parse_assignments(text: str, flag: str = "--params") -> dict[str, str]:
    """``a:1,b:2`` as a dictionary.

    >>> parse_assignments("M:4,N:6")
    {'M': '4', 'N': '6'}
    """
    found: dict[str, str] = {}
    for part in filter(None, (x.strip() for x in text.split(","))):
        name, colon, value = part.partition(":")
        if not colon or not name or not value:
            raise CslInputError(f"{flag}: expected name:value pairs separated by commas, found {part!r}")
        if name in found:
            raise CslInputError(f"{flag}: {name} is given twice")
        found[name] = value
    return found


def _value(name: str, given: Any) -> CV:
    """A command-line value: a literal of the language, or a type's name."""
    if isinstance(given, CV):
        return given
    if isinstance(given, tuple) and len(given) == 2 and isinstance(given[0], str):
        return CV(t.HandleType(given[0]), int(given[1]))
    if isinstance(given, bool):
        return CV(t.BOOL, given)
    if isinstance(given, int):
        return CV(t.COMPTIME_INT, given)
    if isinstance(given, float):
        return CV(t.COMPTIME_FLOAT, given)
    try:
        decl = parse_text(f"const x = {given};", "--params").decls[0]
    except CompileError as problem:
        raise CslInputError(
            f"parameter {name}: {given!r} is not a value: {problem.diagnostics[0].message}"
        ) from problem
    assert isinstance(decl, VarDecl)
    return _literal(name, decl.init, str(given))


def _literal(name: str, node: Any, text: str) -> CV:
    from wsesim.csl.sema.core import PRIMITIVES
    from wsesim.csl.sema.operators import string_value

    match node:
        case IntLiteral():
            return CV(t.COMPTIME_INT, node.value)
        case FloatLiteral():
            return CV(t.COMPTIME_FLOAT, node.value)
        case BoolLiteral(value):
            return CV(t.BOOL, value)
        case StringLiteral(spelled):
            return CV(t.COMPTIME_STRING, string_value(spelled))
        case Unary(op="-", operand=IntLiteral() | FloatLiteral()):
            inner = _literal(name, node.operand, text)
            return CV(inner.type, -inner.value)
        case Name(id=word) if word in PRIMITIVES:
            return PRIMITIVES[word]
        case _:
            raise CslInputError(f"parameter {name}: {text!r} is not a number, bool, string or type")


def compile_program(
    path: str | os.PathLike[str],
    *,
    arch: Arch = "wse3",
    params: Mapping[str, Any] | None = None,
    colors: Mapping[str, int] | None = None,
    fabric_dims: tuple[int, int] | None = None,
    fabric_offsets: tuple[int, int] = (0, 0),
    memcpy: bool = False,
    channels: int = 0,
    width_west_buf: int = 0,
    width_east_buf: int = 0,
    strict: bool = False,
    import_paths: Sequence[str | os.PathLike[str]] = (),
    texts: Mapping[str, str] | None = None,
    partial: bool = False,
) -> p.Program:
    """Compiles a layout file and everything it refers to.

    Args:
        path: the layout file.
        arch: ``wse2`` or ``wse3``.
        params: values of the layout's parameters: numbers, bools, or text as on the command line.
        colors: colours given with ``--colors``.
        fabric_dims: size of the fabric; None to take the rectangle.
        fabric_offsets: where the rectangle starts.
        memcpy: whether the memcpy component is linked (it takes memory).
        channels: memcpy channels.
        width_west_buf: columns of buffers in the west.
        width_east_buf: columns of buffers in the east.
        strict: reject what the documentation does not define, and every resource conflict.
        import_paths: further directories for modules.
        texts: files as path to text; when given the disk is not read (libraries excepted).
        partial: PEs may be without code; for estimates, such a program does not run.

    Raises:
        CompileError: with every diagnostic, when the program is not valid.
        CslInputError: when a file or a parameter cannot be used.
    """
    if arch not in ("wse2", "wse3"):
        raise CslInputError(f"--arch: there is no architecture {arch!r}; known are wse2 and wse3")
    with _deep_recursion():
        return _compile(
            path, arch, params or {}, colors or {}, fabric_dims, fabric_offsets, memcpy, channels, width_west_buf,
            width_east_buf, strict, import_paths, texts, partial,
        )  # fmt: skip


# Several threads may compile: the first raises the limit, the last puts it back.
_limit_lock = threading.Lock()
_compiling = 0
_usual_limit = 0


@contextmanager
def _deep_recursion() -> Iterator[None]:
    """Comptime calls nest deeper than Python's default allows; our own limit stops endless ones."""
    global _compiling, _usual_limit
    with _limit_lock:
        if not _compiling:
            _usual_limit = sys.getrecursionlimit()
            sys.setrecursionlimit(max(_usual_limit, 12_000))
        _compiling += 1
    try:
        yield
    finally:
        with _limit_lock:
            _compiling -= 1
            if not _compiling:
                sys.setrecursionlimit(_usual_limit)


def _compile(
    path: str | os.PathLike[str], arch: Arch, params: Mapping[str, Any], colors: Mapping[str, int],
    fabric_dims: tuple[int, int] | None, fabric_offsets: tuple[int, int], memcpy: bool, channels: int,
    width_west_buf: int, width_east_buf: int, strict: bool, import_paths: Sequence[Any],
    texts: Mapping[str, str] | None, partial: bool,
) -> p.Program:  # fmt: skip
    session = _session(arch, strict, import_paths, texts, fabric_dims, fabric_offsets)
    session.partial = partial
    given = {name: _value(name, value) for name, value in params.items()}
    given.update({name: CV(t.HandleType("color"), int(number)) for name, number in colors.items()})
    try:
        layout, values = evaluate_layout(session, Path(os.path.abspath(path)) if texts is None else Path(path), given)
    except Reported:
        session.diagnostics.check()
        raise
    session.diagnostics.check()
    assert layout.size is not None
    program, dsds = _tiles(session, layout, memcpy=memcpy)
    as_given = {
        **{k: _as_text(v) for k, v in params.items()},
        **{k: ("color", v) for k, v in colors.items()},
    }
    shown = {name: str(value) for name, value in values.items()}
    found = p.Program(
        arch, layout.size[0], layout.size[1], *program, tuple(layout.names.values()), shown,
        fabric_dims, fabric_offsets, memcpy, channels, width_west_buf, width_east_buf, dict(session.files.read),
        given=as_given, strict=strict,
    )  # fmt: skip
    check_program(found, dsds, session)
    session.diagnostics.check()
    return replace(found, warnings=tuple(session.diagnostics.items))


def _as_text(value: Any) -> Any:
    if isinstance(value, bool):
        return "true" if value else "false"
    return value if isinstance(value, tuple) else str(value)


def _session(
    arch: Arch, strict: bool, import_paths: Sequence[Any], texts: Mapping[str, str] | None,
    fabric_dims: tuple[int, int] | None, fabric_offsets: tuple[int, int],
) -> Session:  # fmt: skip
    diagnostics = Diagnostics()
    files = Files(diagnostics, [Path(x) for x in import_paths], dict(texts) if texts is not None else None)
    return Session(arch, files, diagnostics, strict, fabric_dims, fabric_offsets)


def _tiles(session: Session, layout: LayoutRecord, *, memcpy: bool) -> tuple[tuple[Any, Any, Any], list[Any]]:
    elaborator = Elaborator(session, layout, memcpy=memcpy)
    tiles: dict[tuple[int, int], int] = {}
    colors: dict[tuple[int, int], Mapping[int, p.ColorConfig]] = {}
    failed = 0
    for at in sorted(layout.tiles, key=lambda c: (c[1], c[0])):
        watch.poll()
        before = len(elaborator.programs)
        try:
            tiles[at] = elaborator.index(layout.tiles[at])
        except Reported:
            failed += 1
            if failed > 3:
                break
            continue
        if session.diagnostics.errors and len(elaborator.programs) > before:
            failed += 1
            if failed > 3:
                break
        colors[at] = merge_colors(elaborator.programs[tiles[at]], layout.colors.get(at, {}), at, session)
    session.diagnostics.check()
    return (tuple(elaborator.programs), tiles, colors), elaborator.dsds


def compile_texts(texts: Mapping[str, str], *, arch: Arch = "wse3", **options: Any) -> p.Program:
    """Compiles files given as text; the first one holds the layout."""
    rooted = {f"/{name}" if not name.startswith("/") else name: text for name, text in texts.items()}
    return compile_program(next(iter(rooted)), arch=arch, texts=rooted, **options)


def elaborate_pe(
    path: str | os.PathLike[str],
    *,
    arch: Arch = "wse3",
    params: Mapping[str, Any] | None = None,
    rectangle: tuple[int, int] = (1, 1),
    exported: Sequence[p.ExportedName] = (),
    memcpy: bool = False,
    strict: bool = False,
) -> p.PeProgram:
    """Elaborates one PE file without a layout; ``params`` may hold ``("color", 3)`` pairs for handles."""
    session = _session(arch, strict, (), None, rectangle, (0, 0))
    layout = LayoutRecord(size=rectangle, names={e.name: e for e in exported})
    values = {name: _value(name, value) for name, value in (params or {}).items()}
    elaborator = Elaborator(session, layout, memcpy=memcpy)
    try:
        with _deep_recursion():
            index = elaborator.index(TileCode(Path(os.path.abspath(path)), values, NOWHERE))
    except Reported:
        session.diagnostics.check()
        raise
    session.diagnostics.check()
    return elaborator.programs[index]


# --- output directory ------------------------------------------------------------------------------------------------


def write_output(program: p.Program, directory: str | os.PathLike[str], *, layout: str, strict: bool = False) -> None:
    """Writes what running needs: ``out.json`` for the host, ``program.json`` and the sources to elaborate again.

    Args:
        program: a compiled program.
        directory: where to; made when missing.
        layout: path of the layout file that was compiled.
        strict: whether it was compiled in strict mode.
    """
    out = Path(directory)
    own = {name: text for name, text in program.sources.items() if LIBRARIES not in Path(name).parents}
    root = os.path.commonpath([os.path.dirname(n) for n in own]) if own else "/"
    (out / "src").mkdir(parents=True, exist_ok=True)
    files = []
    for name, text in own.items():
        relative = os.path.relpath(name, root)
        target = out / "src" / relative
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")
        files.append(relative)
    description = {
        "format": _FORMAT,
        "arch": program.arch,
        "layout": os.path.relpath(os.path.abspath(layout), root),
        "files": files,
        "given": dict(program.given),
        "fabric_dims": program.fabric_dims,
        "fabric_offsets": program.fabric_offsets,
        "memcpy": program.memcpy,
        "channels": program.channels,
        "width_west_buf": program.width_west_buf,
        "width_east_buf": program.width_east_buf,
        "strict": strict,
        "rectangle": [program.width, program.height],
        "rpc_symbols": [_rpc_symbol(e) for e in program.exported_names],
    }
    (out / "program.json").write_text(json.dumps(description, indent=1), encoding="utf-8")
    colors = {n: v[1] for n, v in program.given.items() if isinstance(v, tuple | list) and v[0] == "color"}
    shown = {"params": dict(program.params), "colors": colors}
    (out / "out.json").write_text(json.dumps(shown, indent=1), encoding="utf-8")


def _rpc_symbol(name: p.ExportedName) -> dict[str, Any]:
    if isinstance(name.type, t.FnType):
        inputs = [{"name": f"arg{i}", "type": str(kind)} for i, kind in enumerate(name.type.params)]
        return {"id": name.id, "name": name.name, "type": str(name.type.ret), "kind": "Func", "inputs": inputs}
    if name.type == t.HandleType("color"):
        return {"id": name.id, "name": name.name, "type": "color", "kind": "Stream", "color": name.color}
    return {"id": name.id, "name": name.name, "type": str(name.type), "kind": "Var", "immutable": not name.mutable}


def load_output(directory: str | os.PathLike[str]) -> p.Program:
    """Elaborates the program of an output directory again.

    Raises:
        CslInputError: when the directory does not hold a compiled program.
    """
    out = Path(directory)
    try:
        found = json.loads((out / "program.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as problem:
        raise CslInputError(f"{out} does not hold a compiled program: {problem}") from problem
    if not isinstance(found, dict) or found.get("format") != _FORMAT:
        raise CslInputError(f"{out}/program.json has another format; compile the program again")
    dims = found["fabric_dims"]
    return compile_program(
        out / "src" / found["layout"],
        arch=found["arch"],
        params={name: tuple(x) if isinstance(x, list) else x for name, x in found["given"].items()},
        fabric_dims=tuple(dims) if dims else None,
        fabric_offsets=tuple(found["fabric_offsets"]),
        memcpy=found["memcpy"],
        channels=found["channels"],
        width_west_buf=found["width_west_buf"],
        width_east_buf=found["width_east_buf"],
        strict=found["strict"],
    )
