"""`--fix`: what is rewritten runs and gives equal results, and the rest stays untouched."""

import ast

import numpy as np
import pytest

import emberharmony
from emberharmony.backend import use_backend
from emberharmony.lint import Settings, fix_source, lint_source, main
from emberharmony.lint.numpy_ops import CONSTANTS, DTYPES, FUNCTIONS
from emberharmony.lint.rules.operators import OPERATORS

OPERATORS_ONLY = Settings(groups=("operators",))
EVERYTHING = Settings(groups=("numpy", "operators"))

REWRITES = {
    "import numpy as np\ny = np.mean(x)\n": "from emberharmony import ops\ny = ops.mean(x)\n",
    # Options are passed by keyword.
    "y = np.sum(x, 0, keepdims=True)": ("from emberharmony import ops\ny = ops.sum(x, axis=0, keepdims=True)"),
    # Names imported one by one, under another name, from a submodule.
    "from numpy import mean as m, sqrt\ny = m(sqrt(x))\n": (
        "from emberharmony import ops\ny = ops.mean(ops.sqrt(x))\n"
    ),
    "import numpy.linalg as la\ny = la.inv(x)\n": "from emberharmony import ops\ny = ops.inv(x)\n",
    # An ops import that is there is used, under its name.
    "from emberharmony import ops as o\nimport numpy as np\ny = np.exp(x)\n": (
        "from emberharmony import ops as o\ny = o.exp(x)\n"
    ),
    # Other names of the import statement stay.
    "import os, numpy as np\ny = np.exp(x)\n": ("import os\nfrom emberharmony import ops\ny = ops.exp(x)\n"),
    "from numpy import (\n    exp,\n    fft,\n)\ny = exp(fft.fft(x))\n": (
        "from numpy import fft\nfrom emberharmony import ops\ny = ops.exp(fft.fft(x))\n"
    ),
    # NumPy stays while something needs it.
    "import numpy as np\ny = np.exp(np.fft.fft(x))\n": (
        "import numpy as np\nfrom emberharmony import ops\ny = ops.exp(np.fft.fft(x))\n"
    ),
    # An import inside a function.
    "def f(x):\n    import numpy as np\n    return np.exp(x)\n": (
        "from emberharmony import ops\ndef f(x):\n    return ops.exp(x)\n"
    ),
    "if fast:\n    import numpy as np\ny = np.exp(x)\n": (
        "from emberharmony import ops\nif fast:\n    pass\ny = ops.exp(x)\n"
    ),
    # Below docstring and imports, above the first statement with its decorators.
    '"""Doc."""\nfrom __future__ import annotations\nimport os\n\ny = np.exp(x)\n': (
        '"""Doc."""\nfrom __future__ import annotations\nimport os\nfrom emberharmony import ops\n\ny = ops.exp(x)\n'
    ),
    "# comment\n@d\ndef f(x):\n    return np.exp(x)\n": (
        "# comment\nfrom emberharmony import ops\n@d\ndef f(x):\n    return ops.exp(x)\n"
    ),
    # dtypes where they belong to a call that is rewritten, and constants.
    "import numpy as np\nz = np.zeros((2,), np.float32) + np.pi\n": (
        "from emberharmony import ops\nz = ops.zeros((2,), dtype=ops.float32) + ops.pi\n"
    ),
    # Formatting, comments and line ends elsewhere are kept.
    "import numpy as np\r\ny  =  np.exp( x )   # é ünï\r\n": (
        "from emberharmony import ops\r\ny  =  ops.exp( x )   # é ünï\r\n"
    ),
    "import numpy as np\né = 'ü', np.exp(x)\n": "from emberharmony import ops\né = 'ü', ops.exp(x)\n",
}

KEPT = [
    # No equal form in ops: the default dtype, other arguments, starred arguments, no call.
    "y = np.zeros(3)",
    "y = np.zeros(3, dtype=np.complex128)",
    "y = np.mean(x, out=z)",
    "y = np.mean(x, 0, np.float32)",
    "y = np.mean(*xs)",
    "y = np.exp(x, **options)",
    "y = map(np.exp, xs)",
    "y = np.add(x)",
    "y = np.where(x)",
    "y = x.astype(np.float32)",
    "y = np.float32(3)",
    "y = np.asarray(x)",
    # The name ops is taken, or np may be something else.
    "ops = []\ny = np.exp(x)",
    "def f(ops): return np.exp(x)",
    "try:\n    import numpy as np\nexcept ImportError:\n    np = other\ny = np.exp(x)",
    # Silenced, or not readable as Python.
    "y = np.exp(x)  # noqa",
    "y = np.exp(x",
    "",
]


@pytest.mark.parametrize(("before", "after"), REWRITES.items())
def test_rewrites(before, after):
    fixed, count = fix_source(before)
    assert fixed == after
    assert count >= 1
    assert fix_source(fixed) == (fixed, 0)


@pytest.mark.parametrize("source", KEPT)
def test_what_has_no_equal_form_is_kept(source):
    assert fix_source(source) == (source, 0)


@pytest.mark.parametrize(
    "source",
    [
        "import numpy as np\n__all__ = ['np']\ny = np.exp(x)\n",
        'import numpy as np\n"""\n>>> np.exp(0)\n"""\ny = np.exp(x)\n',
        "import numpy as np; import os\ny = np.exp(x)\n",
        "from numpy import (\n    exp,  # why\n)\ny = exp(x)\n",
    ],
)
def test_an_import_that_may_be_needed_is_kept(source):
    fixed, _ = fix_source(source)
    assert "ops.exp(x)" in fixed
    assert "numpy" in fixed
    assert fix_source(fixed) == (fixed, 0)


def test_an_import_whose_rule_is_off_is_kept():
    fixed, _ = fix_source("import numpy as np\ny = np.exp(x)\n", Settings(ignore=("EH001",)))
    assert fixed == "import numpy as np\nfrom emberharmony import ops\ny = ops.exp(x)\n"


OPERATOR_REWRITES = {
    "(t - m) / s": "ops.divide(ops.subtract(t, m), s)",
    "t - m - s": "ops.subtract(ops.subtract(t, m), s)",
    "t ** m ** s": "ops.power(t, ops.power(m, s))",
    "t*(m+s)": "ops.multiply(t, ops.add(m, s))",
    "(t + m) * (s - t)": "ops.multiply(ops.add(t, m), ops.subtract(s, t))",
    "((t+m)*s)+t": "ops.add(ops.multiply(ops.add(t, m), s), t)",
    "((t)) + (m)": "ops.add(((t)), (m))",
    "-t @ m": "ops.matmul(-t, m)",
    "t // m % s": "ops.mod(ops.floor_divide(t, m), s)",
    "(t +\n    m)": "(ops.add(t,\n    m))",
    "(t\n    + m)": "(ops.add(t,\n    m))",
    "t.mean() + 1": "ops.add(t.mean(), 1)",
    "[t + 1, 2 + 3]": "[ops.add(t, 1), 2 + 3]",
    "(t +  # why\n m)": "(t +  # why\n m)",
    "t + \\\n    m": "t + \\\n    m",
}
HEAD = "from emberharmony import ops\ndef f(t: Tensor, m: Tensor, s: Tensor):\n    return "


@pytest.mark.parametrize(("before", "after"), OPERATOR_REWRITES.items())
def test_operator_rewrites(before, after):
    fixed, _ = fix_source(HEAD + before, OPERATORS_ONLY)
    assert fixed == HEAD + after
    assert fix_source(fixed, OPERATORS_ONLY) == (fixed, 0)


def test_operators_are_rewritten_only_on_request():
    assert fix_source(HEAD + "t + m") == (HEAD + "t + m", 0)


def test_operators_that_may_not_be_on_tensors_are_kept():
    source = "def f(a, b): return a + b"
    assert fix_source(source, OPERATORS_ONLY) == (source, 0)
    inside = "from emberharmony import ops\ndef f(a, b, c): return ops.multiply({}, c)"
    assert fix_source(inside.format("a + b"), OPERATORS_ONLY)[0] == inside.format("ops.add(a, b)")


def test_functions_and_operators_together():
    source = "import numpy as np\ndef f(x):\n    return np.mean(x + np.exp(x), 0) * 2\n"
    fixed, _ = fix_source(source, EVERYTHING)
    assert "ops.multiply(ops.mean(ops.add(x, ops.exp(x)), axis=0), 2)" in fixed
    assert "numpy" not in fixed


def test_fixing_files(tmp_path):
    path = tmp_path / "a.py"
    path.write_bytes(b"\xef\xbb\xbfimport numpy as np\r\ny = np.exp(x)\r\n")
    assert main([str(path), "--fix"]) == 0
    assert path.read_bytes() == (b"\xef\xbb\xbffrom emberharmony import ops\r\ny = ops.exp(x)\r\n")
    latin = tmp_path / "b.py"
    latin.write_bytes("# coding: latin-1\ns = 'é'\ny = np.exp(x)\n".encode("latin-1"))
    assert main([str(latin), "--fix"]) == 0
    assert "é" in latin.read_text("latin-1")


def test_diff_changes_nothing(tmp_path, capsys):
    path = tmp_path / "a.py"
    path.write_text("import numpy as np\ny = np.exp(x)\n")
    assert main([str(path), "--diff"]) == 1
    assert "+y = ops.exp(x)" in capsys.readouterr().out
    assert "numpy" in path.read_text()


# Equal results. Every rewritable function has a sample; a new one without fails here.

X = np.linspace(0.1, 0.9, 12, dtype=np.float32).reshape(3, 4)
SAMPLES: dict[str, str] = {
    "broadcast_to": "np.broadcast_to(x[0], (5, 4))",
    "clip": "np.clip(x, 0.3, 0.7)",
    "concatenate": "np.concatenate([x, x], 1)",
    "dot": "np.dot(x, x.T)",
    "expand_dims": "np.expand_dims(x, 1)",
    "floor_divide": "np.floor_divide(x, y)",
    "full": "np.full((2, 3), 7, np.int64)",
    "full_like": "np.full_like(x, 3)",
    "matmul": "np.matmul(x, x.T)",
    "moveaxis": "np.moveaxis(x, 0, 1)",
    "ndim": "np.ndim(x)",
    "ones": "np.ones((2, 3), dtype=np.float32)",
    "reshape": "np.reshape(x, (4, 3))",
    "shape": "np.shape(x)",
    "squeeze": "np.squeeze(x[:, :1], 1)",
    "stack": "np.stack([x, y], axis=1)",
    "swapaxes": "np.swapaxes(x, 0, 1)",
    "take": "np.take(x, np.asarray([1, 0]), 1)",
    "tile": "np.tile(x, (1, 2))",
    "transpose": "np.transpose(x, (1, 0))",
    "where": "np.where(x > 0.5, x, y)",
    "zeros": "np.zeros((2, 3), np.float16)",
    "linalg.cholesky": "np.linalg.cholesky(a)",
    "linalg.det": "np.linalg.det(a)",
    "linalg.inv": "np.linalg.inv(a)",
    "linalg.solve": "np.linalg.solve(a, a)",
    "std": "np.std(x, 0, ddof=1)",
    "var": "np.var(x, axis=1, keepdims=True)",
}


def sample(name):
    form = FUNCTIONS[name]
    if name in SAMPLES:
        return SAMPLES[name]
    extra = ", 1" if "axis" in form.options else ""
    return f"np.{name}({', '.join(['x', 'y'][: form.arrays])}{extra})"


def evaluate(source):
    names = {"x": X, "y": X[::-1].copy(), "a": np.eye(3, dtype=np.float32) * 2 + 0.1, "np": np}
    tree = ast.parse(source)
    *head, last = tree.body
    # The texts are the samples of this file.
    exec(compile(ast.Module(head, []), "<test>", "exec"), names)  # noqa: S102
    return eval(compile(ast.Expression(last.value), "<test>", "eval"), names)


@pytest.fixture
def ops():
    with use_backend("numpy"):
        yield emberharmony.ops


@pytest.mark.usefixtures("ops")
@pytest.mark.parametrize("name", sorted(FUNCTIONS))
def test_functions_give_equal_results(name):
    source = sample(name)
    fixed, count = fix_source(source)
    assert count >= 1
    assert f"ops.{FUNCTIONS[name].name}(" in fixed
    expected, found = evaluate(source), evaluate(fixed)
    assert np.shape(found) == np.shape(expected)
    assert np.asarray(found).dtype == np.asarray(expected).dtype
    np.testing.assert_allclose(found, expected, rtol=1e-6)


@pytest.mark.usefixtures("ops")
@pytest.mark.parametrize("operator", sorted(symbol for symbol, _ in OPERATORS.values()))
def test_operators_give_equal_results(operator):
    right = "ops.transpose(x)" if operator == "@" else "ops.exp(y)"
    typed = f"from emberharmony import ops\nops.exp(x) {operator} {right}\n"
    fixed, count = fix_source(typed, OPERATORS_ONLY)
    assert count == 1
    np.testing.assert_allclose(evaluate(fixed), evaluate(typed), rtol=1e-6)


def test_names_exist_in_ops(ops):
    wanted = {form.name for form in FUNCTIONS.values()} | CONSTANTS | DTYPES
    wanted |= {name for _, name in OPERATORS.values()}
    assert sorted(name for name in wanted if not hasattr(ops, name)) == []


def test_names_exist_in_numpy():
    for name in [*FUNCTIONS, *CONSTANTS, *DTYPES]:
        evaluate(f"np.{name}")


def test_fixed_code_is_clean():
    for before in REWRITES:
        fixed, _ = fix_source(before)
        left = {f.code for f in lint_source(fixed) if f.severity.fails}
        assert left <= ({"EH001", "EH002"} if "fft" in before else set())
