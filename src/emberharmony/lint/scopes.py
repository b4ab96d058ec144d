"""Which library a name stands for, found from the imports without running any of them."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field

__all__ = ["CONVENTIONAL", "OPS", "Imported", "Scope", "ScopeMap", "bound_names"]

OPS = "emberharmony.ops"

# Fragments and notebooks use these names without importing them; a module that binds the
# name itself is taken at its word.
CONVENTIONAL = {
    "np": "numpy",
    "numpy": "numpy",
    "ops": OPS,
    "torch": "torch",
    "mx": "mlx.core",
    "mlx": "mlx",
    "dist": "torch.distributed",
    "nn": "torch.nn",
    "F": "torch.nn.functional",
}

Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


@dataclass(frozen=True, slots=True, eq=False)
class Imported:
    """One name bound by an import statement."""

    name: str
    dotted: str
    statement: ast.Import | ast.ImportFrom
    alias: ast.alias
    typing_only: bool


@dataclass(slots=True, eq=False)
class Scope:
    """The names one module, class or function binds."""

    node: ast.AST
    parent: "Scope | None"
    imports: dict[str, Imported] = field(default_factory=dict)
    parameters: set[str] = field(default_factory=set)
    assigned: set[str] = field(default_factory=set)

    def binds(self, name: str) -> bool:
        """Whether this scope itself gives `name` a meaning."""
        return name in self.imports or name in self.parameters or name in self.assigned


def bound_names(target: ast.AST) -> Iterator[str]:
    """The plain names an assignment target binds, in order."""
    pending = [target]
    while pending:
        node = pending.pop()
        if isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.Tuple | ast.List):
            pending.extend(reversed(node.elts))
        elif isinstance(node, ast.Starred):
            pending.append(node.value)


def _is_type_checking(node: ast.AST) -> bool:
    if not isinstance(node, ast.If):
        return False
    test = node.test
    name = test.attr if isinstance(test, ast.Attribute) else getattr(test, "id", None)
    return name == "TYPE_CHECKING"


def _dotted_import(statement: ast.Import | ast.ImportFrom, alias: ast.alias) -> tuple[str, str]:
    """The local name an alias binds, and the dotted path it stands for."""
    if isinstance(statement, ast.Import):
        if alias.asname is None:
            top = alias.name.partition(".")[0]
            return top, top
        return alias.asname, alias.name
    # A relative import never names a backend; the leading dots keep it from looking like one.
    module = "." * statement.level + (statement.module or "")
    return alias.asname or alias.name, f"{module}.{alias.name}"


class ScopeMap:
    r"""Every node's scope, and what names mean there.

    Example:
        >>> tree = ast.parse("import numpy as np\nnp.linalg.norm(x)")
        >>> call = tree.body[1].value
        >>> ScopeMap(tree).dotted(call.func)
        'numpy.linalg.norm'
    """

    def __init__(self, tree: ast.Module) -> None:
        self.module = Scope(tree, None)
        self.scopes = [self.module]
        self._of: dict[ast.AST, Scope] = {}
        self._walk(tree)

    def scope(self, node: ast.AST) -> Scope:
        """The scope in which `node` is evaluated."""
        return self._of.get(node, self.module)

    def find(self, name: str, start: Scope) -> Scope | None:
        """The scope whose binding of `name` is seen from `start`, if the module has one."""
        scope: Scope | None = start
        while scope is not None:
            # A class body is not visible from the functions inside it.
            visible = scope is start or not isinstance(scope.node, ast.ClassDef)
            if visible and scope.binds(name):
                return scope
            scope = scope.parent
        return None

    def imported(self, node: ast.Name) -> Imported | None:
        """The import that gives this name its meaning."""
        home = self.find(node.id, self.scope(node))
        return None if home is None else home.imports.get(node.id)

    def dotted(self, node: ast.AST) -> str | None:
        """The dotted library path of a name or attribute chain, or None when it has none."""
        parts: list[str] = []
        while isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        if not isinstance(node, ast.Name):
            return None
        root = self._root(node)
        return None if root is None else ".".join([root, *reversed(parts)])

    def _root(self, node: ast.Name) -> str | None:
        home = self.find(node.id, self.scope(node))
        if home is None:
            return CONVENTIONAL.get(node.id)
        found = home.imports.get(node.id)
        if found is not None:
            return None if found.typing_only else found.dotted
        # Operator bodies take the ops library as an argument of that name.
        if node.id == "ops" and "ops" in home.parameters:
            return OPS
        return None

    def _walk(self, tree: ast.Module) -> None:
        pending: list[tuple[ast.AST, Scope, bool]] = [(tree, self.module, False)]
        while pending:
            node, scope, typing_only = pending.pop()
            self._of[node] = scope
            self._bind(node, scope, typing_only)
            if _is_type_checking(node):
                assert isinstance(node, ast.If)
                pending.extend((n, scope, True) for n in reversed(node.body))
                pending.extend((n, scope, typing_only) for n in [node.test, *node.orelse])
                continue
            pending.extend((n, s, typing_only) for n, s in self._children(node, scope))

    def _children(self, node: ast.AST, scope: Scope) -> list[tuple[ast.AST, Scope]]:
        children = list(ast.iter_child_nodes(node))
        if not isinstance(node, Function | ast.ClassDef):
            return [(child, scope) for child in reversed(children)]
        inner = Scope(node, scope)
        self.scopes.append(inner)
        if not isinstance(node, ast.ClassDef):
            inner.parameters.update(argument.arg for argument in _parameters(node))
        body = set(node.body) if isinstance(node.body, list) else {node.body}
        # Decorators, defaults and annotations are evaluated outside the function.
        return [(child, inner if child in body else scope) for child in reversed(children)]

    @staticmethod
    def _bind(node: ast.AST, scope: Scope, typing_only: bool) -> None:
        match node:
            case ast.Import(names=names) | ast.ImportFrom(names=names):
                for alias in names:
                    name, dotted = _dotted_import(node, alias)
                    scope.imports.setdefault(name, Imported(name, dotted, node, alias, typing_only))
            case ast.Name(id=name, ctx=ast.Store() | ast.Del()):
                scope.assigned.add(name)
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                scope.assigned.add(name)
            case ast.ClassDef(name=name):
                scope.assigned.add(name)
            case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
                scope.assigned.add(name)
            case ast.MatchMapping(rest=str(name)):
                scope.assigned.add(name)
            case _:
                pass


def _parameters(node: Function) -> list[ast.arg]:
    arguments = node.args
    variadic = [a for a in (arguments.vararg, arguments.kwarg) if a is not None]
    return [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, *variadic]
