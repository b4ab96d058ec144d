"""A linter that keeps code within `emberharmony.ops`.

It reads Python files, never imports or runs them, and reports what ties them to one array
library: NumPy imports and uses, casts to Python numbers, conversions, direct use of a backend.

    python -m emberharmony.lint PATH... [--exclude D...] [-v] [--json]
    python -m emberharmony.lint PATH... --fix           make the mechanical rewrites
    python -m emberharmony.lint PATH... --diff          only show them
    python -m emberharmony.lint PATH... --select EH0    by code or prefix; also --ignore
    python -m emberharmony.lint PATH... --numpy-only    also --precision-only,
                                                        --conversion-only, --operators-only
    python -m emberharmony.lint PATH... --rules torch-style
    python -m emberharmony.lint --list-rules

The exit status is 0 when clean, 1 with errors found, 2 for bad usage or a path that could not
be checked (missing, binary, not text, too large, nested too deeply).

Rules:

| code | finds |
|---|---|
| EH001, EH002 | import and use of NumPy |
| EH101, EH102 | `float()`, `int()`, `.item()`, `.tolist()` of a tensor |
| EH201, EH202 | `.numpy()`; `np.array`, `np.asarray`, `torch.from_numpy` |
| EH301 | Python operators on tensors: a note, an error with `--operators-only` |
| EH401 to EH404 | import and use of torch, MLX and the like; branches on type or backend |
| EH501 to EH509 | the opt-in set `torch-style`, for code that is PyTorch by choice |
| EH900 | a syntax error |

Methods of a tensor, such as `x.mean()`, are fine, and so is `ops.to_numpy(x)`, the explicit way out.
`--fix` rewrites only what has the same
meaning in ops: `np.mean(x, 0)` becomes `ops.mean(x, axis=0)`, and the import follows once
nothing needs NumPy any more. Arrays keep their dtype; Python lists get the dtype ops gives them.

A comment `# noqa: EH001` on the first or last line of a finding silences it, a bare `# noqa`
all of them there. A project's settings are in its `pyproject.toml`, patterns relative to it:

    [tool.emberharmony.lint]
    exclude = ["src/package/adapters"]      # directories, files or patterns
    ignore = ["EH102"]                      # codes or prefixes; also `select`
    rules = ["purity"]                      # rule sets
    max-file-bytes = 2000000

    [tool.emberharmony.lint.per-path-ignores]
    "src/package/host.py" = ["EH0", "EH2"]

A rule is one decorated function in `emberharmony.lint.rules`; the folder is listed, so a new
file there is all a new rule takes.
"""

from emberharmony.lint.cli import main
from emberharmony.lint.config import Settings, UsageError, load_settings
from emberharmony.lint.engine import Report, fix_source, lint_paths, lint_source
from emberharmony.lint.findings import Edit, FileProblem, Finding, Severity
from emberharmony.lint.registry import Rule, all_rules
from emberharmony.lint.source import Unreadable

__all__ = [
    "Edit",
    "FileProblem",
    "Finding",
    "Report",
    "Rule",
    "Settings",
    "Severity",
    "Unreadable",
    "UsageError",
    "all_rules",
    "fix_source",
    "lint_paths",
    "lint_source",
    "load_settings",
    "main",
]
