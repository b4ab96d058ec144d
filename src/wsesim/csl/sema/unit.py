"""What one evaluation knows: the session's settings and the record of what the program asked for.

A :class:`Unit` is either the layout or one PE program. Builtins in comptime blocks write into it; elaboration turns it
into a :class:`~wsesim.csl.program.elaborated.PeProgram` or the layout of the program.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from wsesim.csl.sema.modules import Files, GlobalVar, Module, Reported, Stop
from wsesim.csl.syntax import nodes as s

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from wsesim.csl.program import elaborated as p
    from wsesim.csl.sema.evaluate import Evaluator
    from wsesim.csl.sema.values import CV
    from wsesim.csl.syntax.diagnostics import Diagnostics
    from wsesim.csl.syntax.source import Position

__all__ = ["LayoutRecord", "PeRecord", "Session", "TileCode", "Unit"]

Arch = Literal["wse2", "wse3"]


@dataclass
class Session:
    """Settings and shared state of one compilation."""

    arch: Arch
    files: Files
    diagnostics: Diagnostics
    strict: bool = False
    fabric_dims: tuple[int, int] | None = None
    fabric_offsets: tuple[int, int] = (0, 0)
    fp16: str = "f16"
    printed: list[str] = field(default_factory=list)  # @comptime_print
    partial: bool = False  # PEs without code are allowed


@dataclass(frozen=True)
class TileCode:
    """``@set_tile_code``: a file and its parameter values."""

    path: Path
    params: dict[str, CV]
    pos: Position


@dataclass
class LayoutRecord:
    """What the layout block asked for."""

    size: tuple[int, int] | None = None
    size_pos: Position | None = None
    tiles: dict[tuple[int, int], TileCode] = field(default_factory=dict)
    colors: dict[tuple[int, int], dict[int, p.ColorConfig]] = field(default_factory=dict)
    names: dict[str, p.ExportedName] = field(default_factory=dict)


@dataclass
class PeRecord:
    """What the comptime blocks of a PE program asked for."""

    tasks: list[p.TaskBinding] = field(default_factory=list)
    queues: list[p.QueueInit] = field(default_factory=list)
    colors: dict[int, p.ColorConfig] = field(default_factory=dict)
    fifos: list[p.Fifo] = field(default_factory=list)
    dsr_loads: list[p.DsrLoad] = field(default_factory=list)
    exports: list[tuple[str, GlobalVar | str, Any, Position]] = field(default_factory=list)
    active: list[int] = field(default_factory=list)
    blocked: list[tuple[str, int]] = field(default_factory=list)
    unblocked: list[tuple[str, int]] = field(default_factory=list)
    teardown: dict[int, str] = field(default_factory=dict)
    empty_queue: dict[tuple[str, int], str] = field(default_factory=dict)
    control_table: tuple[int, int] | None = None
    rpc: int | None = None
    config: dict[int, int] = field(default_factory=dict)
    library_state: dict[str, Any] = field(default_factory=dict)


class Unit:
    """One evaluation: a layout, or a PE program with its parameters."""

    def __init__(
        self,
        session: Session,
        kind: Literal["layout", "pe"],
        make_evaluator: Callable[[Module], Evaluator],
        *,
        layout: LayoutRecord,
    ) -> None:
        self.session, self.kind, self.layout = session, kind, layout
        self.files, self.diagnostics = session.files, session.diagnostics
        self.evaluator = make_evaluator
        self.pe = PeRecord()
        self.globals: dict[str, GlobalVar] = {}
        self.functions: dict[str, p.Function] = {}
        self.pending: list[tuple[str, Any]] = []  # function instances still to be lowered
        self.block: Literal["", "comptime", "layout"] = ""  # the top-level block being evaluated
        self.modules: list[Module] = []
        self.imports = 0
        self.depth = 0
        self.kept: list[str] = []  # globals that stay even when nothing reads them
        self.steps = 0
        self.deferred: list[Callable[[], None]] = []  # run when every comptime block has run
        self.constants: dict[Any, tuple[GlobalVar, CV]] = {}
        self.constant_align: dict[Any, int] = {}

    @property
    def arch(self) -> Arch:
        """The target architecture."""
        return self.session.arch

    @property
    def strict(self) -> bool:
        """Whether undocumented constructs are errors."""
        return self.session.strict

    def register(self, var: GlobalVar) -> GlobalVar:
        """Gives a global a symbol of its own."""
        base, number = var.symbol, 2
        while var.symbol in self.globals:
            var.symbol = f"{base}${number}"
            number += 1
        self.globals[var.symbol] = var
        return var

    def unique_function(self, symbol: str) -> str:
        """A function symbol that is not taken."""
        number, found = 2, symbol
        while found in self.functions or any(found == name for name, _ in self.pending):
            found = f"{symbol}${number}"
            number += 1
        return found

    def load(self, path: Path, params: dict[str, CV], prefix: str) -> Module:
        """A module instance; its imports are evaluated at once, its comptime blocks after its imports."""
        module = Module(self, path, params, prefix)
        self.modules.append(module)
        for decl in module.tree.decls:
            if isinstance(decl, s.VarDecl) and _imports(decl.init):
                self.attempt(lambda d=decl: module.lookup(d.name, d.pos))
        if self.kind == "pe":
            self._comptime_blocks(module)
        return module

    def _comptime_blocks(self, module: Module) -> None:
        for decl in module.tree.decls:
            if isinstance(decl, s.ComptimeBlock):
                before = self.block
                self.block = "comptime"
                self.attempt(lambda d=decl: self.evaluator(module).run_block(d.body))
                self.block = before

    def attempt(self, action: Callable[[], Any]) -> Any:
        """Runs an action; a semantic error is kept and the compilation goes on."""
        try:
            return action()
        except Stop as problem:
            self.diagnostics.add(problem.diagnostic)
        except Reported:
            pass
        return None


def _imports(expr: s.Expr | None) -> bool:
    match expr:
        case s.BuiltinCall(name="import_module"):
            return True
        case s.IfExpr(then=then, other=other):
            return _imports(then) or _imports(other)
        case _:
            return False
