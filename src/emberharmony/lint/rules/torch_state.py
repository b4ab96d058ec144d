"""EH504, EH506 to EH509: in-place changes, inference and training mode, losses and ranks.

Four statements of the guidelines are left out because PyTorch does not bear them out:
`add(..., memory_format=)`, chained `.add()` being worse than `+`, `x = x + y` in a loop being in
place, and `inference_mode` as a substitute for `no_grad` in training.
"""

import ast
from collections.abc import Iterator

from emberharmony.lint.findings import Severity
from emberharmony.lint.registry import TORCH_STYLE, Found, found, rule
from emberharmony.lint.source import Module
from emberharmony.lint.torch_code import FunctionNode, is_test, method_calls, words

__all__ = ["in_place", "inference_mode", "local_loss", "older_no_grad", "train_in_evaluation"]

# Flags and storage, not values: their names end in an underscore but no tensor changes.
_NOT_VALUES = frozenset(["requires_grad_", "retains_grad_", "share_memory_"])
_INFERENCE_WORDS = frozenset(["infer", "inference", "predict"])
_EVALUATION_WORDS = _INFERENCE_WORDS | {"eval", "evaluate", "evaluation", "validate", "validation"}
_TRAINING_METHODS = frozenset(["backward", "step", "zero_grad"])
_GRAD_MODES = frozenset(["torch.inference_mode", "torch.no_grad"])
_RANK_WORDS = frozenset(["gather", "gathered", "reduce", "distributed", "ranks"])


@rule("EH504", "in-place", ruleset=TORCH_STYLE)
def in_place(module: Module) -> Iterator[Found]:
    """A tensor is changed in place: `x.add_(1)`, `inplace=True`, `out=`."""
    for name, call in method_calls(module, module.tree):
        is_in_place = name.endswith("_") and not name.endswith("__") and not name.startswith("_")
        if is_in_place and name not in _NOT_VALUES:
            yield found(call, f".{name}() changes its tensor in place; use .{name[:-1]}()")
    for call in module.calls():
        is_torch = (module.dotted(call.func) or "").startswith("torch.")
        for keyword in call.keywords:
            is_set = isinstance(keyword.value, ast.Constant) and keyword.value.value is True
            if keyword.arg == "inplace" and is_set:
                yield found(call, "inplace=True changes its input; leave it out")
            elif keyword.arg == "out" and is_torch:
                yield found(call, "out= overwrites a tensor; take the result instead")


@rule("EH506", "inference-mode", ruleset=TORCH_STYLE)
def inference_mode(module: Module) -> Iterator[Found]:
    """An inference function records gradients: no `inference_mode()` and no `no_grad()`."""
    for node in module.functions():
        if is_test(node) or not words(node.name) & _INFERENCE_WORDS:
            continue
        methods = {name for name, _ in method_calls(module, node)}
        if methods & _TRAINING_METHODS or "eval" not in methods:
            continue
        if not _grad_modes(module, node):
            yield found(node, f"{node.name}() records gradients; add @torch.inference_mode()")


@rule("EH507", "older-no-grad", ruleset=TORCH_STYLE, severity=Severity.NOTE)
def older_no_grad(module: Module) -> Iterator[Found]:
    """An inference function uses `no_grad()` where `inference_mode()` does and costs less."""
    for node in module.functions():
        methods = {name for name, _ in method_calls(module, node)}
        # Training code needs no_grad; only a function that infers can take the stricter mode.
        is_inference = "eval" in methods and not methods & _TRAINING_METHODS
        is_named_so = bool(words(node.name) & _INFERENCE_WORDS)
        if is_inference and is_named_so and _grad_modes(module, node) == {"torch.no_grad"}:
            yield found(node, f"{node.name}() uses no_grad(); inference_mode() does more")


@rule("EH508", "train-in-evaluation", ruleset=TORCH_STYLE)
def train_in_evaluation(module: Module) -> Iterator[Found]:
    """`model.train()` in a function that evaluates or infers."""
    for node in module.functions():
        if is_test(node) or not words(node.name) & _EVALUATION_WORDS or "train" in words(node.name):
            continue
        calls = list(method_calls(module, node))
        # Going back to training mode after .eval() is how such a function should end.
        first_eval = min((c.lineno for name, c in calls if name == "eval"), default=None)
        for name, call in calls:
            if name != "train" or _is_false(call.args):
                continue
            if first_eval is None or call.lineno < first_eval:
                yield found(call, f".train() in {node.name}(); use .eval()")


@rule("EH509", "local-loss", ruleset=TORCH_STYLE)
def local_loss(module: Module) -> Iterator[Found]:
    """A loss function never looks at the other ranks: each would report its own number."""
    for node in module.functions():
        is_loss = "loss" in words(node.name) and _returns_value(node)
        takes_tensors = len(node.args.posonlyargs) + len(node.args.args) >= 2
        if is_loss and takes_tensors and not is_test(node) and not _knows_ranks(module, node):
            yield found(node, f"{node.name}() is not aggregated across ranks; use dist.all_reduce")


def _is_false(arguments: list[ast.expr]) -> bool:
    return bool(arguments) and isinstance(arguments[0], ast.Constant) and not arguments[0].value


def _grad_modes(module: Module, node: FunctionNode) -> set[str | None]:
    """The grad modes a function enters, as decorator or in a with statement."""
    entered = list(node.decorator_list)
    for inner in ast.walk(node):
        if isinstance(inner, ast.With | ast.AsyncWith):
            entered.extend(item.context_expr for item in inner.items)
    callees = [e.func if isinstance(e, ast.Call) else e for e in entered]
    return {module.dotted(callee) for callee in callees} & _GRAD_MODES


def _returns_value(node: FunctionNode) -> bool:
    return any(isinstance(n, ast.Return) and n.value is not None for n in ast.walk(node))


def _knows_ranks(module: Module, node: FunctionNode) -> bool:
    for inner in ast.walk(node):
        if isinstance(inner, ast.Name | ast.Attribute):
            if (module.dotted(inner) or "").startswith("torch.distributed"):
                return True
            name = inner.attr if isinstance(inner, ast.Attribute) else inner.id
            if words(name) & _RANK_WORDS:
                return True
    return False
