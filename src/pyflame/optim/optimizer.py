"""What all optimizers share: groups of parameters, state, and one evaluation for the whole step."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self, TypeAlias

import numpy as np

from pyflame.arrays import adopt
from pyflame.autograd import enable_grad, no_grad
from pyflame.evaluation import evaluate
from pyflame.lazy import mode_changes, modes
from pyflame.module_scopes import placed
from pyflame.ops.core import call, cast
from pyflame.outline import Outlined
from pyflame.tensors import Tensor
from pyflame_rt.graph.named_arguments import NamedArguments
from pyflame_rt.ops.pyflame.complex_numbers import ViewAsComplex, ViewAsReal

if TYPE_CHECKING:
    from pyflame.dtypes import DType

__all__ = ["Optimizer", "ParamGroup", "Slots", "filled", "power"]

# Read anew by each step, compiled or not.
RATES = ("lr", "initial_lr")
# Kept in double precision whatever the parameters are.
EXACT = ("step", "exact_lr")
Slots: TypeAlias = dict[str, Tensor]


class ParamGroup(dict[str, Any]):
    """Parameters with settings of their own; what schedulers change is also kept as tensors, which compiled steps read.

    That is the learning rate, and a momentum or first beta once `vary` was called for it.
    """

    def __init__(self, settings: Mapping[str, Any]) -> None:
        rate = settings.get("lr", 0.0)  # an optimizer that writes its own `step` may have no such setting
        self.lr_tensor = _number(float(rate))
        self.varied: Slots = {}
        super().__init__(settings)
        if "lr" in settings:
            super().__setitem__("lr", rate if isinstance(rate, int) else float(rate))

    def __reduce__(self) -> tuple[Any, ...]:
        return _regrouped, (dict(self), self.varied)

    def vary(self, key: str) -> None:
        """Let `momentum`, or the first of `betas`, change from step to step without new compilations."""
        name, value = ("beta1", self[key][0]) if key == "betas" else (key, self[key])
        if name not in self.varied:
            self.varied[name] = _number(float(value))
            mode_changes[0] += 1

    def __setitem__(self, key: str, value: Any) -> None:
        if key == "lr":
            value = float(value)
            self.lr_tensor._renew(_number(value))
        elif key in self.varied and bool(value) == bool(self[key]):
            self.varied[key]._renew(_number(float(value)))
        elif key == "betas" and "beta1" in self.varied and tuple(value[1:]) == tuple(self[key][1:]):
            self.varied["beta1"]._renew(_number(float(value[0])))
        else:
            mode_changes[0] += 1
        super().__setitem__(key, value)

    def fixed(self) -> list[Any]:
        """What a compiled step is made for: all settings but those that schedulers change, and the parameters."""
        plain = [(k, _frozen(v)) for k, v in self.items() if k not in RATES and k not in ("params", "param_names")]
        kept = [(k, self._unvaried(k, v)) for k, v in plain]
        return [*kept, *self.varied, *map(id, self["params"])]

    def _unvaried(self, key: str, value: Any) -> Any:
        """What of a setting a compiled step counts on."""
        if key in self.varied:
            return bool(value)
        return value[1:] if key == "betas" and "beta1" in self.varied else value

    def update(self, *args: Any, **settings: Any) -> None:
        """Take over settings."""
        for key, value in dict(*args, **settings).items():
            self[key] = value

    def __ior__(self, other: Any) -> Self:
        self.update(other)
        return self


class Optimizer(NamedArguments):
    """Changes parameters by their gradients: write `slots` (names of state tensors) and `update`.

    Or write `step`, as in torch: `state[p]` is a dict of your own, and parameters are changed in place under `no_grad`.

    Example:
        >>> import pyflame as pf
        >>> class Signs(pf.optim.Optimizer):
        ...     def __init__(self, params, lr):
        ...         super().__init__(params, {"lr": lr})
        ...     def update(self, p, g, s, group):
        ...         return p - s["lr"] * pf.sign(g), {}
        >>> w = pf.nn.Parameter(pf.ones([2]))
        >>> (w * w).sum().backward()
        >>> Signs([w], lr=0.25).step()
        >>> w.numpy().tolist()
        [0.75, 0.75]
    """

    # Updates see complex parameters as real and imaginary part; some have no meaning for those.
    real_only = False

    def __init__(self, params: Iterable[Any], defaults: dict[str, Any]) -> None:
        if isinstance(params, Tensor):
            raise TypeError("params must be a list of tensors or dicts. Received: one Tensor")
        self.defaults = defaults
        self.state: defaultdict[Tensor, dict[str, Any]] = defaultdict(dict)
        self.param_groups: list[ParamGroup] = []
        listed = list(params)
        if not listed:
            raise ValueError("optimizer got an empty parameter list")
        for group in listed if isinstance(listed[0], Mapping) else [{"params": listed}]:
            self.add_param_group(group)

    def __getstate__(self) -> dict[str, Any]:
        """What copies and pickles take: what updates recorded is recorded again."""
        return {name: value for name, value in self.__dict__.items() if name != "_outlined"}

    @cached_property
    def _outlined(self) -> Callable[..., Any]:
        """The updates of a cohort: one expression where they are known to depend on nothing else."""
        if type(self).__module__.startswith("pyflame.optim."):
            return Outlined("updates", self._updates)
        return lambda args, kwargs: self._updates(*args, **kwargs)

    def slots(self, group: dict[str, Any]) -> tuple[str, ...]:  # noqa: ARG002
        """The names of the tensors kept for each parameter; they begin as zeros."""
        return ()

    def slots_of(self, p: Tensor, group: dict[str, Any]) -> tuple[str, ...]:  # noqa: ARG002
        """The slots of one parameter, where they depend on its shape."""
        return self.slots(group)

    def start(self, slot: str, p: Tensor, group: dict[str, Any]) -> Tensor:  # noqa: ARG002
        """The first value of a slot."""
        return adopt(np.zeros(tuple(p.shape), p.dtype.numpy))

    def update(self, p: Tensor, g: Tensor, s: Slots, group: dict[str, Any]) -> tuple[Tensor, Slots]:
        """The new parameter and slots, from the old ones and the gradient.

        Args:
            p: The parameter's value.
            g: Its gradient (turned round where the group maximizes).
            s: Its slots, and `lr` (in double precision `exact_lr`), `step` (from 1), and with betas `inv_bias1` and
                `rsqrt_bias2`; `momentum` or `beta1` where a scheduler changes them.
            group: The settings.
        """
        raise NotImplementedError(f"{type(self).__name__} must write update(p, g, s, group)")

    def add_param_group(self, param_group: Mapping[str, Any]) -> None:
        """Add parameters with settings of their own."""
        given = dict(param_group)
        params = given["params"]
        given["params"] = [params] if isinstance(params, Tensor) else list(params)
        if any(isinstance(p, tuple) for p in given["params"]):
            given["param_names"], given["params"] = _named(given["params"])
        known = {id(p) for group in self.param_groups for p in group["params"]}
        for p in given["params"]:
            if not isinstance(p, Tensor):
                raise TypeError(f"optimizer can only optimize Tensors. Received: {type(p).__name__}")
            if p.dtype.is_complex and self.real_only:
                raise TypeError(
                    f"{type(self).__name__} takes no complex parameters; use Adam, or pf.view_as_real parts"
                )
            if id(p) in known:
                raise ValueError("some parameters appear in more than one place")
            known.add(id(p))
        self.param_groups.append(ParamGroup({**self.defaults, **given}))
        mode_changes[0] += 1

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Change every parameter that has a gradient; all are computed in one go.

        Args:
            closure: Computes the loss and its gradients anew; its result is returned.
        """
        loss = None
        if closure is not None:
            with enable_grad():
                loss = closure()
        if modes.tracer is not None:
            modes.tracer.note_settings(self)
        with no_grad(), placed("optimizer"):
            changed = [handle for group in self.param_groups for handle in self._step_group(group)]
        if changed and modes.tracer is None:
            # Gradients bring the loss with them, which would need another pass later.
            grads = [p.grad._value for group in self.param_groups for p in group["params"] if p.grad is not None]
            evaluate([*[handle._value for handle in changed], *grads])
        return loss

    def fixed(self) -> list[Any]:
        """What a compiled step is made for; when it is different, another one is made."""
        kept = [id(slot) for slots in self.state.values() for slot in slots.values() if isinstance(slot, Tensor)]
        return [*(group.fixed() for group in self.param_groups), kept]

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop all gradients, or set them to zero."""
        for group in self.param_groups:
            for p in group["params"]:
                p.zero_grad(set_to_none=set_to_none)

    def parameters(self) -> list[Tensor]:
        """All tensors it changes, group by group."""
        return [p for group in self.param_groups for p in group["params"]]

    def get_lr(self) -> float:
        """The learning rate of the first group."""
        return self.param_groups[0]["lr"]

    def set_lr(self, lr: float) -> None:
        """Give every group this learning rate."""
        for group in self.param_groups:
            group["lr"] = lr

    def state_dict(self) -> dict[str, Any]:
        """The state by parameter number, and the groups' settings, as torch arranges them."""
        numbers = {id(p): n for n, p in enumerate(p for group in self.param_groups for p in group["params"])}
        groups = [{**group, "params": [numbers[id(p)] for p in group["params"]]} for group in self.param_groups]
        state = {numbers[id(p)]: {k: _kept(v) for k, v in slots.items()} for p, slots in self.state.items()}
        return {"state": state, "param_groups": groups}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Take over a saved state; groups and sizes must fit."""
        groups = state_dict["param_groups"]
        sizes = [len(group["params"]) for group in groups]
        mine = [len(group["params"]) for group in self.param_groups]
        if sizes != mine:
            raise ValueError(f"loaded state has groups of {sizes} parameters, the optimizer has {mine}")
        for group, saved in zip(self.param_groups, groups, strict=True):
            for key, value in saved.items():
                if key != "params":
                    group[key] = value
        params = [(p, group) for group in self.param_groups for p in group["params"]]
        loaded = [(*params[int(n)], slots) for n, slots in state_dict["state"].items()]
        if type(self).step is not Optimizer.step and type(self).update is Optimizer.update:
            self.state = defaultdict(dict, {p: {k: _copied(v) for k, v in slots.items()} for p, _, slots in loaded})
            return
        self.state = defaultdict(dict, {p: self._loaded(p, group, slots) for p, group, slots in loaded})
        self._share_steps()

    def __repr__(self) -> str:
        lines = [f"{type(self).__name__} ("]
        for number, group in enumerate(self.param_groups):
            lines.append(f"Parameter Group {number}")
            lines += [f"    {key}: {group[key]}" for key in sorted(group) if key != "params"]
        return "\n".join([*lines, ")"])

    def _step_group(self, group: ParamGroup) -> list[Tensor]:
        """Record the changes of a group; the handles that were bound anew."""
        ready = [p for p in group["params"] if p.grad is not None]
        changed: list[Tensor] = []
        for p in ready:
            slots = self.state[p]
            for slot in self.slots_of(p, group):
                if slot not in slots:  # at the first step, or since a setting asks for it
                    slots[slot] = _settled(self.start(slot, p, group))
        for step, members in self._cohorts(ready).items():
            changed += self._step_cohort(group, step, members)
            changed.append(step)
        return changed

    def _step_cohort(self, group: ParamGroup, step: Tensor, members: list[Tensor]) -> list[Tensor]:
        """Record the changes of parameters that are at the same step."""
        names = [tuple(name for name in self.state[p] if name != "step") for p in members]
        tensors = [[p, p.grad, *[self.state[p][name] for name in kept]] for p, kept in zip(members, names, strict=True)]
        flat = [t for own in tensors for t in own]
        number = next(n for n, known in enumerate(self.param_groups) if known is group)
        settings = tuple(group.fixed()), tuple(names)
        results = self._outlined((number, *settings, group.lr_tensor, step, *group.varied.values(), *flat), {})
        changed: list[Tensor] = []
        places = [place for own in tensors for place in (own[0], *own[2:])]
        for place, new in zip(places, results, strict=True):
            if new is not None:
                place._renew(new)
                changed.append(place)
        return changed

    def _updates(self, number: int, _settings: Any, names: Any, rate: Tensor, step: Tensor, *tensors: Tensor) -> Any:
        """New parameters and slots (None where one stays), of old ones with their gradients."""
        group = self.param_groups[number]
        varied = dict(zip(group.varied, tensors, strict=False))
        left = iter(tensors[len(varied) :])
        shared = _shared(group, rate, step, varied)
        results: list[Tensor | None] = []
        for kept in names:
            p, gradient = next(left), next(left)
            slots = {name: next(left) for name in kept}
            gradient = cast(gradient, p.dtype)
            given = -gradient if group.get("maximize") else gradient
            before = [p, *slots.values()]
            p, *old = map(_as_pairs, before)
            slots = dict(zip(kept, old, strict=True))
            new, changed = self.update(p, _as_pairs(given), {**slots, **_in(p.dtype, shared)}, group)
            results += map(_as_before, [new, *[changed.get(name) for name in kept]], before)
        return tuple(results)

    def _cohorts(self, ready: list[Tensor]) -> dict[Tensor, list[Tensor]]:
        """Parameters by their step counter, each counter one further; counters are shared by those in step."""
        using: dict[Tensor, int] = {}
        for slots in self.state.values():
            if "step" in slots:
                using[slots["step"]] = using.get(slots["step"], 0) + 1
        cohorts: dict[Tensor | None, list[Tensor]] = {}
        for p in ready:
            cohorts.setdefault(self.state[p].get("step"), []).append(p)
        moved: dict[Tensor, list[Tensor]] = {}
        for counter, members in cohorts.items():
            # A first step counts like every other, so that a compiled one can be replayed.
            own = _number(0.0) if counter is None else counter
            if counter is not None and using[counter] != len(members):
                own = _number(counter.item())  # the others stay behind
            own._renew(own + 1.0)
            for p in members:
                self.state[p]["step"] = own
            moved[own] = members
        return moved

    def _loaded(self, p: Tensor, group: ParamGroup, slots: Mapping[str, Any]) -> Slots:
        """A saved state as tensors of the shapes and types that `start` gives them."""
        made: Slots = {}
        known = self.slots_of(p, group)
        for name, value in slots.items():
            if value is None:
                continue
            array = np.asarray(value.detach().numpy() if hasattr(value, "detach") else value)
            if name == "step":
                made[name] = _number(float(array))
                continue
            like = self.start(name, p, group) if name in known else p
            if array.ndim and tuple(array.shape) != tuple(like.shape):
                raise ValueError(f"loaded {name} has shape {list(array.shape)}, its parameter wants {list(like.shape)}")
            made[name] = adopt(np.array(array, like.dtype.numpy))
        if made and "step" not in made:  # torch's SGD does not count; there was a step where there is a momentum
            made["step"] = _number(1.0)
        return made

    def _share_steps(self) -> None:
        counters: dict[float, Tensor] = {}
        for slots in self.state.values():
            if "step" in slots:
                slots["step"] = counters.setdefault(float(slots["step"].numpy()), slots["step"])


def _regrouped(settings: dict[str, Any], varied: Slots) -> ParamGroup:
    """A group from a copy or a pickle."""
    group = ParamGroup(settings)
    group.varied = varied
    return group


def _frozen(value: Any) -> Any:
    """A setting as something to compare: lists by what they hold, NumPy's numbers as Python's, objects by identity."""
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, list | tuple):
        return tuple(_frozen(v) for v in value)
    return value if value is None or isinstance(value, int | float | str) else (type(value).__name__, id(value))


def _kept(value: Any) -> Any:
    return value.detach() if isinstance(value, Tensor) else value


def _copied(value: Any) -> Any:
    """A value of the state of an optimizer that writes its own `step`: tensors are copied, the rest is as it is."""
    return value.detach().clone() if isinstance(value, Tensor) else value


def _named(pairs: list[Any]) -> tuple[list[str], list[Any]]:
    """Names and parameters, of what `named_parameters` gives."""
    if not all(isinstance(p, tuple) and len(p) == 2 for p in pairs):
        raise ValueError("all optimizer params should be with or without names. Some names are missing")
    return [name for name, _ in pairs], [p for _, p in pairs]


def _number(value: float) -> Tensor:
    """A number that compiled steps read anew each time."""
    return adopt(np.array(value, np.float64))


def _shared(group: ParamGroup, rate: Tensor, step: Tensor, varied: Slots) -> Slots:
    """What all parameters of a cohort use, computed once and in double precision."""
    # Handles, not what they hold: a compiled step reads them anew each time.
    shared = {"lr": rate, "exact_lr": rate, "step": step, **varied}
    if "betas" in group:
        beta1, beta2 = group["betas"]
        first = varied.get("beta1")
        if first is None:
            first = _number(beta1)
        else:
            shared["rest1"] = 1.0 - first
        shared["inv_bias1"] = 1.0 / (1.0 - first**step)
        shared["rsqrt_bias2"] = 1.0 / (1.0 - power(beta2, step)).sqrt()
    return shared


def filled(p: Tensor, value: float) -> Tensor:
    """A slot of one number, which both parts of complex parameters get."""
    return adopt(np.full(tuple(p.shape), complex(value, value) if p.dtype.is_complex else value, p.dtype.numpy))


def power(base: float, exponent: Tensor) -> Tensor:
    """A number to a power that compiled steps read anew each time, in double precision."""
    return _number(base) ** exponent


def _in(dtype: DType, shared: Slots) -> Slots:
    return {name: value if name in EXACT else cast(value, dtype) for name, value in shared.items()}


def _as_pairs(t: Tensor) -> Tensor:
    """Complex numbers as real and imaginary part: an update moves each on its own, as torch's do."""
    return call(ViewAsReal, t) if t.dtype.is_complex else t


def _as_before(new: Tensor | None, old: Tensor) -> Tensor | None:
    """What an update gave, in the type of what it replaces."""
    return call(ViewAsComplex, new) if new is not None and old.dtype.is_complex else new


def _settled(made: Tensor) -> Tensor:
    """A first value with its numbers: one that a compiled step computed would be computed again at each call."""
    return made if made._value.array is not None else adopt(np.array(made.numpy()))
