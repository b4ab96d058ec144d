"""The shape of the sources: small files, short functions, a listed public surface."""

import ast
import importlib
import re
import statistics
import subprocess
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SRC = ROOT / "src"
MAX_FILE_LINES = 600
MAX_FUNCTION_LINES_P90 = 35
MACHINE_PATH = re.compile(r"(?<![\w.~-])/(?:work|farm|root|home|Users)/[\w.-]+")


@cache
def project_files() -> tuple[Path, ...]:
    """Every file that is under version control, or would be after `git add`."""
    listing = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    names = sorted(set(filter(None, listing.stdout.split("\0"))))
    return tuple(path for name in names if (path := ROOT / name).is_file())


@cache
def trees() -> dict[Path, ast.Module]:
    return {path: ast.parse(path.read_text("utf-8")) for path in sorted(SRC.rglob("*.py"))}


def show(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def module_name(path: Path) -> str:
    parts = path.relative_to(SRC).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def exported(tree: ast.Module) -> list[str] | None:
    """The literal `__all__` of a module, or None when it has none."""
    for statement in tree.body:
        match statement:
            case (
                ast.Assign(targets=[ast.Name(id="__all__")], value=value)
                | ast.AnnAssign(target=ast.Name(id="__all__"), value=ast.expr() as value)
            ):
                return list(ast.literal_eval(value))
    return None


def is_public(path: Path) -> bool:
    return not any(part.startswith("_") for part in module_name(path).split("."))


def public_packages() -> list[Path]:
    return [path for path in trees() if path.name == "__init__.py" and is_public(path)]


def listing_modules() -> list[Path]:
    return [path for path, tree in trees().items() if exported(tree) is not None]


def public_names(tree: ast.Module) -> set[str]:
    """Names without an underscore that the top level of a module imports or defines."""
    names: set[str] = set()
    for node in tree.body:
        match node:
            case ast.ImportFrom(module=module) if module != "__future__":
                names |= {alias.asname or alias.name for alias in node.names}
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                names.add(name)
            case ast.ClassDef(name=name):
                names.add(name)
    return {name for name in names if not name.startswith("_")}


def test_no_file_is_too_long():
    code = [path for path in project_files() if path.suffix == ".py"]
    lengths = {path: len(path.read_text("utf-8").splitlines()) for path in code}
    long = [f"{show(p)}: {n} lines" for p, n in lengths.items() if n > MAX_FILE_LINES]
    assert not long, f"split these files, the limit is {MAX_FILE_LINES}:\n" + "\n".join(long)


def test_functions_are_short():
    functions = [
        (node.end_lineno - node.lineno + 1, f"{show(path)}:{node.lineno} {node.name}")
        for path, tree in trees().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    p90 = statistics.quantiles([length for length, _ in functions], n=10)[-1]
    longest = "\n".join(f"{n} lines: {where}" for n, where in sorted(functions, reverse=True)[:15])
    assert p90 < MAX_FUNCTION_LINES_P90, (
        f"one function in ten has {p90:.0f} lines or more, wanted fewer than "
        f"{MAX_FUNCTION_LINES_P90}; the longest:\n{longest}"
    )


def test_no_relative_imports():
    found = [
        f"{show(path)}:{node.lineno}"
        for path in project_files()
        if path.suffix == ".py"
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.ImportFrom) and node.level > 0
    ]
    assert not found, "write the full name of the package in these imports:\n" + "\n".join(found)


@pytest.mark.parametrize("path", public_packages(), ids=module_name)
def test_public_package_lists_its_names(path):
    tree = trees()[path]
    unlisted = sorted(public_names(tree) - set(exported(tree) or ()))
    assert not unlisted, f"{show(path)}: list in `__all__` or rename with _: {', '.join(unlisted)}"


@pytest.mark.parametrize("path", listing_modules(), ids=module_name)
def test_listed_names_are_there(path):
    names = exported(trees()[path])
    assert len(names) == len(set(names)), f"{show(path)}: a name is listed twice in `__all__`"
    module = importlib.import_module(module_name(path))
    missing = [name for name in names if not hasattr(module, name)]
    assert not missing, f"{show(path)}: `__all__` lists what is not there: {', '.join(missing)}"


def test_no_machine_paths():
    found = []
    for path in project_files():
        try:
            lines = path.read_text("utf-8").splitlines()
        except UnicodeDecodeError:  # binary test data
            continue
        for number, line in enumerate(lines, start=1):
            if hit := MACHINE_PATH.search(line):
                found.append(f"{show(path)}:{number}: {hit[0]}")
    assert not found, "these paths exist on one machine only:\n" + "\n".join(found)


# Where the interpreter's own functions are called, as a C extension would: nothing of its objects is read or written.
CALLS_OF_CPYTHON = {"src/pyflame/interop.py", "src/wsesim/fabric/codegen/native_runs.py"}


def reaches_inside(node: ast.AST) -> str | None:
    """What a piece of code does to the interpreter or to live objects that no code here may do."""
    match node:
        case ast.Assign(targets=targets) if any(
            isinstance(t, ast.Attribute) and t.attr == "__class__" for t in targets
        ):
            return "changes the class of a live object"
        case ast.Call(func=ast.Attribute(attr="from_address"), args=[ast.Call(func=ast.Name(id="id")), *_]):
            return "reads an object of Python's by its address"
        case ast.Call(func=ast.Name(id="setattr") | ast.Attribute(attr="__setattr__"), args=args) if any(
            isinstance(a, ast.Constant) and a.value == "__class__" for a in args
        ):
            return "changes the class of a live object"
        case ast.Attribute(attr="getrefcount"):
            return "counts references"
        case ast.Attribute(value=ast.Name(id="gc"), attr="disable" | "freeze"):
            return "switches the collector of the whole process"
        case ast.Attribute(attr="setswitchinterval"):
            return "changes how threads of the whole process take turns"
        case ast.Attribute(attr="pythonapi"):
            return "calls the interpreter's own functions"
    return None


def test_nothing_reaches_inside_the_interpreter():
    found = [
        f"{show(path)}:{getattr(node, 'lineno', 0)} {what}"
        for path, tree in trees().items()
        for node in ast.walk(tree)
        if (what := reaches_inside(node)) and not ("own functions" in what and show(path) in CALLS_OF_CPYTHON)
    ]
    assert not found, found
