"""Module instances and the files they come from.

A module instance is a file together with the values of its parameters. Declarations are evaluated when first needed;
the result of a failed one is remembered, so that one mistake gives one message.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from wsesim.csl.sema import types as t
from wsesim.csl.sema.values import CV, FunctionValue
from wsesim.csl.syntax import nodes as s
from wsesim.csl.syntax.diagnostics import CslInputError, Diagnostic, Diagnostics
from wsesim.csl.syntax.parser import parse
from wsesim.csl.syntax.source import NOWHERE, Position, Source

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wsesim.csl.sema.unit import Unit

__all__ = ["LIBRARIES", "Files", "GlobalVar", "Module", "Reported", "Stop", "stop", "unsimulated"]

LIBRARIES = Path(__file__).resolve().parents[2] / "libs"


class Stop(Exception):
    """A semantic error on its way to the place that collects it."""

    def __init__(self, diagnostic: Diagnostic) -> None:
        super().__init__(diagnostic.message)
        self.diagnostic = diagnostic


class Reported(Exception):
    """Something needed here has failed before, and its message is already kept."""


def stop(code: str, message: str, pos: Position, hint: str = "", length: int = 1) -> NoReturn:
    """Raises a semantic error."""
    raise Stop(Diagnostic(code, message, pos, length, hint))


def unsimulated(node: s.BuiltinCall) -> NoReturn:
    """Refuses a builtin that exists and that the simulator has no model of."""
    stop("unsupported", f"@{node.name} is not simulated", node.pos, length=len(node.name) + 1)


@dataclass(eq=False)
class GlobalVar:
    """A global variable, or a constant that needs an address."""

    symbol: str
    name: str
    type: t.Type
    init: Any  # a CV, or UNDEFINED
    const: bool
    pos: Position = NOWHERE
    align: int = 0  # as asked for with align(); 0 for the type's own
    in_library: bool = False

    @property
    def is_object(self) -> bool:
        """Whether it holds descriptors, which live beside the byte memory."""
        elem = self.type.elem if isinstance(self.type, t.ArrayType) else self.type
        return isinstance(elem, t.DsdType)


@dataclass
class Files:
    """Reads and parses source files once; the trees are shared by every instance.

    Attributes:
        diagnostics: where syntax errors go.
        import_paths: further directories for ``@import_module``.
        texts: when given, files are taken from here (path to text) instead of the disk.
    """

    diagnostics: Diagnostics
    import_paths: Sequence[Path] = ()
    texts: dict[str, str] | None = None
    trees: dict[str, s.File] = field(default_factory=dict)
    names: dict[str, dict[str, s.Decl]] = field(default_factory=dict)
    read: dict[str, str] = field(default_factory=dict)

    def exists(self, path: Path) -> bool:
        """Whether a file can be read from ``path``."""
        if self.texts is not None and str(path) in self.texts:
            return True
        return (self.texts is None or LIBRARIES in path.parents) and path.is_file()

    def resolve(self, name: str, importer: Path, pos: Position) -> Path:
        """The file that ``name`` means in a program at ``importer``: ``<lib>``, relative, or on an import path."""
        if name.startswith("<") and name.endswith(">"):
            inner = name[1:-1].removesuffix(".csl")
            path = (LIBRARIES / f"{inner}.csl").resolve()
            if LIBRARIES not in path.parents or not path.is_file():
                have = ", ".join(sorted(f"<{p.relative_to(LIBRARIES).with_suffix('')}>" for p in _library_files()))
                stop("unknown-library", f"there is no library {name}", pos, f"libraries here: {have}", len(name) + 2)
            return path
        tried = []
        for folder in (importer.parent, *self.import_paths):
            for candidate in (folder / name, folder / f"{name}.csl"):
                path = Path(_normal(candidate))
                if self.exists(path):
                    return path
                tried.append(str(path))
        stop("missing-file", f"cannot find module file {name!r}", pos, f"looked for {', '.join(tried)}", len(name) + 2)

    def tree(self, path: Path) -> s.File:
        """The syntax tree of a file."""
        key = str(path)
        if key not in self.trees:
            text = self._text(path)
            self.read[key] = text
            before = len(self.diagnostics.errors)
            tree = parse(Source(_shown(path), text), self.diagnostics)
            self.trees[key] = tree
            self.names[key] = self._names(tree)
            if len(self.diagnostics.errors) > before:
                raise Reported
        return self.trees[key]

    def _text(self, path: Path) -> str:
        if self.texts is not None and str(path) in self.texts:
            return self.texts[str(path)]
        try:
            return path.read_text(encoding="utf-8")
        except OSError as problem:
            raise CslInputError(f"cannot read {path}: {problem.strerror or problem}") from problem
        except UnicodeDecodeError as problem:
            raise CslInputError(f"{path} is not UTF-8 text: {problem}") from problem

    def _names(self, tree: s.File) -> dict[str, s.Decl]:
        names: dict[str, s.Decl] = {}
        for decl in tree.decls:
            if isinstance(decl, s.ParamDecl | s.VarDecl | s.FunctionDecl):
                if decl.name in names:
                    first = names[decl.name].pos
                    note = (("first declared here", first),)
                    text = f"'{decl.name}' is declared twice"
                    self.diagnostics.add(Diagnostic("duplicate-name", text, decl.pos, len(decl.name), notes=note))
                    continue
                names[decl.name] = decl
        return names


def _normal(path: Path) -> str:
    parts: list[str] = []
    for part in path.parts:
        if part == "..":
            if parts and parts[-1] not in ("..", "/"):
                parts.pop()
                continue
            if parts and parts[-1] == "/":
                continue
        elif part == ".":
            continue
        parts.append(part)
    return str(Path(*parts))


def _library_files() -> list[Path]:
    return list(LIBRARIES.rglob("*.csl")) if LIBRARIES.is_dir() else []


def _shown(path: Path) -> str:
    """The name of a file in messages: libraries as ``<name>``, others as given."""
    if LIBRARIES in path.parents:
        return f"<{path.relative_to(LIBRARIES).with_suffix('')}>"
    return str(path)


_FAILED = object()
_BUSY = object()


class Module:
    """A file with parameter values; names are evaluated on demand."""

    def __init__(self, unit: Unit, path: Path, params: dict[str, CV], prefix: str) -> None:
        self.unit, self.path, self.prefix = unit, path, prefix
        self.tree = unit.files.tree(path)
        self.decls = unit.files.names[str(path)]
        self.params = params
        self.in_library = LIBRARIES in path.parents
        self.done: dict[str, Any] = {}
        self.used_params: set[str] = set()

    def lookup(self, name: str, pos: Position) -> CV | GlobalVar | None:
        """What a name means at the top level of this module: a value, a variable, or None when there is none."""
        found = self.done.get(name)
        if found is not None:
            if found is _FAILED:
                raise Reported
            if found is _BUSY:
                stop("cyclic-definition", f"the value of '{name}' depends on itself", pos, length=len(name))
            return found
        decl = self.decls.get(name)
        if decl is None:
            return None
        self.done[name] = _BUSY
        try:
            value = self._evaluate(name, decl)
        except (Stop, Reported) as problem:
            if isinstance(problem, Stop):
                self.unit.diagnostics.add(problem.diagnostic)
            self.done[name] = _FAILED
            raise Reported from problem
        self.done[name] = value
        return value

    def _evaluate(self, name: str, decl: s.Decl) -> CV | GlobalVar:
        if isinstance(decl, s.FunctionDecl):
            return CV(t.ComptimeType("task" if decl.is_task else "fn"), FunctionValue(decl, self))
        evaluator = self.unit.evaluator(self)
        if isinstance(decl, s.ParamDecl):
            self.used_params.add(name)
            return evaluator.parameter(decl, self.params.get(name))
        assert isinstance(decl, s.VarDecl)
        return evaluator.global_variable(decl, f"{self.prefix}{name}")
