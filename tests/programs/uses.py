"""Static counting: which names of torch 50 public training scripts use, and how many of these uses PyFlame answers.

    python -m tests.programs.uses                    # the report
    python -m tests.programs.uses collect CHECKOUTS  # count again, from git directories named owner+name/repo

`uses.json` holds the list of scripts (repository, path, commit), and names with counts: nothing of their text.
"""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import ModuleType
from typing import Any

TABLE = Path(__file__).with_name("uses.json")
# Where a method may live: the first of these classes in torch that has it is taken for the owner.
OWNERS = ("Tensor", "nn.Module", "optim.Optimizer", "optim.lr_scheduler.LRScheduler")
PLAIN = (str, bytes, list, dict, set, tuple, Path)


class Names(ast.NodeVisitor):
    """The dotted names of torch in a source, and the methods called on anything that is no imported module."""

    def __init__(self, methods: dict[str, str]) -> None:
        self.methods = methods
        self.aliases: dict[str, str] = {}
        self.others: set[str] = set()
        self.found: Counter[str] = Counter()

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            if alias.name.split(".")[0] == "torch":
                self.aliases[alias.asname or "torch"] = alias.name if alias.asname else "torch"
            else:
                self.others.add(alias.asname or alias.name.split(".")[0])

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        for alias in node.names:
            name = alias.asname or alias.name
            if (node.module or "").split(".")[0] == "torch":
                self.aliases[name] = f"{node.module}.{alias.name}"
                if alias.name == "*":
                    self.found[str(node.module)] += 1
            else:
                self.others.add(name)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        parts: list[str] = []
        inner: ast.expr = node
        while isinstance(inner, ast.Attribute):
            parts.append(inner.attr)
            inner = inner.value
        if isinstance(inner, ast.Name) and inner.id in self.aliases:
            self.found[".".join([self.aliases[inner.id], *reversed(parts)])] += 1
        elif not (isinstance(inner, ast.Name) and inner.id in self.others):
            for part in parts:
                if part in self.methods:
                    self.found[f"torch.{self.methods[part]}.{part}"] += 1
            self.visit(inner)

    def visit_Name(self, node: ast.Name) -> None:
        if node.id in self.aliases and self.aliases[node.id] != "torch":
            self.found[self.aliases[node.id]] += 1


def torch_methods() -> dict[str, str]:
    """Methods of torch's classes by name, without those that Python's own types have too."""
    import torch

    common = {name for kind in PLAIN for name in dir(kind)}
    result: dict[str, str] = {}
    for owner in reversed(OWNERS):
        for name in dir(look_up(torch, owner)):
            if not name.startswith("_") and name not in common:
                result[name] = owner
    return result


def look_up(root: Any, dotted: str) -> Any:
    """What a dotted name stands for."""
    found = root
    for part in dotted.split("."):
        found = getattr(found, part)
    return found


def uses_of(source: str, methods: dict[str, str]) -> Counter[str]:
    """Uses of torch's names in one source, cut to what torch itself has."""
    import torch

    names = Names(methods)
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names.visit(node)
    for statement in tree.body:
        names.visit(statement)
    result: Counter[str] = Counter()
    for name, count in names.found.items():
        parts = name.split(".")[1:]
        while parts and not _there(torch, ".".join(parts)):
            parts.pop()  # an attribute of a value, such as torch.randn(3).shape, or a name that torch dropped
        if parts:
            result[".".join(parts)] += count
    return result


def _there(root: Any, dotted: str) -> bool:
    try:
        look_up(root, dotted)
    except (AttributeError, ImportError):
        return False
    return True


def collect(checkouts: Path) -> None:
    """Count the uses in every listed script again."""
    scripts = json.loads(TABLE.read_text("utf-8"))
    methods = torch_methods()
    for script in scripts:
        folder = checkouts / script["repository"].replace("/", "+") / "repo"
        shown = ["git", f"--git-dir={folder}", "show", f"{script['commit']}:{script['path']}"]
        source = subprocess.run(shown, capture_output=True, text=True, check=True).stdout
        script["uses"] = dict(sorted(uses_of(source, methods).items()))
    rows = ",\n".join(json.dumps(script) for script in scripts)
    TABLE.write_text(f"[\n{rows}\n]\n", "utf-8")


def total() -> Counter[str]:
    """Uses of each name in all scripts."""
    result: Counter[str] = Counter()
    for script in json.loads(TABLE.read_text("utf-8")):
        result.update(script["uses"])
    return result


def answer(name: str) -> str:
    """Empty where PyFlame has the name, else what it says."""
    import torch

    import pyflame

    owner, _, method = name.partition(".")
    try:
        found = look_up(pyflame.ones(1, 1), method) if owner == "Tensor" and method else look_up(pyflame, name)
    except AttributeError as error:
        return str(error)
    if isinstance(found, ModuleType) and not isinstance(look_up(torch, name), ModuleType):
        return f"pyflame.{name} is a module"
    return ""


def report() -> float:
    """Print what is missing, by number of uses; the share of uses that resolve."""
    counts = total()
    missing = {name: count for name, count in counts.most_common() if answer(name)}
    lines = []
    for name, count in missing.items():
        lines.append(f"{count:5d}  {name}: {answer(name)}")
    share = 1 - sum(missing.values()) / counts.total()
    lines.append(f"{counts.total()} uses of {len(counts)} names, {100 * share:.2f} % resolve")
    sys.stdout.write("\n".join(lines) + "\n")
    return share


if __name__ == "__main__":
    if sys.argv[1:2] == ["collect"]:
        collect(Path(sys.argv[2]))
    report()
