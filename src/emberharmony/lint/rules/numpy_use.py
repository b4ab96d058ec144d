"""EH0xx: NumPy where code should stay within `emberharmony.ops`."""

from collections.abc import Iterator

from emberharmony.lint.imports import imported_modules
from emberharmony.lint.numpy_ops import rewrite
from emberharmony.lint.registry import Found, found, rule
from emberharmony.lint.source import Module

__all__ = ["numpy_import", "numpy_usage"]


@rule("EH001", "numpy-import", groups=["numpy"])
def numpy_import(module: Module) -> Iterator[Found]:
    """NumPy is imported; imports for annotations only (`if TYPE_CHECKING:`) are allowed."""
    for node, names in imported_modules(module):
        if any(name.partition(".")[0] == "numpy" for name in names):
            yield found(node, "imports numpy; use `from emberharmony import ops`")


@rule("EH002", "numpy-usage", groups=["numpy"], yields_to=["EH202", "EH403"])
def numpy_usage(module: Module) -> Iterator[Found]:
    """A NumPy function, type or constant is used."""
    for node, dotted in module.references:
        if dotted.partition(".")[0] != "numpy":
            continue
        change = rewrite(module, node, dotted)
        hint = f"use ops.{change.name}" if change else "use a function of emberharmony.ops"
        edits = change.edits if change else ()
        yield Found(node, f"uses {dotted}; {hint}", edits)
