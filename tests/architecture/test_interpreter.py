"""Python's own objects stay closed: no field of one is read or written, no class changed, no reference counted.

What is looked for, in the syntax trees of all sources:

- fields: names of the C structures (``ob_refcnt``, ``tp_call``), offsets into them (``__basicsize__``), and ``id(x)``,
  straight or by a name it was given, in arithmetic or where ctypes takes an address;
- the C interface: functions of ``ctypes.pythonapi``, and their names in text, such as generated code. `ALLOWED` lists
  those that are used: documented functions that neither show the inside of an object nor count;
- classes: ``x.__class__ = ...``, also by ``setattr``, and ``__bases__``;
- counts: ``sys.getrefcount`` and what tells who refers to an object.
"""

import ast
import re
from pathlib import Path

import pytest

SOURCES = Path(__file__).resolve().parents[2] / "src"
FIELD = re.compile(r"ob_(?:refcnt|type|size|item)|tp_[a-z_]+|__(?:basic|item)size__|__(?:dict|weakref)offset__")
FUNCTION = re.compile(r"\b_?Py(?:[A-Z][A-Za-z]*)?_[A-Z]\w*")
COUNTS = {"getrefcount", "get_referrers", "get_referents", "get_objects"}
TAKES_ADDRESS = {"from_address", "cast", "string_at", "memmove", "memset", "c_void_p", "py_object", "addressof"}
CLASSES = {"__class__", "__bases__"}
# Only files with one of these are read as syntax trees: few, and it is the slower part.
WORTH_A_LOOK = re.compile(rf"{FIELD.pattern}|{FUNCTION.pattern}|{'|'.join([*COUNTS, *CLASSES])}|\bid\(")
ALLOWED = {
    "wsesim/fabric/codegen/native_expressions.py": {
        "PyErr_CheckSignals": "generated loops ask whether Ctrl-C was pressed",
    },
    "wsesim/fabric/codegen/native_runs.py": {
        "PyErr_CheckSignals": "as above: where that function is",
    },
    "pyflame/interop.py": {
        "PyCapsule_GetName": "bfloat16 is written into DLPack's description of a tensor, which a capsule holds",
        "PyCapsule_GetPointer": "as above",
    },
}


def _last_name(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _is_id(node: ast.AST, names: set[str]) -> bool:
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Name) and node.func.id == "id"
    return isinstance(node, ast.Name) and node.id in names


def _addresses(tree: ast.AST) -> set[str]:
    """Names that ``id(x)`` was given."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.Assign, ast.NamedExpr, ast.AnnAssign)) and node.value and _is_id(node.value, set()):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found |= {target.id for target in targets if isinstance(target, ast.Name)}
    return found


def _docstrings(tree: ast.AST) -> set[ast.AST]:
    return {
        node.value for node in ast.walk(tree) if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }


def _of_calls(node: ast.Call, names: set[str]) -> list[str]:
    function = _last_name(node.func)
    if function in TAKES_ADDRESS and any(_is_id(inner, names) for given in node.args for inner in ast.walk(given)):
        return [f"{function}(id(...))"]
    if function in ("setattr", "__setattr__"):
        return [f"{given.value} =" for given in node.args if isinstance(given, ast.Constant) and given.value in CLASSES]
    return []


def _of_texts(text: str) -> list[str]:
    return [text] if FIELD.fullmatch(text) else FUNCTION.findall(text)


def inside(tree: ast.AST) -> list[str]:
    """What a module does to Python's own objects."""
    names, silent = _addresses(tree), _docstrings(tree)
    found: list[str] = []
    for node in ast.walk(tree):
        match node:
            case ast.Constant(value=str(text)) if node not in silent:
                found += _of_texts(text)
            case ast.Constant(value=bytes(text)):
                found += _of_texts(text.decode("latin-1"))
            case ast.Attribute(attr=name, ctx=ast.Store() | ast.Del()) if name in CLASSES:
                found.append(f"{name} =")
            case ast.Attribute(attr=name) | ast.Name(id=name) | ast.alias(name=name):
                found += [name] if name in COUNTS else _of_texts(name)
            case ast.BinOp(left=left, op=ast.Add() | ast.Sub(), right=right):
                found += ["id(...) +" for side in (left, right) if _is_id(side, names)]
            case ast.Call():
                found += _of_calls(node, names)
    return found


def test_no_source_looks_inside_python_s_objects() -> None:
    found: dict[str, set[str]] = {}
    for path in sorted(SOURCES.rglob("*.py")):
        text = path.read_text("utf-8")
        if WORTH_A_LOOK.search(text) and (used := set(inside(ast.parse(text)))):
            found[path.relative_to(SOURCES).as_posix()] = used
    assert found == {place: set(reasons) for place, reasons in ALLOWED.items()}


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("sys.getrefcount(x)", ["getrefcount"]),
        ("from sys import getrefcount", ["getrefcount"]),
        ("gc.get_referrers(x)", ["get_referrers"]),
        ("x.__class__ = Other", ["__class__ ="]),
        ("setattr(x, '__class__', Other)", ["__class__ ="]),
        ("object.__setattr__(x, '__class__', Other)", ["__class__ ="]),
        ("ctypes.c_ssize_t.from_address(id(x))", ["from_address(id(...))"]),
        ("c_ssize_t.from_address(id(x) + 8)", ["id(...) +", "from_address(id(...))"]),
        ("at = id(x)\nctypes.cast(at, py_object)", ["cast(id(...))"]),
        ("(at := id(x))\nend = at + 16", ["id(...) +"]),
        ("ctypes.pythonapi.Py_IncRef(x)", ["Py_IncRef"]),
        ("text = 'declare void @Py_DecRef(ptr)'", ["Py_DecRef"]),
        ("_fields_ = [('ob_refcnt', c_ssize_t)]", ["ob_refcnt"]),
        ("slot = type(x).__dictoffset__", ["__dictoffset__"]),
        ("cls = x.__class__\nplaces[id(x)] = len(a) + len(b)", []),
        ("def f():\n    'What Py_IncRef does.'", []),
    ],
)
def test_what_is_found(source: str, expected: list[str]) -> None:
    assert sorted(inside(ast.parse(source))) == sorted(expected)
