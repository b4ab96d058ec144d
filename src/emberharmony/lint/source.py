"""Reading source files safely, and the parsed module that rules look at."""

import ast
import codecs
import io
import re
import tokenize
import warnings
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from emberharmony.lint.findings import FileProblem
from emberharmony.lint.kinds import Kind, Kinds
from emberharmony.lint.scopes import OPS, ScopeMap

__all__ = ["MAX_FILE_BYTES", "Module", "SourceFile", "Unreadable", "parse", "read_source"]

MAX_FILE_BYTES = 2_000_000

# The line ends the parser counts; str.splitlines knows more and would shift positions.
_LINE = re.compile(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+")


class Unreadable(Exception):
    """A file that cannot be checked; `problem` says why.

    Example:
        >>> str(Unreadable(FileProblem("a.py", "binary", "contains null bytes")))
        'a.py: binary: contains null bytes'
    """

    def __init__(self, problem: FileProblem) -> None:
        super().__init__(str(problem))
        self.problem = problem


@dataclass(frozen=True, slots=True)
class SourceFile:
    """Decoded text with what is needed to write it back unchanged."""

    path: str
    text: str
    encoding: str = "utf-8"
    bom: bool = False

    def encode(self, text: str) -> bytes:
        """The bytes of `text` in this file's encoding."""
        return (codecs.BOM_UTF8 if self.bom else b"") + text.encode(self.encoding)


def read_source(path: Path, shown: str, max_bytes: int = MAX_FILE_BYTES) -> SourceFile:
    """Read a Python file in the encoding it declares.

    Args:
        path: The file.
        shown: Its name in messages.
        max_bytes: Larger files are refused before they are read.

    Returns:
        The decoded file.

    Raises:
        Unreadable: The file is missing, not a regular file, too large, binary or not text in
            its declared encoding.
    """
    try:
        # A pipe or device could block for ever, so only regular files are opened.
        if not path.is_file():
            raise Unreadable(FileProblem(shown, "unreadable", "not a regular file"))
        with path.open("rb") as file:
            raw = file.read(max_bytes + 1)
    except OSError as error:
        reason = error.strerror or str(error)
        raise Unreadable(FileProblem(shown, "unreadable", reason)) from error
    if len(raw) > max_bytes:
        message = f"larger than the limit of {max_bytes} bytes (see --max-bytes)"
        raise Unreadable(FileProblem(shown, "too-large", message))
    return _decode(raw, shown)


def _decode(raw: bytes, shown: str) -> SourceFile:
    if b"\0" in raw:
        raise Unreadable(FileProblem(shown, "binary", "contains null bytes"))
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(raw).readline)
        bom = raw.startswith(codecs.BOM_UTF8)
        plain = "utf-8" if encoding == "utf-8-sig" else encoding
        text = raw[len(codecs.BOM_UTF8) if bom else 0 :].decode(plain)
    except (SyntaxError, UnicodeError, LookupError) as error:
        raise Unreadable(FileProblem(shown, "not-text", str(error))) from error
    return SourceFile(shown, text, plain, bom)


def parse(text: str) -> ast.Module:
    """Parse without letting the checked code's own warnings through.

    Example:
        >>> len(parse("x = 1").body)
        1
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ast.parse(text)


class Module:
    r"""A parsed file: nodes in order, their parents, what names mean, what values are.

    Example:
        >>> module = Module("a.py", "import numpy as np\nnp.mean(x)\n")
        >>> [dotted for _, dotted in module.references]
        ['numpy.mean']
    """

    def __init__(self, path: str, text: str) -> None:
        self.path = path
        self.text = text
        self.tree = parse(text)
        self.parents: dict[ast.AST, ast.AST] = {}
        self.nodes = self._order()
        self.scopes = ScopeMap(self.tree)

    def _order(self) -> list[ast.AST]:
        """All nodes, parents before children, found without recursion."""
        nodes: list[ast.AST] = []
        pending: list[ast.AST] = [self.tree]
        while pending:
            node = pending.pop()
            nodes.append(node)
            children = list(ast.iter_child_nodes(node))
            self.parents.update((child, node) for child in children)
            pending.extend(reversed(children))
        return nodes

    @cached_property
    def lines(self) -> list[str]:
        """Source lines with their line ends, split as the parser splits them."""
        return _LINE.findall(self.text)

    @cached_property
    def _starts(self) -> list[int]:
        starts = [0]
        for line in self.lines:
            starts.append(starts[-1] + len(line))
        return starts

    def column(self, line: int, byte_column: int) -> int:
        """Character column, from 0, of a byte column the parser gave."""
        if line > len(self.lines):
            return byte_column
        text = self.lines[line - 1]
        if text.isascii():
            return byte_column
        return len(text.encode()[:byte_column].decode(errors="replace"))

    def start(self, node: ast.expr | ast.stmt) -> int:
        """Offset in the text at which `node` begins."""
        return self._starts[node.lineno - 1] + self.column(node.lineno, node.col_offset)

    def end(self, node: ast.expr | ast.stmt) -> int:
        """Offset in the text just after `node`."""
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return self._starts[node.end_lineno - 1] + self.column(node.end_lineno, node.end_col_offset)

    def segment(self, node: ast.expr | ast.stmt) -> str:
        """The text of `node`."""
        return self.text[self.start(node) : self.end(node)]

    def line_start(self, line: int) -> int:
        """Offset at which a line, counted from 1, begins."""
        return self._starts[line - 1]

    def dotted(self, node: ast.AST) -> str | None:
        """The library path a name or attribute chain stands for."""
        return self.scopes.dotted(node)

    @cached_property
    def _kinds(self) -> Kinds:
        return Kinds(self.nodes, self.scopes)

    def kind(self, node: ast.expr) -> Kind:
        """What an expression is taken to be."""
        return self._kinds.kind(node)

    @cached_property
    def references(self) -> list[tuple[ast.Name | ast.Attribute, str]]:
        """Outermost name or attribute chains that stand for something imported."""
        found: list[tuple[ast.Name | ast.Attribute, str]] = []
        for node in self.nodes:
            if not isinstance(node, ast.Name | ast.Attribute):
                continue
            is_inner = isinstance(self.parents.get(node), ast.Attribute)
            if is_inner or not isinstance(node.ctx, ast.Load):
                continue
            dotted = self.dotted(node)
            if dotted is not None:
                found.append((node, dotted))
        return found

    @cached_property
    def ops_name(self) -> str | None:
        """The name by which code here can reach `emberharmony.ops`, or None if that is taken."""
        top = self.scopes.module
        for imported in top.imports.values():
            if imported.dotted == OPS and not imported.typing_only:
                name = imported.name
                inner = any(s.binds(name) for s in self.scopes.scopes if s is not top)
                return None if inner or name in top.assigned else name
        taken = any(scope.binds("ops") for scope in self.scopes.scopes)
        return None if taken else "ops"

    def calls(self) -> list[ast.Call]:
        """All calls, outer ones first."""
        return [node for node in self.nodes if isinstance(node, ast.Call)]

    def functions(self) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
        """All named functions, outer ones first."""
        return [n for n in self.nodes if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]

    @cached_property
    def comments(self) -> dict[int, str]:
        """Comments by line number; strings that look like comments are not among them."""
        found: dict[int, str] = {}
        lines = iter([line.replace("\r\n", "\n").replace("\r", "\n") for line in self.lines])
        try:
            for token in tokenize.generate_tokens(lambda: next(lines, "")):
                if token.type == tokenize.COMMENT:
                    found[token.start[0]] = token.string
        except (tokenize.TokenError, SyntaxError):
            # The parser took the file, so what was read up to here still stands.
            return found
        return found
