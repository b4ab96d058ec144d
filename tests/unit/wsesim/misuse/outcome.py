"""What becomes of a program that may be wrong: it runs, or an error of our own says why not."""

import numpy as np

from wsesim.csl.program.driver import compile_texts
from wsesim.csl.syntax.diagnostics import CompileError, CslError
from wsesim.fabric import FabricError, load
from wsesim.host import HostSession

CYCLES = 300_000


def outcome(texts, arch, *, strict, calls=("f",), **options):
    """``runs`` or the error; whatever else is raised comes through."""
    try:
        program = compile_texts(texts, arch=arch, memcpy=True, channels=1, strict=strict, **options)
        host = HostSession(load(program, strict=strict, max_cycles=CYCLES))
        host.start()
        for name in calls:
            host.call(name, _arguments(program, name))
        host.stop()
        for item in program.exported_names:
            if str(item.type).startswith("[*]"):
                host.start()
                host.copy_out(item.name, np.zeros((1, 1, 1), np.uint32), (0, 0, 1, 1), 4)
    except CompileError as problem:
        return problem.diagnostics[0].code
    except (CslError, FabricError) as problem:
        return getattr(problem, "name", "input")
    return "runs"


def _arguments(program, name):
    kinds = [e.type for e in program.exported_names if e.name == name]
    return [1] * len(kinds[0].params) if kinds and hasattr(kinds[0], "params") else []
