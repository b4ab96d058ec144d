"""L-BFGS: steps by the curvature that the last gradients show."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from pyflame.arrays import adopt
from pyflame.autograd import enable_grad
from pyflame.evaluation import evaluate
from pyflame.lazy import modes
from pyflame.optim.algorithms import check_not_negative
from pyflame.optim.linesearch import Number, Point, strong_wolfe
from pyflame.optim.optimizer import Optimizer
from pyflame.tensors import Tensor

__all__ = ["LBFGS"]

Closure: TypeAlias = Callable[[], Any]
# Pairs of less curvature say nothing.
LEAST_CURVATURE = 1e-10


class Pair(NamedTuple):
    """How a step changed the gradient, the step, and one over their product."""

    change: np.ndarray
    step: np.ndarray
    inverse: Number


class LBFGS(Optimizer):
    """Quasi-Newton steps: each `step` evaluates the closure many times, and changes all parameters together.

    Args:
        params: What to optimize, as one group.
        lr: How far to go along each direction (or to begin with, where there is a line search).
        max_iter: Directions in one `step`.
        max_eval: Evaluations of the closure in one `step`; None means five for every four directions.
        tolerance_grad: A largest element of the gradient that is small enough to end with.
        tolerance_change: The same for steps and losses.
        history_size: How many of the last steps tell of the curvature.
        line_search_fn: None, or "strong_wolfe" to search each direction for a point that is low and flat enough.

    Example:
        >>> import pyflame as pf
        >>> w = pf.nn.Parameter(pf.tensor([3.0, -2.0]))
        >>> optimizer = pf.optim.LBFGS([w], line_search_fn="strong_wolfe")
        >>> def closure():
        ...     optimizer.zero_grad()
        ...     loss = ((w - 1) ** 2 * pf.tensor([1.0, 10.0])).sum()
        ...     loss.backward()
        ...     return loss
        >>> optimizer.step(closure).item()
        94.0
        >>> [round(x, 3) for x in w.numpy().tolist()]
        [1.0, 1.0]
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1.0,
        max_iter: int = 20,
        max_eval: int | None = None,
        tolerance_grad: float = 1e-7,
        tolerance_change: float = 1e-9,
        history_size: int = 100,
        line_search_fn: str | None = None,
    ) -> None:
        check_not_negative(lr=lr)
        if line_search_fn not in (None, "strong_wolfe"):
            raise ValueError(f"line_search_fn must be None or 'strong_wolfe'. Received: {line_search_fn!r}")
        defaults = {
            "lr": lr,
            "max_iter": max_iter,
            "max_eval": max_iter * 5 // 4 if max_eval is None else max_eval,
            "tolerance_grad": tolerance_grad,
            "tolerance_change": tolerance_change,
            "history_size": history_size,
            "line_search_fn": line_search_fn,
        }
        super().__init__(params, defaults)

    def add_param_group(self, param_group: Mapping[str, Any]) -> None:
        """The one group there is; another is refused."""
        if self.param_groups:
            raise ValueError("LBFGS doesn't support per-parameter options (parameter groups)")
        super().add_param_group(param_group)

    def step(self, closure: Closure | None = None) -> Any:
        """Go down along up to `max_iter` directions.

        Args:
            closure: Clears the gradients, computes the loss and its gradients, returns the loss.
        """
        if closure is None:
            raise TypeError("LBFGS evaluates the loss many times in a step: step(closure) needs the closure")
        if modes.tracer is not None:
            raise TypeError("LBFGS decides by the values of losses: compile the closure, not the step")
        return _Descent(self, closure).run()

    def state_dict(self) -> dict[str, Any]:
        """As torch arranges it: all of it belongs to the first parameter."""
        params = self.param_groups[0]["params"]
        group = {**self.param_groups[0], "params": list(range(len(params)))}
        state = {0: dict(next(iter(self.state.values())))} if self.state else {}
        return {"state": state, "param_groups": [group]}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Take over a saved state; the number of elements must fit."""
        saved = state_dict["state"]
        super().load_state_dict({**state_dict, "state": {}})
        params = self.param_groups[0]["params"]
        dtype, size = np.result_type(*(p.dtype.numpy for p in params)), sum(p.numel for p in params)
        values = next(iter(saved.values()), None)
        if values is None:
            return
        state: dict[str, Any] = {key: _taken(value, dtype) for key, value in values.items()}
        for key in ("d", "prev_flat_grad"):
            if state.get(key) is not None and state[key].numel != size:
                raise ValueError(f"loaded {key} has {state[key].numel} elements, the parameters have {size}")
        self.state.clear()
        self.state[params[0]] = state


def _taken(value: Any, dtype: np.dtype[Any]) -> Any:
    """A part of a saved state: counts and losses as they are, tensors and lists of them as ours."""
    if isinstance(value, list | tuple):
        return [_taken(item, dtype) for item in value]
    if value is None or isinstance(value, int | float):
        return value
    return adopt(np.array(value.detach().numpy() if hasattr(value, "detach") else value, dtype))


def _array(value: Any) -> Any:
    """Back to what is computed with."""
    return value.numpy()[()] if isinstance(value, Tensor) else value


class _Descent:
    """One `step`: the directions it takes, and what it leaves for the next one."""

    def __init__(self, optimizer: LBFGS, closure: Closure) -> None:
        self.group, self.closure = optimizer.param_groups[0], closure
        self.params: list[Tensor] = self.group["params"]
        self.state: dict[str, Any] = optimizer.state.setdefault(self.params[0], {})
        kept = {key: self.state.get(key) for key in ("old_dirs", "old_stps", "ro")}
        columns = ([_array(item) for item in values or ()] for values in kept.values())
        self.pairs = [Pair(*three) for three in zip(*columns, strict=True)]
        self.scale: Number = _array(self.state.get("H_diag", 1))
        self.direction, self.before = _array(self.state.get("d")), _array(self.state.get("prev_flat_grad"))
        self.length: Number = _array(self.state.get("t", 0.0))
        self.last_loss: float | None = self.state.get("prev_loss")
        self.evaluations, self.loss, self.gradient = 0, 0.0, np.zeros(0)

    def run(self) -> Any:
        state, group = self.state, self.group
        for count in ("func_evals", "n_iter"):
            state.setdefault(count, 0)
        first = self._evaluate()
        if np.abs(self.gradient).max(initial=0) <= group["tolerance_grad"]:
            return first
        with np.errstate(all="ignore"):
            for number in range(1, group["max_iter"] + 1):
                state["n_iter"] += 1
                if not self._advance(last=number == group["max_iter"]):
                    break
        self._keep()
        return first

    def _advance(self, *, last: bool) -> bool:
        """One direction; whether another may follow."""
        group, fresh = self.group, self.state["n_iter"] == 1
        self.direction = self._begin() if fresh else self._turn()
        self.before, self.last_loss = self.gradient, self.loss
        rate = group["lr"]
        self.length = min(1.0, 1.0 / np.abs(self.gradient).sum()) * rate if fresh else rate
        slope = np.dot(self.gradient, self.direction)
        if slope > -group["tolerance_change"]:
            return False
        if group["line_search_fn"] is not None:
            self._search(slope)
        else:
            self._place(self._values(), self.length)
            if not last:
                self._evaluate()
        return not last and self.evaluations < group["max_eval"] and not self._arrived()

    def _arrived(self) -> bool:
        """Whether the gradient, the step or the gain is too small to go on."""
        least = self.group["tolerance_change"]
        assert self.last_loss is not None
        return bool(
            np.abs(self.gradient).max() <= self.group["tolerance_grad"]
            or np.abs(self.direction * self.length).max() <= least
            or abs(self.loss - self.last_loss) < least
        )

    def _begin(self) -> np.ndarray:
        self.pairs, self.scale = [], 1
        return -self.gradient

    def _turn(self) -> np.ndarray:
        """The gradient times what the last steps tell of the inverse of the curvature."""
        change, step = self.gradient - self.before, self.direction * self.length
        product = np.dot(change, step)
        if product > LEAST_CURVATURE:
            kept = self.group["history_size"] - 1
            self.pairs = [*(self.pairs[-kept:] if kept > 0 else ()), Pair(change, step, 1.0 / product)]
            self.scale = product / np.dot(change, change)
        direction, weights = -self.gradient, []
        for pair in reversed(self.pairs):
            weights.append(np.dot(pair.step, direction) * pair.inverse)
            direction -= weights[-1] * pair.change
        direction *= self.scale
        for pair, weight in zip(self.pairs, reversed(weights), strict=True):
            direction += (weight - np.dot(pair.change, direction) * pair.inverse) * pair.step
        self.state["al"] = [*reversed(weights), *[None] * (self.group["history_size"] - len(weights))]
        return direction

    def _search(self, slope: Number) -> None:
        """Go along the direction to a point that is low and flat enough."""
        start, most = self._values(), self.group["max_eval"] - self.evaluations

        def look(length: Number) -> Point:
            self._place(start, length)
            self._evaluate()
            return Point(length, self.loss, self.gradient, np.dot(self.gradient, self.direction))

        origin = Point(0, self.loss, self.gradient, slope)
        width = np.abs(self.direction).max()
        try:
            found = strong_wolfe(look, origin, self.length, width, self.group["tolerance_change"], most)
        except BaseException:
            self._place(start, 0)
            raise
        self.length, self.loss, self.gradient = found.length, found.loss, found.gradient
        self._place(start, found.length)

    def _evaluate(self) -> Any:
        """The loss and the gradient where the parameters are."""
        with enable_grad():
            loss = self.closure()
        held = [p.grad for p in self.params if p.grad is not None]
        evaluate([t._value for t in (loss, *held) if isinstance(t, Tensor)])
        self.loss = float(loss)
        flat = [np.zeros(p.numel, p.dtype.numpy) if p.grad is None else p.grad.numpy().ravel() for p in self.params]
        self.gradient = np.concatenate(flat)
        self.evaluations += 1
        self.state["func_evals"] += 1
        return loss

    def _values(self) -> list[np.ndarray]:
        return [p.detach().numpy().copy() for p in self.params]

    def _place(self, start: list[np.ndarray], length: Number) -> None:
        """Put the parameters so far along the direction."""
        at = 0
        for p, value in zip(self.params, start, strict=True):
            part = self.direction[at : at + value.size].reshape(value.shape)
            p._renew(adopt((value + length * part).astype(value.dtype, copy=False)))
            at += value.size

    def _keep(self) -> None:
        """What the next step goes on from."""
        columns = zip(*self.pairs, strict=True) if self.pairs else ((), (), ())
        for key, values in zip(("old_dirs", "old_stps", "ro"), columns, strict=True):
            self.state[key] = [_held(item) for item in values]
        if "al" in self.state:
            self.state["al"] = [_held(item) for item in self.state["al"]]
        self.state |= {"d": _held(self.direction), "t": _held(self.length), "H_diag": _held(self.scale)}
        self.state |= {"prev_flat_grad": _held(self.before), "prev_loss": self.last_loss}


def _held(value: Any) -> Any:
    """Arrays and their numbers as tensors; Python's numbers as they are."""
    if isinstance(value, np.ndarray | np.generic):
        return adopt(np.array(value))
    return value
