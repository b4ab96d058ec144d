"""NumPy calls that have an `emberharmony.ops` function of the same meaning.

Only calls whose arguments carry over one to one are rewritten: `np.mean(x, axis=0)` is,
`np.mean(x, out=y)` is not, nor is `np.zeros(n)`, because the default dtypes differ.
"""

import ast
from dataclasses import dataclass

from emberharmony.lint.findings import Edit
from emberharmony.lint.names import names
from emberharmony.lint.source import Module

__all__ = ["CONSTANTS", "DTYPES", "FUNCTIONS", "OpForm", "Rewrite", "rewrite"]


@dataclass(frozen=True, slots=True)
class OpForm:
    """How calls of one NumPy function map to ops.

    Attributes:
        name: The function of `emberharmony.ops`.
        arrays: How many leading positional arguments are passed on as they are.
        options: Further arguments, passed on by keyword; NumPy takes the first by position too.
        required: Options without which the two libraries differ.
    """

    name: str
    arrays: int
    options: tuple[str, ...] = ()
    required: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Rewrite:
    """The ops name that replaces a NumPy one, and how to edit the text."""

    name: str
    edits: tuple[Edit, ...]


_UNARY = names(
    "abs arccos arcsin arctan ceil cos cosh exp expm1 floor isfinite isinf isnan log log10",
    "log1p log2 logical_not ndim negative shape sign sin sinh sqrt square tan tanh",
)
_BINARY = names(
    "add arctan2 broadcast_to divide dot equal floor_divide greater greater_equal less",
    "less_equal logical_and logical_or logical_xor matmul maximum minimum mod multiply",
    "not_equal outer power reshape subtract tile",
)
_TERNARY = names("clip moveaxis swapaxes where")
_REDUCTIONS = names("all any argmax argmin max mean min prod sum")
_ALONG_AXIS = names("argsort concatenate cumsum flip sort squeeze stack")
_LINEAR = {"cholesky": 1, "det": 1, "inv": 1, "solve": 2}
_RENAMED = {
    "absolute": "abs",
    "amax": "max",
    "amin": "min",
    "pow": "power",
    "remainder": "mod",
    "true_divide": "divide",
}
# Left out, these come from different defaults in the two libraries.
_DTYPE = frozenset(["dtype"])
_AXIS = frozenset(["axis"])


def _functions() -> dict[str, OpForm]:
    forms = {name: OpForm(name, 1) for name in _UNARY}
    forms |= {name: OpForm(name, 2) for name in _BINARY}
    forms |= {name: OpForm(name, 3) for name in _TERNARY}
    forms |= {name: OpForm(name, 1, ("axis", "keepdims")) for name in _REDUCTIONS}
    forms |= {name: OpForm(name, 1, ("axis",)) for name in _ALONG_AXIS}
    forms |= {name: OpForm(name, 1, ("axis", "keepdims", "ddof")) for name in ("std", "var")}
    forms |= {name: OpForm(name, 1, ("dtype",), _DTYPE) for name in ("ones", "zeros")}
    forms |= {name: OpForm(name, 1, ("dtype",)) for name in ("ones_like", "zeros_like")}
    forms |= {name: OpForm(name, 1, ("k",)) for name in ("tril", "triu")}
    forms |= {f"linalg.{name}": OpForm(name, arrays) for name, arrays in _LINEAR.items()}
    forms["expand_dims"] = OpForm("expand_dims", 1, ("axis",), _AXIS)
    forms["full"] = OpForm("full", 2, ("dtype",), _DTYPE)
    forms["full_like"] = OpForm("full_like", 2, ("dtype",))
    forms["take"] = OpForm("take", 2, ("axis",))
    forms["transpose"] = OpForm("transpose", 1, ("axes",))
    return forms | {name: forms[target] for name, target in _RENAMED.items()}


FUNCTIONS = _functions()
CONSTANTS = frozenset(["pi"])
DTYPES = names("float16 float32 float64 int8 int16 int32 int64 uint8 uint16 uint32 uint64 bool_")


def rewrite(module: Module, node: ast.Name | ast.Attribute, dotted: str) -> Rewrite | None:
    r"""How to say a NumPy expression with ops, or None when there is no equal form.

    Args:
        module: The module `node` is in.
        node: A name or attribute chain that stands for something of NumPy.
        dotted: What it stands for, such as `numpy.linalg.inv`.

    Example:
        >>> module = Module("a.py", "import numpy as np\ny = np.mean(x, 0)")
        >>> node, dotted = module.references[0]
        >>> rewrite(module, node, dotted).edits
        (Edit(start=23, end=30, text='ops.mean'), Edit(start=34, end=34, text='axis='))
    """
    library = module.ops_name
    if library is None or _is_unsafe(module, node):
        return None
    name = dotted.partition(".")[2]
    parent = module.parents.get(node)
    if isinstance(parent, ast.Call) and parent.func is node:
        form = FUNCTIONS.get(name)
        options = None if form is None else _option_edits(module, parent, form)
        if form is None or options is None:
            return None
        return Rewrite(form.name, (_replace(module, node, library, form.name), *options))
    if name in CONSTANTS or (name in DTYPES and _is_dtype_of_rewritten(module, node)):
        return Rewrite(name, (_replace(module, node, library, name),))
    return None


def _is_unsafe(module: Module, node: ast.AST) -> bool:
    """Whether the name has, or may have, other meanings besides NumPy."""
    while isinstance(node, ast.Attribute):
        node = node.value
    assert isinstance(node, ast.Name)
    home = module.scopes.find(node.id, module.scopes.scope(node))
    return home is not None and node.id in home.assigned


def _replace(module: Module, node: ast.expr, library: str, name: str) -> Edit:
    return Edit(module.start(node), module.end(node), f"{library}.{name}")


def _option_edits(module: Module, call: ast.Call, form: OpForm) -> list[Edit] | None:
    """Edits that pass a call's options by keyword; None when its arguments do not carry over."""
    if any(isinstance(argument, ast.Starred) for argument in call.args):
        return None
    keywords = [keyword.arg for keyword in call.keywords]
    if not set(keywords) <= set(form.options):
        return None
    extra = call.args[form.arrays :]
    positional = form.options[:1]
    if len(call.args) < form.arrays or len(extra) > len(positional):
        return None
    given = {*positional[: len(extra)], *keywords}
    if not form.required <= given or not _dtypes_carry_over(module, call, extra, form):
        return None
    return [
        Edit(module.start(argument), module.start(argument), f"{option}=")
        for argument, option in zip(extra, positional, strict=False)
    ]


def _dtypes_carry_over(module: Module, call: ast.Call, extra: list[ast.expr], form: OpForm) -> bool:
    """Whether a dtype is one that ops knows by the same name."""
    if "dtype" not in form.options:
        return True
    values = [*extra, *(k.value for k in call.keywords if k.arg == "dtype")]
    for value in values:
        dotted = module.dotted(value) or ""
        if dotted.startswith("numpy.") and dotted.removeprefix("numpy.") not in DTYPES:
            return False
    return True


def _is_dtype_of_rewritten(module: Module, node: ast.expr) -> bool:
    """Whether `node` is the dtype of a call that becomes an ops call."""
    parent = module.parents.get(node)
    call = module.parents.get(parent) if isinstance(parent, ast.keyword) else parent
    by_keyword = isinstance(parent, ast.keyword)
    if not isinstance(call, ast.Call) or (by_keyword and parent.arg != "dtype"):
        return False
    form = FUNCTIONS.get((module.dotted(call.func) or "").removeprefix("numpy."))
    if form is None or "dtype" not in form.options or _option_edits(module, call, form) is None:
        return False
    return by_keyword or node in call.args[form.arrays :]
