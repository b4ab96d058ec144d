"""Calls: generic instances, comptime execution, run-time calls."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from wsesim.csl.program import typed_tree as tree
from wsesim.csl.sema import types as t
from wsesim.csl.sema.coerce import coerce
from wsesim.csl.sema.core import Binding, value_key
from wsesim.csl.sema.modules import stop
from wsesim.csl.sema.operators import Operators
from wsesim.csl.sema.values import CV, VOID_VALUE, FunctionValue, Operand
from wsesim.csl.syntax import nodes as s

if TYPE_CHECKING:
    from wsesim.csl.sema.evaluate import Evaluator
    from wsesim.csl.syntax.source import Position

__all__ = ["Calls", "Instance"]

_MAX_CALL_DEPTH = 160


@dataclass
class Instance:
    """A function with the values of its comptime parameters: what is lowered once."""

    function: FunctionValue
    scope: dict[str, Binding]  # comptime parameters
    params: list[tuple[str, t.Type]]  # run-time parameters
    ret: t.Type


class Calls(Operators):
    """Function calls."""

    def spawn(self, function: FunctionValue) -> Evaluator:
        """An evaluator for the body of a function."""
        return self.unit.evaluator(function.module)

    def call(self, node: s.Call) -> Operand:
        """``f(args)``."""
        callee = self.eval(node.function)
        if not isinstance(callee, CV) or not isinstance(callee.value, FunctionValue):
            kind = callee.type
            if isinstance(kind, t.PtrType) and isinstance(kind.elem, t.FnType):
                stop("unsupported", "calls through run-time function pointers are not supported", node.pos)
            stop("not-callable", f"a value of type {kind} cannot be called", node.pos)
        function = callee.value
        if function.decl.is_task:
            hint = "activate it: @activate(its task id)"
            stop("task-call", f"task '{function.name}' cannot be called like a function", node.pos, hint)
        if len(node.args) != len(function.decl.params):
            want, got = len(function.decl.params), len(node.args)
            text = f"'{function.name}' takes {want} argument{'s' if want != 1 else ''}, found {got}"
            stop("argument-count", text, node.pos, f"declared at {function.decl.pos}")
        args = [self.argument_value(function, i, a) for i, a in enumerate(node.args)]
        return self.invoke(function, args, [a.pos for a in node.args], node.pos)

    def argument_value(self, function: FunctionValue, index: int, node: s.Expr) -> Operand:
        """An argument; a conditional one takes the parameter's type where that is a plain name."""
        if not isinstance(node, s.IfExpr):
            return self.eval(node)
        param = function.decl.params[index].type
        generic = {p.name for p in function.decl.params}
        if not isinstance(param, s.Name) or param.id == "anytype" or param.id in generic:
            return self.eval(node)
        return self.eval_to(node, self.spawn(function).type(param), f"parameter '{function.decl.params[index].name}'")

    def invoke(self, function: FunctionValue, args: list[Operand], places: list[Position], pos: Position) -> Operand:
        """Calls a function with evaluated arguments."""
        if self.at_comptime:
            return self._run(function, args, places, pos)
        instance, runtime = self._instance(function, args, places)
        if t.is_comptime_only(instance.ret):
            return self._run(function, args, places, pos)
        if function.decl.is_inline and all(isinstance(a, CV) for a in args):
            return self._run(function, args, places, pos)
        symbol = self.instance_symbol(instance)
        assert self.builder is not None
        self.builder.calls[symbol] = None
        exprs = tuple(self.argument(a, where) for a, where in zip(runtime, places, strict=False))
        return tree.Call(instance.ret, symbol, exprs, pos=pos)

    def argument(self, operand: Operand, pos: Position) -> tree.Expr:
        """An argument; aggregates go by the address of a copy."""
        expr = self.runtime(operand, pos)
        if isinstance(expr.type, t.ArrayType | t.StructType) and isinstance(expr, tree.Load):
            return self.address_of_copy(expr, pos)
        return expr

    def address_of_copy(self, value: tree.Load, pos: Position) -> tree.Expr:
        """Address of a copy of an aggregate in the frame."""
        raise NotImplementedError

    # --- instances ---

    def _instance(
        self, function: FunctionValue, args: list[Operand], places: list[Position]
    ) -> tuple[Instance, list[Operand]]:
        inner = self.spawn(function)
        scope: dict[str, Binding] = {}
        inner.scopes = [scope]
        comptime: dict[str, Binding] = {}
        params: list[tuple[str, t.Type]] = []
        runtime: list[Operand] = []
        for index, (param, arg, where) in enumerate(zip(function.decl.params, args, places, strict=True)):
            kind = self._param_type(inner, param, arg)
            fixed = param.is_comptime or self._comptime_only(kind)
            fixed = fixed or (function.decl.is_inline and isinstance(arg, CV))
            value = coerce(arg, kind, where, f"parameter '{param.name}'") if kind != t.ANYTYPE else arg
            if isinstance(value, CV) and isinstance(kind, t.StructType) and value.type is t.COMPTIME_STRUCT:
                value = self.struct_value(value, kind, where)
            if not fixed:
                params.append((param.name, kind))
                runtime.append(value)
                scope[param.name] = tree.Local(index, param.name, kind)
            elif isinstance(value, CV):
                scope[param.name] = comptime[param.name] = value
            else:
                self.not_comptime(where, f"argument '{param.name}'")
        ret = inner.type(function.decl.ret)
        return Instance(function, comptime, params, ret), runtime

    @staticmethod
    def _comptime_only(kind: t.Type) -> bool:
        return t.is_comptime_only(kind) or kind == t.DsdType("fifo") or kind in t.DSR_TYPES

    @staticmethod
    def _param_type(inner: Evaluator, param: s.Parameter, arg: Operand) -> t.Type:
        if isinstance(param.type, s.Name) and param.type.id == "anytype":
            return arg.type
        kind = inner.type(param.type)
        if kind == t.ANYOPAQUE:
            stop("type-mismatch", "anyopaque can only stand behind a pointer", param.pos)
        return kind

    def instance_symbol(self, instance: Instance) -> str:
        """The symbol of an instance, which is queued for lowering when new."""
        function = instance.function
        key = (
            tuple((name, value_key(value)) for name, value in instance.scope.items()),
            tuple(kind for _, kind in instance.params),
        )
        if key not in function.instances:
            symbol = self.unit.unique_function(f"{function.module.prefix}{function.name}")
            function.instances[key] = symbol
            self.unit.pending.append((symbol, instance))
        return function.instances[key]

    def function_symbol(self, function: FunctionValue, pos: Position) -> str:
        """The symbol of a function or task that is named as an operand; it must have no comptime parameters."""
        inner = self.spawn(function)
        inner.scopes = [{}]
        params: list[tuple[str, t.Type]] = []
        for param in function.decl.params:
            kind = inner.type(param.type)
            if param.is_comptime or self._comptime_only(kind):
                stop("comptime-only", f"'{function.name}' has comptime parameters and cannot be used here", pos)
            params.append((param.name, kind))
        return self.instance_symbol(Instance(function, {}, params, inner.type(function.decl.ret)))

    def function_type(self, function: FunctionValue) -> t.FnType:
        """Signature of a function without generic parameters."""
        inner = self.spawn(function)
        inner.scopes = [{}]
        params = tuple(inner.type(x.type) for x in function.decl.params)
        return t.FnType(params, inner.type(function.decl.ret), function.decl.is_task)

    # --- at compile time ---

    def _run(self, function: FunctionValue, args: list[Operand], places: list[Position], pos: Position) -> CV:
        decl = function.decl
        if decl.body is None:
            stop("unsupported", f"extern function '{function.name}' cannot be linked here", pos)
        unit = self.unit
        if unit.depth >= _MAX_CALL_DEPTH:
            stop(
                "comptime-depth", f"more than {_MAX_CALL_DEPTH} nested comptime calls", pos, "is the recursion endless?"
            )
        inner = self.spawn(function)
        scope: dict[str, Binding] = {}
        inner.scopes = [scope]
        known = self._fixed_signature(function, inner)
        for index, (param, arg, where) in enumerate(zip(decl.params, args, places, strict=True)):
            if not isinstance(arg, CV):
                self.not_comptime(where, f"argument '{param.name}'")
            kind = self._param_type(inner, param, arg) if known is None else known[0][index]
            scope[param.name] = coerce(arg, kind, where, f"parameter '{param.name}'")  # type: ignore[assignment]
        inner.ret = inner.type(decl.ret) if known is None else known[1]
        unit.depth += 1
        try:
            result = inner.run_function(decl.body)
        finally:
            unit.depth -= 1
        if inner.ret == t.VOID:
            return VOID_VALUE
        if result is None:
            stop("missing-return", f"'{function.name}' ended without returning a value", decl.pos)
        return result

    @staticmethod
    def _fixed_signature(function: FunctionValue, inner: Evaluator) -> tuple[tuple[t.Type, ...], t.Type] | None:
        """The parameter and result types when they are plain names that no call can change."""
        if function.signature is not None:
            return function.signature
        decl = function.decl
        spelled = [p.type for p in decl.params] + [decl.ret]
        own = {p.name for p in decl.params} | {"anytype"}
        if not all(isinstance(n, s.Name) and n.id not in own for n in spelled):
            return None
        kinds = tuple(inner.type(n) for n in spelled)
        function.signature = (kinds[:-1], kinds[-1])
        return function.signature

    def run_comptime_call(self, function: FunctionValue, args: list[Any], pos: Position) -> CV:
        """Runs a function now."""
        return self._run(function, args, [pos] * len(args), pos)
