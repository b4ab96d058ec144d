"""From files to an elaborated program: the layout first, then every distinct PE program once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from wsesim import watch
from wsesim.csl.builtins.types_and_values import plain
from wsesim.csl.program import elaborated as p
from wsesim.csl.sema import types as t
from wsesim.csl.sema.core import value_key
from wsesim.csl.sema.evaluate import Evaluator
from wsesim.csl.sema.function_summary import mark_stalls, survey
from wsesim.csl.sema.modules import GlobalVar, Module, Stop
from wsesim.csl.sema.placement import place, reachable
from wsesim.csl.sema.unit import LayoutRecord, Session, TileCode, Unit
from wsesim.csl.sema.values import CV
from wsesim.csl.syntax import nodes as s
from wsesim.csl.syntax.source import NOWHERE

if TYPE_CHECKING:
    from pathlib import Path

    from wsesim.csl.program.typed_tree import DsdConst

__all__ = ["Elaborator", "evaluate_layout"]


def _make_unit(session: Session, kind: Any, layout: LayoutRecord) -> Unit:
    unit: Unit

    def evaluator(module: Module) -> Evaluator:
        return Evaluator(unit, module)

    unit = Unit(session, kind, evaluator, layout=layout)
    return unit


def evaluate_layout(session: Session, path: Path, params: dict[str, CV]) -> tuple[LayoutRecord, dict[str, Any]]:
    """Runs the layout block of a file; what it asked for, and the values of the file's parameters."""
    layout = LayoutRecord()
    unit = _make_unit(session, "layout", layout)
    module = unit.load(path, params, "")
    blocks = [d for d in module.tree.decls if isinstance(d, s.LayoutBlock)]
    if len(blocks) != 1:
        where = blocks[1].pos if len(blocks) > 1 else module.tree.pos
        session.diagnostics.error("missing-layout", f"a program has one layout block, found {len(blocks)}", where)
        return layout, {}
    unit.block = "layout"
    unit.evaluator(module).run_block(blocks[0].body)
    unit.block = ""
    for name in params:
        if not isinstance(module.decls.get(name), s.ParamDecl):
            session.diagnostics.warn("unknown-parameter", f"{path.name} has no parameter '{name}'", module.tree.pos)
    _check_tiles(session, layout)
    return layout, _parameter_values(unit, module)


def _parameter_values(unit: Unit, module: Module) -> dict[str, Any]:
    found = {}
    for decl in module.tree.decls:
        if isinstance(decl, s.ParamDecl):
            value = unit.attempt(lambda d=decl: module.lookup(d.name, d.pos))
            if isinstance(value, CV):
                found[decl.name] = plain(value)
    return found


def _check_tiles(session: Session, layout: LayoutRecord) -> None:
    if session.diagnostics.errors:
        return
    if layout.size is None:
        session.diagnostics.error("missing-rectangle", "the layout block does not call @set_rectangle", NOWHERE)
        return
    if session.partial:
        return
    width, height = layout.size
    missing = [(x, y) for y in range(height) for x in range(width) if (x, y) not in layout.tiles]
    if missing:
        x, y = missing[0]
        text = f"{len(missing)} of {width * height} PEs have no code, the first is {x},{y}"
        hint = "call @set_tile_code for every PE of the rectangle"
        session.diagnostics.error("missing-tile-code", text, layout.size_pos or NOWHERE, 1, hint)


class Elaborator:
    """Elaborates PE programs, sharing those that cannot differ.

    A program depends only on the parameters that its evaluation read. Two PEs that agree on those share one program.
    """

    def __init__(self, session: Session, layout: LayoutRecord, *, memcpy: bool) -> None:
        self.session, self.layout, self.memcpy = session, layout, memcpy
        self.programs: list[p.PeProgram] = []
        self.dsds: list[tuple[DsdConst, ...]] = []  # per program, every descriptor it can use
        self._known: dict[Path, dict[tuple[str, ...], dict[Any, int]]] = {}
        self._keys: dict[int, tuple[CV, Any]] = {}

    def index(self, tile: TileCode) -> int:
        """Index of the program of a tile, elaborated when new."""
        tables = self._known.setdefault(tile.path, {})
        for names, table in tables.items():
            found = table.get(self._key(tile, names))
            if found is not None:
                return found
        program, used = self._elaborate(tile)
        self.programs.append(program)
        index = len(self.programs) - 1
        tables.setdefault(used, {})[self._key(tile, used)] = index
        return index

    def _key(self, tile: TileCode, names: tuple[str, ...]) -> Any:
        return tuple(self._value_key(tile.params[n]) if n in tile.params else None for n in names)

    def _value_key(self, value: CV) -> Any:
        known = self._keys.get(id(value))
        if known is None or known[0] is not value:
            known = (value, value_key(value))
            self._keys[id(value)] = known
        return known[1]

    def _elaborate(self, tile: TileCode) -> tuple[p.PeProgram, tuple[str, ...]]:
        unit = _make_unit(self.session, "pe", self.layout)
        module = unit.load(tile.path, tile.params, "")
        for name in tile.params:
            if not isinstance(module.decls.get(name), s.ParamDecl):
                have = ", ".join(d.name for d in module.tree.decls if isinstance(d, s.ParamDecl)) or "none"
                text = f"{tile.path.name} has no parameter '{name}'"
                self.session.diagnostics.error("unknown-parameter", text, tile.pos, 1, f"its parameters: {have}")
        self._keep_exported(unit)
        for action in unit.deferred:
            unit.attempt(action)
        lower_pending(unit)
        program = self._assemble(unit, tile)
        return program, tuple(sorted(module.used_params))

    @staticmethod
    def _keep_exported(unit: Unit) -> None:
        """Variables declared with ``export`` stay even when nothing reads them."""
        for module in unit.modules:
            for decl in module.tree.decls:
                if isinstance(decl, s.VarDecl) and decl.storage == "export":
                    var = unit.attempt(lambda m=module, d=decl: m.lookup(d.name, d.pos))
                    if isinstance(var, GlobalVar):
                        unit.kept.append(var.symbol)

    def _assemble(self, unit: Unit, tile: TileCode) -> p.PeProgram:
        pe, facts = unit.pe, {name: survey(f) for name, f in unit.functions.items()}
        functions = mark_stalls(unit.functions, facts)
        exports = tuple(e for e in (self._export(x) for x in pe.exports) if e is not None)
        roots: list[str] = [*unit.kept, *(e.symbol for e in exports if e.kind == "variable")]
        for found in facts.values():
            roots.extend(found.symbols)
        roots.extend(load.dsd.base for load in pe.dsr_loads if load.dsd.base is not None)
        broken = bool(self.session.diagnostics.errors)
        variables = [] if broken else reachable(dict.fromkeys(roots), unit.globals)
        where = f"{tile.path.name}"
        globals_, memory, image = place(
            variables, functions, sum(f.size for f in facts.values()), memcpy=self.memcpy, where=where,
            diagnostics=self.session.diagnostics,
        )  # fmt: skip
        objects = [x for g in globals_.values() for x in g.objects if x is not None]
        self.dsds.append((*objects, *(x.dsd for x in pe.dsr_loads), *(d for f in facts.values() for d in f.dsds)))
        return p.PeProgram(
            file=str(tile.path),
            params={name: plain(value) for name, value in tile.params.items()},
            globals=globals_,
            functions=functions,
            tasks=tuple(pe.tasks),
            queues=tuple(pe.queues),
            colors=dict(pe.colors),
            fifos=tuple(pe.fifos),
            dsr_loads=tuple(pe.dsr_loads),
            exports=exports,
            initially_active=tuple(pe.active),
            initially_blocked=tuple(pe.blocked),
            initially_unblocked=tuple(pe.unblocked),
            teardown_handlers=dict(pe.teardown),
            empty_queue_handlers=dict(pe.empty_queue),
            control_table=pe.control_table,
            rpc=pe.rpc,
            config=dict(pe.config),
            library_state=dict(pe.library_state),
            memory=memory,
            memory_image=image,
        )

    def _export(self, entry: tuple[str, Any, t.Type, Any]) -> p.Export | None:
        name, target, kind, pos = entry
        declared = self.layout.names.get(name)
        if declared is None:
            hint = f'add @export_name("{name}", {kind}, ...) to the layout block'
            self.session.diagnostics.error("not-exported", f"the layout does not export a name '{name}'", pos, 1, hint)
            return None
        if declared.type != kind and not _export_matches(declared.type, kind):
            text = f"'{name}' is exported as {declared.type} by the layout, this symbol has type {kind}"
            self.session.diagnostics.error("export-mismatch", text, pos)
            return None
        if isinstance(target, GlobalVar):
            return p.Export(name, declared.id, "variable", target.symbol, kind, not target.const, pos)
        return p.Export(name, declared.id, "function", target, kind, pos=pos)


def _export_matches(declared: t.Type, kind: t.Type) -> bool:
    """Pointers may differ in const and in how they count."""
    if isinstance(declared, t.PtrType) and isinstance(kind, t.PtrType):
        return _pointee(declared) == _pointee(kind)
    return False


def _pointee(kind: t.PtrType) -> t.Type:
    return kind.elem.elem if isinstance(kind.elem, t.ArrayType) else kind.elem


def lower_pending(unit: Unit) -> None:
    """Lowers every function that something refers to."""
    while unit.pending:
        watch.poll()
        symbol, instance = unit.pending[0]
        evaluator = unit.evaluator(instance.function.module)
        try:
            unit.functions[symbol] = evaluator.lower_function(symbol, instance)
        except Stop as problem:
            unit.diagnostics.add(problem.diagnostic)
            unit.functions[symbol] = _empty(symbol, instance)
        unit.pending.pop(0)


def _empty(symbol: str, instance: Any) -> p.Function:
    kind = t.FnType(tuple(k for _, k in instance.params), instance.ret, instance.function.decl.is_task)
    return p.Function(symbol, instance.function.name, kind, (), (), 0, ())


def merge_colors(
    program: p.PeProgram, layout: dict[int, p.ColorConfig], at: tuple[int, int], session: Session
) -> dict[int, p.ColorConfig]:
    """A router's configuration: the layout's and the PE program's own."""
    for number in program.colors:
        if number in layout:
            text = f"colour {number} of PE {at[0]},{at[1]} is configured by the layout and by its program"
            hint = f"the layout configures it at {layout[number].pos}"
            session.diagnostics.error("color-clash", text, program.colors[number].pos, 1, hint)
    return {**layout, **program.colors}
