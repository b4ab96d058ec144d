"""A cautious guess at what an expression is: a tensor, a NumPy array, a number and so on.

The checked code is never run, so the guess rests on annotations, on what a value was assigned
from and on how it is used. Rules that would be noisy on a wrong guess act on `TENSOR` only.
"""

import ast
import enum
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence

from emberharmony.lint.names import names
from emberharmony.lint.scopes import OPS, Function, Scope, ScopeMap, bound_names

__all__ = ["Kind", "Kinds", "annotation_kind"]

# Deeper expressions are machine-made; a bounded guess keeps long chains linear.
_MAX_DEPTH = 100
_MAX_PASSES = 6


class Kind(enum.Enum):
    """What an expression is taken to be; `HOST` is a NumPy array, `OTHER` no array at all."""

    TENSOR = enum.auto()
    HOST = enum.auto()
    NUMBER = enum.auto()
    OTHER = enum.auto()
    UNKNOWN = enum.auto()

    @property
    def is_array(self) -> bool:
        """Whether it is an array of any library."""
        return self in (Kind.TENSOR, Kind.HOST)


_TENSOR_TYPES = names("Array EmberTensor FloatTensor Tensor TensorLike Float Int Bool Num Shaped Inexact Complex")
_HOST_TYPES = frozenset(["NDArray", "ndarray"])
_NUMBER_TYPES = names("bool complex float int Number Real Integral")
# ArrayLike takes Python numbers too.
_UNCLEAR_TYPES = frozenset(["Any", "ArrayLike", "Optional", "Union", "object"])

# Untyped parameters with these names hold tensors in every codebase we have met.
_TENSOR_NAMES = names("tensor prediction predictions preds target targets logits activations gradient")

_OPS_NUMBERS = frozenset(["ndim", "pi", "allclose", "memory_usage"])
_OPS_OTHERS = names(
    "shape dtype get_dtype get_device get_available_devices get_backend set_backend",
    "set_random_seed to_numpy_dtype from_numpy_dtype triu_indices split qr svd eig lstsq",
)
_NEED_TENSOR = names(
    "mean sum min max var std expand_dims reshape transpose squeeze tile gather softmax",
    "sort norm inv det cholesky to_device argmax argmin cumsum prod flatten",
)
_TENSOR_METHODS = names(
    "mean sum std var reshape astype numpy detach cpu cuda item tolist squeeze unsqueeze",
    "transpose matmul argmax argmin backward",
)
_BACKEND_NON_TENSORS = names(
    "device dtype no_grad inference_mode manual_seed is_available seed finfo iinfo load",
    "save compile is_tensor issubdtype errstate shape ndim iscomplexobj",
)
_CREATORS = names("zeros ones empty full eye arange linspace array asarray")
_CALLS_GIVING_NUMBERS = names("len int float bool complex ord hash id round isinstance")
_CALLS_GIVING_OTHERS = names(
    "str repr list tuple dict set frozenset range sorted enumerate zip map filter reversed",
    "bytes type format",
)
_CALLS_OF_ARGUMENTS = names("abs sum min max pow divmod")
_NUMBER_ATTRIBUTES = frozenset(["ndim", "itemsize", "nbytes"])
_SAME_ATTRIBUTES = names("T mT H real imag grad data")


def _join(kinds: Iterable[Kind]) -> Kind:
    seen = set(kinds)
    return seen.pop() if len(seen) == 1 else Kind.UNKNOWN


def _arithmetic(left: Kind, right: Kind) -> Kind:
    for strongest in (Kind.TENSOR, Kind.HOST, Kind.OTHER, Kind.UNKNOWN):
        if strongest in (left, right):
            return strongest
    return Kind.NUMBER


def _head(node: ast.expr) -> str | None:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else None


def _members(node: ast.expr) -> list[ast.expr]:
    """The alternatives of a union annotation, without None."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        return [*_members(node.left), *_members(node.right)]
    if isinstance(node, ast.Subscript) and _head(node.value) in ("Optional", "Union"):
        inner = node.slice
        parts = inner.elts if isinstance(inner, ast.Tuple) else [inner]
        return [member for part in parts for member in _members(part)]
    is_none = isinstance(node, ast.Constant) and node.value is None
    return [] if is_none else [node]


def annotation_kind(node: ast.expr | None) -> Kind:
    """The kind a type annotation promises.

    Example:
        >>> annotation_kind(ast.parse("torch.Tensor | None", mode="eval").body)
        <Kind.TENSOR: 1>
        >>> annotation_kind(ast.parse("tuple[Tensor, Tensor]", mode="eval").body)
        <Kind.OTHER: 4>
    """
    if node is None:
        return Kind.UNKNOWN
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        try:
            node = ast.parse(node.value, mode="eval").body
        except (SyntaxError, ValueError):
            return Kind.UNKNOWN
    members = _members(node)
    return _join(map(_single_annotation, members)) if members else Kind.OTHER


def _single_annotation(node: ast.expr) -> Kind:
    head = _head(node.value if isinstance(node, ast.Subscript) else node)
    if head in _TENSOR_TYPES:
        return Kind.TENSOR
    if head in _HOST_TYPES:
        return Kind.HOST
    if head in _NUMBER_TYPES:
        return Kind.NUMBER
    return Kind.UNKNOWN if head is None or head in _UNCLEAR_TYPES else Kind.OTHER


Binding = tuple[str, Callable[[int], Kind | None]]


class Kinds:
    r"""Kinds of the expressions of one module, worked out scope by scope when first asked.

    Example:
        >>> tree = ast.parse("from emberharmony import ops\ny = ops.exp(1.0)\ny * 2")
        >>> Kinds(list(ast.walk(tree)), ScopeMap(tree)).kind(tree.body[2].value)
        <Kind.TENSOR: 1>
    """

    def __init__(self, nodes: Sequence[ast.AST], scopes: ScopeMap) -> None:
        self._scopes = scopes
        self._bindings: dict[Scope, list[Binding]] = defaultdict(list)
        self._evidence: dict[Scope, set[str]] = defaultdict(set)
        self._environments: dict[Scope, dict[str, Kind]] = {}
        self._memo: dict[ast.expr, Kind] = {}
        for scope in scopes.scopes:
            if isinstance(scope.node, Function):
                self._bind_parameters(scope, scope.node)
        for node in nodes:
            self._bind(node)
            self._note_use(node)

    def kind(self, node: ast.expr) -> Kind:
        """What `node` is taken to be."""
        if node not in self._memo:
            self._memo[node] = self._kind(node, 0)
        return self._memo[node]

    # Bindings: where a name of a scope gets its kind from.

    def _bind_parameters(self, scope: Scope, node: Function) -> None:
        arguments = node.args
        positional = [*arguments.posonlyargs, *arguments.args]
        padding: list[ast.expr | None] = [None] * (len(positional) - len(arguments.defaults))
        pairs = [
            *zip(positional, [*padding, *arguments.defaults], strict=True),
            *zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True),
        ]
        for argument, default in pairs:
            kind = _parameter_kind(argument, default)
            if kind is not Kind.UNKNOWN:
                self._add(scope, argument.arg, kind)
        for variadic in (arguments.vararg, arguments.kwarg):
            if variadic is not None:
                self._add(scope, variadic.arg, Kind.OTHER)

    def _add(self, scope: Scope, name: str, kind: Kind) -> None:
        self._bindings[scope].append((name, lambda _depth: kind))

    def _bind(self, node: ast.AST) -> None:
        scope = self._scopes.scope(node)
        match node:
            case ast.Assign(targets=targets, value=value):
                for target in targets:
                    self._bind_target(scope, target, value)
            case ast.NamedExpr(target=ast.Name(id=name), value=value):
                self._bindings[scope].append((name, lambda d, v=value: self._kind(v, d)))
            case ast.AnnAssign(target=ast.Name(id=name), annotation=annotation):
                self._add(scope, name, annotation_kind(annotation))
            case ast.AugAssign(target=ast.Name(id=name), value=value):
                self._bindings[scope].append((name, lambda d, v=value: self._augmented(v, d)))
            case ast.For(target=target, iter=iterated) | ast.AsyncFor(target=target, iter=iterated):
                self._bind_elements(scope, target, iterated)
            case ast.comprehension(target=target, iter=iterated):
                self._bind_elements(scope, target, iterated)
            case ast.withitem(optional_vars=ast.expr() as target):
                for name in bound_names(target):
                    self._add(scope, name, Kind.UNKNOWN)
            case _:
                pass

    def _augmented(self, value: ast.expr, depth: int) -> Kind | None:
        # Adding a number changes nothing about what the name is, so it has no say.
        kind = self._kind(value, depth)
        return None if kind is Kind.NUMBER else kind

    def _bind_target(self, scope: Scope, target: ast.expr, value: ast.expr) -> None:
        if isinstance(target, ast.Name):
            self._bindings[scope].append((target.id, lambda d: self._kind(value, d)))
            return
        match target, value:
            case (
                (ast.Tuple(elts=parts) | ast.List(elts=parts)),
                (ast.Tuple(elts=sources) | ast.List(elts=sources)),
            ) if len(parts) == len(sources):
                for part, source in zip(parts, sources, strict=True):
                    self._bind_target(scope, part, source)
                return
            case _:
                pass
        self._bind_elements(scope, target, value)

    def _bind_elements(self, scope: Scope, target: ast.expr, iterated: ast.expr) -> None:
        for name in bound_names(target):
            self._bindings[scope].append((name, lambda d: self._element(iterated, d)))

    def _note_use(self, node: ast.AST) -> None:
        """Record names that are used as only a tensor is."""
        match node:
            case ast.Call(func=func, args=[ast.Name() as first, *_]) if self._needs_tensor(func):
                self._evidence[self._scopes.scope(first)].add(first.id)
            case ast.Call(func=ast.Attribute(value=ast.Name() as used, attr=method)):
                is_library = self._scopes.dotted(used) is not None
                if method in _TENSOR_METHODS and not is_library:
                    self._evidence[self._scopes.scope(used)].add(used.id)
            case _:
                pass

    def _needs_tensor(self, func: ast.expr) -> bool:
        home, _, name = (self._scopes.dotted(func) or "").rpartition(".")
        return home == OPS and name in _NEED_TENSOR

    # Names.

    def _lookup(self, node: ast.Name) -> Kind:
        home = self._scopes.find(node.id, self._scopes.scope(node))
        if home is None:
            return Kind.TENSOR if node.id in _TENSOR_NAMES else Kind.UNKNOWN
        return self._environment(home).get(node.id, Kind.UNKNOWN)

    def _environment(self, scope: Scope) -> dict[str, Kind]:
        if scope in self._environments:
            return self._environments[scope]
        # Kinds of names may rest on each other: repeat until nothing changes.
        for _ in range(_MAX_PASSES):
            before = self._environments.get(scope, {})
            self._environments.setdefault(scope, {})
            after = self._solve(scope)
            self._environments[scope] = after
            if after == before:
                break
        return self._environments[scope]

    def _solve(self, scope: Scope) -> dict[str, Kind]:
        kinds: dict[str, set[Kind]] = defaultdict(set)
        for name, source in self._bindings[scope]:
            kind = source(1)
            if kind is not None:
                kinds[name].add(kind)
        solved = {name: _join(seen) for name, seen in kinds.items()}
        for name in self._evidence[scope]:
            if scope.binds(name) and solved.get(name, Kind.UNKNOWN) is Kind.UNKNOWN:
                solved[name] = Kind.TENSOR
        return solved

    # Expressions.

    def _kind(self, node: ast.expr, depth: int) -> Kind:
        if depth > _MAX_DEPTH:
            return Kind.UNKNOWN
        match node:
            case ast.Constant(value=value):
                is_number = isinstance(value, bool | int | float | complex)
                return Kind.NUMBER if is_number else Kind.OTHER
            case ast.Name():
                return self._lookup(node)
            case ast.Call():
                return self._call(node, depth + 1)
            case ast.Attribute():
                return self._attribute(node, depth + 1)
            case ast.Subscript(value=value):
                return self._element(value, depth + 1)
            case ast.BinOp(left=left, right=right):
                return _arithmetic(self._kind(left, depth + 1), self._kind(right, depth + 1))
            case ast.UnaryOp(op=op, operand=operand):
                return Kind.NUMBER if isinstance(op, ast.Not) else self._kind(operand, depth + 1)
            case ast.Compare(left=left):
                kind = self._kind(left, depth + 1)
                return kind if kind.is_array else Kind.NUMBER
            case ast.IfExp(body=body, orelse=orelse):
                return _join([self._kind(body, depth + 1), self._kind(orelse, depth + 1)])
            case ast.BoolOp(values=values):
                return _join([self._kind(value, depth + 1) for value in values])
            case ast.NamedExpr(value=value):
                return self._kind(value, depth + 1)
            case ast.Await() | ast.Yield() | ast.YieldFrom() | ast.Starred():
                return Kind.UNKNOWN
            case _:
                return Kind.OTHER

    def _element(self, node: ast.expr, depth: int) -> Kind:
        """The kind of an item of `node`."""
        match node:
            case ast.Attribute(attr="shape" | "strides"):
                return Kind.NUMBER
            case ast.Call(func=ast.Name(id="range")):
                return Kind.NUMBER
            case ast.Call(func=func) if self._scopes.dotted(func) == f"{OPS}.shape":
                return Kind.NUMBER
            case ast.Call(func=func) if self._scopes.dotted(func) == f"{OPS}.split":
                return Kind.TENSOR
            case ast.List(elts=[first, *_]) | ast.Tuple(elts=[first, *_]):
                return self._kind(first, depth + 1)
            case _:
                kind = self._kind(node, depth + 1)
                return kind if kind.is_array else Kind.UNKNOWN

    def _attribute(self, node: ast.Attribute, depth: int) -> Kind:
        dotted = self._scopes.dotted(node)
        if dotted is not None:
            return Kind.NUMBER if dotted in ("numpy.pi", f"{OPS}.pi") else Kind.OTHER
        if node.attr in _NUMBER_ATTRIBUTES:
            return Kind.NUMBER
        if node.attr in ("shape", "dtype", "strides", "device"):
            return Kind.OTHER
        kind = self._kind(node.value, depth)
        return kind if kind.is_array and node.attr in _SAME_ATTRIBUTES else Kind.UNKNOWN

    def _call(self, node: ast.Call, depth: int) -> Kind:
        dotted = self._scopes.dotted(node.func)
        if dotted is not None:
            return self._library_call(dotted, node, depth)
        if isinstance(node.func, ast.Name):
            return self._builtin_call(node.func, node, depth)
        if isinstance(node.func, ast.Attribute):
            return self._method_call(node.func, depth)
        return Kind.UNKNOWN

    def _library_call(self, dotted: str, node: ast.Call, depth: int) -> Kind:
        top, last = dotted.partition(".")[0], dotted.rpartition(".")[2]
        if dotted.startswith(OPS + "."):
            # The one sanctioned way out: what follows is host code by intent.
            if last == "to_numpy":
                return Kind.HOST
            if last in _OPS_NUMBERS:
                return Kind.NUMBER
            return Kind.OTHER if last in _OPS_OTHERS else Kind.TENSOR
        if top == "math":
            return Kind.NUMBER
        if top not in ("numpy", "torch", "mlx") or last in _BACKEND_NON_TENSORS:
            return Kind.UNKNOWN
        if not last.islower() or dotted.startswith(("torch.distributed", "torch.cuda")):
            return Kind.UNKNOWN
        if top != "numpy":
            return Kind.TENSOR
        # np.prod(shape) is host arithmetic; only what touches an array counts as one.
        touches = last in _CREATORS or any(self._kind(a, depth).is_array for a in node.args)
        return Kind.HOST if touches else Kind.UNKNOWN

    def _builtin_call(self, func: ast.Name, node: ast.Call, depth: int) -> Kind:
        if self._scopes.find(func.id, self._scopes.scope(func)) is not None:
            return Kind.UNKNOWN
        if func.id in _CALLS_GIVING_NUMBERS:
            return Kind.NUMBER
        if func.id in _CALLS_GIVING_OTHERS:
            return Kind.OTHER
        if func.id in _CALLS_OF_ARGUMENTS:
            return _join([self._kind(argument, depth) for argument in node.args])
        return Kind.UNKNOWN

    def _method_call(self, func: ast.Attribute, depth: int) -> Kind:
        receiver = self._kind(func.value, depth)
        if not receiver.is_array:
            return Kind.UNKNOWN
        if func.attr in ("item", "dim", "size", "numel"):
            return Kind.NUMBER
        return Kind.OTHER if func.attr in ("tolist", "backward") else receiver


def _parameter_kind(argument: ast.arg, default: ast.expr | None) -> Kind:
    if argument.annotation is not None:
        return annotation_kind(argument.annotation)
    if isinstance(default, ast.Constant) and default.value is not None:
        return Kind.OTHER if isinstance(default.value, str | bytes) else Kind.NUMBER
    if isinstance(default, ast.Tuple | ast.List | ast.Dict):
        return Kind.OTHER
    is_tensor = argument.arg in _TENSOR_NAMES or argument.arg.endswith("_tensor")
    return Kind.TENSOR if is_tensor else Kind.UNKNOWN
