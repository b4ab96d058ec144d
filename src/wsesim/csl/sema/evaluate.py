"""The evaluator put together: dispatch, parameters, global variables."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Any

from wsesim.csl.builtins import dsd_operations as builtins_ops  # noqa: F401 - they register themselves
from wsesim.csl.builtins import layout as builtins_layout  # noqa: F401 - they register themselves
from wsesim.csl.builtins import tasks as builtins_tasks  # noqa: F401 - they register themselves
from wsesim.csl.builtins.dsd import tensor_access
from wsesim.csl.builtins.types_and_values import BUILTINS
from wsesim.csl.sema import types as t
from wsesim.csl.sema.coerce import coerce, type_of_value
from wsesim.csl.sema.lowering import Lower
from wsesim.csl.sema.modules import GlobalVar, Module, stop
from wsesim.csl.sema.values import CV, UNDEFINED, ArrayValue, Operand
from wsesim.csl.syntax import nodes as s

if TYPE_CHECKING:
    from collections.abc import Callable

    from wsesim.csl.sema.core import Builder
    from wsesim.csl.sema.unit import Unit

__all__ = ["Evaluator"]


class Evaluator(Lower):
    """Evaluates the expressions and statements of one module instance."""

    def __init__(self, unit: Unit, module: Module, builder: Builder | None = None) -> None:
        super().__init__(unit, module, builder)
        self.block_targets: dict[str, list[Any]] = {}

    def eval(self, node: s.Expr) -> Operand:
        """Value of an expression: a CV when comptime-known, a typed tree otherwise."""
        return _DISPATCH[type(node)](self, node)

    def builtin(self, node: s.BuiltinCall) -> Operand:
        """``@name(...)``."""
        found = BUILTINS.get(node.name)
        if found is None:
            stop(
                "unknown-builtin",
                f"there is no builtin @{node.name}",
                node.pos,
                _suggest(node.name),
                len(node.name) + 1,
            )
        if not found.low <= len(node.args) <= found.high:
            few = len(node.args) < found.low
            want = found.low if few else found.high
            text = f"@{node.name} takes {'at least' if few else 'at most'} {want} arguments, found {len(node.args)}"
            stop("argument-count", text, node.pos, length=len(node.name) + 1)
        return found.handler(self, node)

    def comptime_value(self, node: s.ComptimeExpr) -> Operand:
        """``comptime expr``."""
        return self.comptime(node.operand)

    def block_expr(self, node: s.BlockExpr) -> Operand:
        """A block as a value."""
        return self.block_value(node.body)

    # --- top-level declarations ---

    def parameter(self, decl: s.ParamDecl, given: CV | None) -> CV:
        """Value of a ``param``."""
        kind = self.type(decl.type) if decl.type is not None else None
        if given is None:
            if decl.default is None:
                hint = f"give it with --params={decl.name}:<value>, in @set_tile_code or in @import_module"
                stop("missing-parameter", f"parameter '{decl.name}' has no value", decl.pos, hint, len("param"))
            given = self.comptime(decl.default)
        if kind is None:
            return given
        if isinstance(kind, t.HandleType) and (given.type is t.COMPTIME_INT or isinstance(given.type, t.IntType)):
            return CV(kind, given.value)  # cslc passes colours and ids as numbers
        found = coerce(given, kind, decl.pos, f"parameter '{decl.name}'")
        assert isinstance(found, CV)
        return found

    def global_variable(self, decl: s.VarDecl, symbol: str) -> CV | GlobalVar:
        """Value of a global ``const``, or the variable of a ``var``."""
        if decl.storage == "extern":
            stop("unsupported", f"extern variable '{decl.name}' cannot be linked here", decl.pos)
        kind = self.type(decl.type) if decl.type is not None else None
        value = self._initial(decl, kind)
        if decl.const:
            assert isinstance(value, CV)
            self._remember_align(decl, value)
            return self._named(value, decl)
        found = kind if kind is not None else type_of_value(value)
        self._check_runtime(found, decl)
        init = UNDEFINED if decl.init is None else value
        var = GlobalVar(symbol, decl.name, found, init, False, decl.pos, in_library=self.module.in_library)
        if decl.align is not None:
            var.align = self.alignment(decl.align)
        return self.unit.register(var)

    def _initial(self, decl: s.VarDecl, kind: t.Type | None) -> Any:
        if decl.init is None:
            if decl.const or kind is None:
                stop("missing-initializer", f"'{decl.name}' needs an initial value", decl.pos)
            return UNDEFINED
        value = self.comptime(decl.init, f"the initial value of '{decl.name}'")
        return value if kind is None else coerce(value, kind, decl.init.pos, f"'{decl.name}'")

    def _named(self, value: CV, decl: s.VarDecl) -> CV:
        """A type defined by this declaration is called like it."""
        kind = value.value
        if value.type is t.TYPE and isinstance(kind, t.StructType | t.EnumType) and not kind.name:
            object.__setattr__(kind, "name", decl.name)
        return value

    def _remember_align(self, decl: s.VarDecl, value: CV) -> None:
        if decl.align is None:
            return
        key = id(value.value) if isinstance(value.value, ArrayValue | dict) else (id(self.module), decl.name)
        self.unit.constant_align[key] = self.alignment(decl.align)

    @staticmethod
    def _check_runtime(kind: t.Type, decl: s.VarDecl) -> None:
        if t.is_comptime_only(kind):
            hint = "declare it with const" if decl.type is not None else f"give it a type: var {decl.name}: i16 = ..."
            text = f"variable '{decl.name}' cannot have type {kind}, whose values exist only at compile time"
            stop("comptime-only", text, decl.pos, hint)
        if kind == t.VOID:
            stop("type-mismatch", f"variable '{decl.name}' cannot have type void, which has no values", decl.pos)


def _suggest(name: str) -> str:
    close = difflib.get_close_matches(name, BUILTINS, n=1)
    return f"did you mean @{close[0]}?" if close else ""


_DISPATCH: dict[type, Callable[[Evaluator, Any], Operand]] = {
    s.Name: Evaluator.place_value,
    s.Index: Evaluator.place_value,
    s.Field: Evaluator.place_value,
    s.Deref: Evaluator.place_value,
    s.IntLiteral: lambda _, n: Evaluator.int_literal(n),
    s.FloatLiteral: lambda _, n: Evaluator.float_literal(n),
    s.BoolLiteral: lambda _, n: Evaluator.bool_literal(n),
    s.StringLiteral: lambda _, n: Evaluator.string_literal(n),
    s.CharLiteral: lambda _, n: Evaluator.char_literal(n),
    s.Unary: Evaluator.unary,
    s.Binary: Evaluator.binary,
    s.Call: Evaluator.call,
    s.BuiltinCall: Evaluator.builtin,
    s.AnonStruct: Evaluator.anon_struct,
    s.InitList: Evaluator.init_list,
    s.TensorAccess: tensor_access,
    s.IfExpr: Evaluator.if_value,
    s.SwitchExpr: Evaluator.switch_value,
    s.BlockExpr: Evaluator.block_expr,
    s.ComptimeExpr: Evaluator.comptime_value,
    s.ArrayTypeExpr: Evaluator.array_type,
    s.PtrTypeExpr: Evaluator.ptr_type,
    s.FnTypeExpr: Evaluator.fn_type,
    s.StructTypeExpr: Evaluator.struct_type,
    s.EnumTypeExpr: Evaluator.enum_type,
}
assert set(_DISPATCH) == set(s.Expr.__args__), "every expression has its rule"
