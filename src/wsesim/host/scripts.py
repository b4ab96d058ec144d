"""Runs a host script as ``cs_python`` does: rewritten shifts, errors of the simulator without Python's own traceback.

Published host scripts put 48-bit timestamps together from 16-bit words with ``words[1] << 16``. Under NumPy 1 a scalar
shifted by or multiplied with a Python number became an int64; under NumPy 2 it stays a uint16: the shifted one is zero,
without a word. Both, written in the script or in modules that lie beside it, keep the older meaning.
"""

from __future__ import annotations

import ast
import importlib.machinery
import operator
import sys
import types
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from wsesim.csl.syntax.diagnostics import CslError
from wsesim.fabric.errors import FabricError

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["product", "run_script", "shifted"]

# Names that Python leaves as they are in classes, too.
_SHIFT, _PRODUCT, _UFUNC = "__wsesim_shifted__", "__wsesim_product__", "__wsesim_left_shift__"
_IN_PLACE = "__in_place"


def shifted(value: Any, by: Any) -> Any:
    """``value << by`` with NumPy 1's types: a NumPy scalar and a Python number give an int64.

    >>> shifted(np.uint16(3), 16), shifted(3, 2), shifted(np.uint16([3]), 15).dtype
    (np.int64(196608), 12, dtype('uint16'))
    """
    left, right = _widened(value, by)
    return left << right


def product(left: Any, right: Any) -> Any:
    """``left * right`` with NumPy 1's types.

    >>> product(np.uint16(3), 65536), product(2, 2.5), product(np.uint16([3]), 2).dtype
    (np.int64(196608), 5.0, dtype('uint16'))
    """
    left, right = _widened(left, right)
    return left * right


def _widened(left: Any, right: Any) -> tuple[Any, Any]:
    for one, other in ((left, right), (right, left)):
        if _narrow(one) and type(other) is int and -(1 << 63) <= other < 1 << 63:
            return np.int64(left), np.int64(right)
    return left, right


def _narrow(value: Any) -> bool:
    return isinstance(value, np.integer) and value.dtype.itemsize < 8


def _left_shift(value: Any, by: Any) -> Any:
    return np.left_shift(*_widened(value, by))


def _shifted_in_place(value: Any, by: Any) -> Any:
    return operator.ilshift(*_widened(value, by))


def _product_in_place(left: Any, right: Any) -> Any:
    return operator.imul(*_widened(left, right))  # arrays stay the ones that others hold


_MEANING = {
    _SHIFT: shifted,
    _PRODUCT: product,
    _UFUNC: _left_shift,
    _IN_PLACE + _SHIFT: _shifted_in_place,
    _IN_PLACE + _PRODUCT: _product_in_place,
}
_OLDER: dict[type[ast.operator], str] = {ast.LShift: _SHIFT, ast.Mult: _PRODUCT}


class _Older(ast.NodeTransformer):
    """Replaces ``a << b``, ``a <<= b`` and ``np.left_shift(a, b)``, and products, by calls of the functions above."""

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        self.generic_visit(node)
        if type(node.op) not in _OLDER:
            return node
        return ast.copy_location(_call(_OLDER[type(node.op)], node.left, node.right), node)

    def visit_AugAssign(self, node: ast.AugAssign) -> ast.AST:
        self.generic_visit(node)
        if type(node.op) not in _OLDER or not isinstance(node.target, ast.Name):
            return node
        value = _call(_IN_PLACE + _OLDER[type(node.op)], ast.Name(node.target.id, ast.Load()), node.value)
        return ast.copy_location(ast.Assign([node.target], value), node)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        function = node.func
        if not isinstance(function, ast.Attribute) or ast.unparse(function) not in (
            "np.left_shift",
            "numpy.left_shift",
        ):
            return node
        if len(node.args) != 2 or node.keywords or any(isinstance(x, ast.Starred) for x in node.args):
            return node
        return ast.copy_location(_call(_UFUNC, *node.args), node)


def _call(name: str, left: ast.expr, right: ast.expr) -> ast.Call:
    return ast.Call(ast.Name(name, ast.Load()), [left, right], [])


def _compiled(text: bytes, path: str) -> types.CodeType:
    tree = _Older().visit(ast.parse(text, path))
    return compile(ast.fix_missing_locations(tree), path, "exec", dont_inherit=True)


class _Loader(importlib.machinery.SourceFileLoader):
    """Modules beside the script; nothing is cached, since their code is not what other Pythons would make of them."""

    def get_code(self, fullname: str) -> types.CodeType:
        path = self.get_filename(fullname)
        return _compiled(self.get_data(path), path)

    def exec_module(self, module: types.ModuleType) -> None:
        module.__dict__.update(_MEANING)
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
    main.__dict__.update({"__file__": str(script), **_MEANING})
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
