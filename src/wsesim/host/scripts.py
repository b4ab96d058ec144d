"""Runs a host script as ``cs_python`` does: rewritten shifts, errors of the simulator without Python's own traceback.

Published host scripts put 48-bit timestamps together from 16-bit words with ``words[1] << 16``. Under NumPy 1 a scalar
shifted by a Python number became an int64; under NumPy 2 it stays a uint16 and the result is zero, without a word.
Shifts written in the script, and in modules that lie beside it, keep the older meaning.
"""

from __future__ import annotations

import ast
import importlib.machinery
import sys
import types
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from wsesim.csl.syntax.diagnostics import CslError
from wsesim.fabric.errors import FabricError

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["run_script", "shifted"]

_SHIFT = "__wsesim_shifted"


def shifted(value: Any, by: Any) -> Any:
    """``value << by`` with NumPy 1's types: a NumPy scalar and a Python number give an int64.

    >>> shifted(np.uint16(3), 16), shifted(3, 2), shifted(np.uint16([3]), 15).dtype
    (np.int64(196608), 12, dtype('uint16'))
    """
    if _narrow(value) and type(by) is int:
        return np.int64(value) << by
    if type(value) is int and _narrow(by):
        return np.int64(value) << np.int64(by)
    return value << by


def _narrow(value: Any) -> bool:
    return isinstance(value, np.integer) and value.dtype != np.uint64


class _Shifts(ast.NodeTransformer):
    """Replaces ``a << b`` and ``a <<= b`` by calls of :func:`shifted`."""

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        self.generic_visit(node)
        if not isinstance(node.op, ast.LShift):
            return node
        return ast.copy_location(_call(node.left, node.right), node)

    def visit_AugAssign(self, node: ast.AugAssign) -> ast.AST:
        self.generic_visit(node)
        if not isinstance(node.op, ast.LShift) or not isinstance(node.target, ast.Name):
            return node
        value = _call(ast.Name(node.target.id, ast.Load()), node.value)
        return ast.copy_location(ast.Assign([node.target], value), node)


def _call(left: ast.expr, right: ast.expr) -> ast.Call:
    return ast.Call(ast.Name(_SHIFT, ast.Load()), [left, right], [])


def _compiled(text: bytes, path: str) -> types.CodeType:
    tree = _Shifts().visit(ast.parse(text, path))
    return compile(ast.fix_missing_locations(tree), path, "exec", dont_inherit=True)


class _Loader(importlib.machinery.SourceFileLoader):
    """Modules beside the script; nothing is cached, since their code is not what other Pythons would make of them."""

    def get_code(self, fullname: str) -> types.CodeType:
        path = self.get_filename(fullname)
        return _compiled(self.get_data(path), path)

    def exec_module(self, module: types.ModuleType) -> None:
        module.__dict__[_SHIFT] = shifted
        super().exec_module(module)


class _Beside:
    """Finds modules in the script's folder and in packages below it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        for place in [str(self.folder)] if path is None else path:
            if not Path(place).resolve().is_relative_to(self.folder):
                continue
            finder = importlib.machinery.FileFinder(place, (_Loader, [".py"]))
            found = finder.find_spec(fullname, target)
            if found is not None and found.loader is not None:
                return found
        return None


def run_script(script: Path, arguments: list[str]) -> int:
    """Runs a host script as the main module of this process; the exit status."""
    folder = script.resolve().parent
    sys.argv = [str(script), *arguments]
    sys.path.insert(0, str(folder))
    older = int(np.__version__.split(".")[0]) < 2
    if not older:
        sys.meta_path.insert(0, _Beside(folder))
    main = types.ModuleType("__main__")
    main.__dict__.update({"__file__": str(script), _SHIFT: shifted})
    sys.modules["__main__"] = main
    text = script.read_bytes()
    try:
        code = compile(text, str(script), "exec", dont_inherit=True) if older else _compiled(text, str(script))
        exec(code, main.__dict__)  # noqa: S102
    except (FabricError, CslError) as problem:
        where = _where(problem, folder)
        notes = "".join(f"{note}\n" for note in getattr(problem, "__notes__", ()))
        sys.stderr.write(f"{where}error: {problem}\n{notes}")
        return 1
    except KeyboardInterrupt:
        sys.stderr.write("cs_python: interrupted\n")
        return 130
    return 0


def _where(problem: BaseException, folder: Path) -> str:
    """The line of the host's own code that ended in a problem."""
    found = ""
    step = problem.__traceback__
    while step is not None:
        path = Path(step.tb_frame.f_code.co_filename)
        if path.suffix == ".py" and path.resolve().parent == folder:
            found = f"{path}:{step.tb_lineno}: "
        step = step.tb_next
    return found
