"""Short ways to compile snippets."""

from __future__ import annotations

import pytest

from wsesim.csl.program.driver import compile_texts
from wsesim.csl.syntax.diagnostics import CompileError

ONE_PE = 'layout { @set_rectangle(1, 1); @set_tile_code(0, 0, "pe.csl"); }'


def pe(text, layout=ONE_PE, arch="wse3", **options):
    """The PE program of a snippet."""
    return compile_texts({"layout.csl": layout, "pe.csl": text}, arch=arch, **options).pe(0, 0)


def errors(text, layout=ONE_PE, arch="wse3", **options):
    """The diagnostics of a snippet that must not compile."""
    with pytest.raises(CompileError) as caught:
        compile_texts({"layout.csl": layout, "pe.csl": text}, arch=arch, **options)
    return [d for d in caught.value.diagnostics if d.severity == "error"]


def codes(text, **options):
    """Names of the diagnostics of a snippet."""
    return [d.code for d in errors(text, **options)]


def assert_comptime(*conditions, before="", arch="wse3"):
    """Each condition holds at compile time."""
    body = "\n".join(f'  @comptime_assert({c}, "{i}");' for i, c in enumerate(conditions))
    pe(f"{before}\ncomptime {{\n{body}\n}}", arch=arch)
