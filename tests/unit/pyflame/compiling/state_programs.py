# ruff: noqa: E501, NPY002  # a table of snippets; NumPy's hidden generator is among what is tested
"""Random programs that read and write Python state of many kinds, run compiled and as they are, side by side."""

from __future__ import annotations

import random
import warnings

import numpy as np

import pyflame as pf
from tests.unit.pyflame.compiling.state_kind import Kind
from tests.unit.pyflame.compiling.state_kinds import KINDS as MORE

PRELUDE = """
import array, collections, contextvars, copy, dataclasses, enum, functools, itertools, math, operator, os, pathlib
import random, sys, tempfile, threading, types, typing, weakref
import numpy as np
import pyflame as pf
"""


def number(rng: random.Random) -> float:
    return rng.choice([0.5, 1.0, 1.5, 2.0, -1.0, 3.0])


KINDS = [
    Kind("global number", "g = 1.5", "x * g", ("g = {v}", "g = {i}", "g = True"), ("globals_g()",), "g"),
    Kind("global tensor", "t = pf.tensor([1.0, 2.0])", "x * t", ("t = pf.tensor([{v} * 1.0, {w}])", "t.add_({v})",
         "t[0] = {v}", "t = t.view(1, 2)[0]", "t = pf.tensor([[{v}, {w}]])", "t = pf.tensor([1, 2])")),
    Kind("two names of one tensor", "p1 = pf.tensor([1.0, 2.0]); p2 = p1", "x * p1 - p2",
         ("p1 = pf.tensor([{v}, {w}], dtype=pf.float32)", "p2 = p1", "p2 = p1.clone()", "p1.mul_({v})")),
    Kind("attribute", "box = types.SimpleNamespace(a=2.0, b=None)", "x * box.a if box.b is None else x + box.b",
         ("box.a = {v}", "box.b = {v}", "box.b = None", "box = types.SimpleNamespace(a={v}, b=None)"),
         ("box.a = 1.25", "box.b = None"), "(box.a, box.b)"),
    Kind("attribute of a class", "class K:\n    a = 1.0\nclass L(K):\n    pass\nk = L()", "x * k.a",
         ("K.a = {v}", "L.a = {v}", "k.a = {v}", "k = L()", "k = K()")),
    Kind("property", "class P:\n    def __init__(self): self._v = 1.0\n    @property\n    def v(self): return self._v\np = P()",
         "x + p.v", ("p._v = {v}", "p = P()"), ("p._v = p._v",), "p._v"),
    Kind("slots", "class S:\n    __slots__ = ('a',)\ns = S(); s.a = 1.0", "x * s.a", ("s.a = {v}",), ("s.a = -s.a",), "s.a"),
    Kind("dataclass", "@dataclasses.dataclass\nclass D:\n    a: float\n    n: int\nd = D(1.0, 2)", "x * d.a + d.n",
         ("d.a = {v}", "d.n = {i}", "d = D({v}, {i})"), ("d.n += 1",), "(d.a, d.n)"),
    Kind("list", "ls = [1.0, 2.0]", "x * sum(ls)", ("ls.append({v})", "ls[0] = {v}", "ls.pop() if len(ls) > 1 else 0",
         "ls = [{v}]", "ls.reverse()"), ("ls.append(0.5)", "ls[0] = 1.0"), "list(ls)"),
    Kind("dict", "table = {'a': 1.0, 'b': [2.0]}", "x * table['a'] + sum(table['b'])",
         ("table['a'] = {v}", "table['b'].append({v})", "table['b'] = [{v}]", "table['c'] = {v}"),
         ("table['a'] = -1.0", "table.setdefault('n', 3)"), "repr(table)"),
    Kind("set", "names = {'a', 'b'}", "x + len(names) * (3.0 if 'c' in names else 1.0)",
         ("names.add('c')", "names.discard('c')", "names.discard('a')"), ("names.add('d')",), "sorted(names)"),
    Kind("closure", "def make():\n    c = 1.0\n    def put(v):\n        nonlocal c\n        c = v\n    def get():\n"
         "        return c\n    def bump():\n        nonlocal c\n        c = c * 2.0\n        return 0.0\n    return put, get, bump\n"
         "put, get, bump = make()", "x * get()", ("put({v})", "put(pf.tensor([{v} * 1.0, {w}]))"), ("bump()",),
         "float(np.sum(np.asarray(get().tolist() if hasattr(get(), 'tolist') else get())))"),
    Kind("helper", "def helper(v):\n    return v * 2.0", "helper(x)",
         ("helper = lambda v: v * {v}", "def helper(v, by={v}):\n    return v + by", "helper = functools.partial(pf.add, {v})")),
    Kind("default", "def shifted(v, by=[1.0]):\n    return v + sum(by)", "shifted(x)",
         ("shifted.__defaults__[0].append({v})", "shifted.__defaults__ = ([{v}],)")),
    Kind("array", "arr = np.array([1.0, 2.0], np.float32)", "x * pf.tensor(arr)",
         ("arr[0] = {v}", "arr = np.array([{v}, {w}], np.float32)")),
    Kind("signed zero", "zero = 0.0", "pf.where(x / zero > 0, x, -x)", ("zero = -0.0", "zero = 0.0", "zero = {v}")),
    Kind("context variable", "var = contextvars.ContextVar('var', default=1.0)", "x * var.get()", ("var.set({v})",)),
    Kind("contents", "flag = pf.tensor(1.0)", "x * 2 if flag.item() > 0 else x - 1",
         ("flag.fill_({v})", "flag = pf.tensor({v})", "flag.mul_(-1)")),
    Kind("default type", "", "x + pf.ones([2])", ("pf.set_default_dtype(pf.float64)", "pf.set_default_dtype(pf.float32)")),
    Kind("grad mode", "", "x * 3 if pf.is_grad_enabled() else x", ("pf.set_grad_enabled({i} % 2 == 0)",)),
    Kind("mode", "net = pf.nn.Sequential(pf.nn.Dropout(0.5), pf.nn.BatchNorm1d(2))", "net(pf.stack([x, x * 2]))[0]",
         ("net.eval()", "net.train()", "net[0].p = 0.25", "net[1].momentum = 0.5", "net[1].eval()", "net[1].eps = 0.25",
          "net[0] = pf.nn.Identity()", "net.append(pf.nn.ReLU())"), (),
         "(net[1].running_mean.tolist(), int(net[1].num_batches_tracked))"),
    Kind("hooks", "lin = pf.nn.Linear(2, 2); hooks = []", "lin(x)",
         ("hooks.append(lin.register_forward_hook(lambda m, a, y: y * {v}))", "hooks.pop().remove() if hooks else 0",
          "hooks.append(lin.register_forward_pre_hook(lambda m, a: (a[0] + {v},)))")),
    Kind("parameter", "fc = pf.nn.Linear(2, 2)", "fc(x)",
         ("fc.weight = pf.nn.Parameter(pf.ones([2, 2]) * {v})", "fc.bias = None", "fc.bias.data.fill_({v}) if fc.bias is not None else 0",
          "fc.requires_grad_({i} % 2 == 0)", "fc.weight.data[0, 0] = {v}", "fc.load_state_dict(fc.state_dict())")),
    Kind("module attribute", "class Net(pf.nn.Module):\n    def __init__(self):\n        super().__init__()\n        self.k = 1.0\n"
         "        self.h = pf.zeros([2])\n        self.register_buffer('b', pf.ones([2]))\n        self.n = 0\n"
         "    def forward(self, v):\n        self.h = v * 0.5 + self.h * self.k\n        self.b.add_(1.0)\n"
         "        return self.h * self.b\nm = Net()", "m(x)",
         ("m.k = {v}", "m.h = pf.zeros([2])", "m.b = pf.ones([2]) * {v}", "m.n += 1", "m.h = m.h.detach()",
          "m.forward = lambda v: v + {v}", "m.__dict__.pop('forward', 0)"), (), "(m.h.tolist(), m.b.tolist(), m.n)"),
    Kind("counter", "count = [0]; total = 0", "x + count[0]", ("count[0] = {i}",), ("count[0] += 1", "add_total()"),
         "(count[0], total)"),
    Kind("log", "log = []", "x", ("log.clear()",), ("log.append(x * 2)", "log.append((x, 1))"),
         "[e.tolist() if hasattr(e, 'tolist') else e[0].tolist() for e in log]"),
    Kind("previous", "prev = pf.zeros([2]); cur = pf.ones([2])", "x + prev - cur", ("cur = pf.tensor([{v} * 1.0, {w}])",),
         ("shift(x)",), "(prev.tolist(), cur.tolist())"),
    Kind("random", "", "x", ("random.seed({i})", "np.random.seed({i})"),
         ("log_random()",), "None"),
    Kind("gradient", "w = pf.nn.Parameter(pf.ones([2])); opt = pf.optim.SGD([w], lr=0.5, momentum=0.5)", "train(x)",
         ("opt.param_groups[0]['lr'] = {v}", "opt.param_groups[0]['weight_decay'] = 0.5", "w.grad = None",
          "w.register_hook(lambda g: g * {v})", "opt.state.clear()", "w.data.fill_({v})", "opt.zero_grad()",
          "w.requires_grad_(True)"), (), "(w.tolist(), None if w.grad is None else w.grad.tolist())"),
    Kind("rate", "v1 = pf.nn.Parameter(pf.ones([2])); o1 = pf.optim.SGD([v1], lr=0.5)\nsched = pf.optim.StepLR(o1, 2)",
         "x * o1.param_groups[0]['lr']", ("o1.param_groups[0]['lr'] = {v}", "sched.step()"), ("sched.step()",),
         "(o1.param_groups[0]['lr'], sched.last_epoch)"),
    *MORE,
]  # fmt: skip

SUPPORT = """
def globals_g():
    global g
    g = g * 1.0

def add_total():
    global total
    total += 2

def shift(x):
    global prev, cur
    prev = cur
    cur = x * 2

def log_random():
    return random.random() + np.random.rand()

def read_file(x):
    with open(fpath) as file:
        return x * float(file.read())

def imp(x):
    import math
    return x * math.tau

def train(x):
    opt.zero_grad()
    with pf.enable_grad():
        loss = ((w - x.detach()) ** 2).sum()
        loss.backward()
    opt.step()
    return loss.detach() + x
"""


def source_of(kinds: list[Kind], rng: random.Random) -> str:
    """A program with a function `f(x, y)` over some kinds of state."""
    lines = [PRELUDE, *(kind.setup for kind in kinds), SUPPORT, "def f(x, y):", "    out = y if x is y else y * 2"]
    for kind in kinds:
        if kind.writes and rng.random() < 0.4:
            statement = rng.choice(kind.writes)
            lines.append(f"    out = out * {statement}" if statement == "log_random()" else f"    {statement}")
        lines.append(f"    x = {kind.read}")
    lines.append("    return {'out': x + out, 'n': 1}")
    return "\n".join(lines)


class Side:
    """A program in a namespace of its own, compiled or not."""

    def __init__(self, source: str, compiled: bool) -> None:
        pf.manual_seed(0)
        self.space: dict[str, object] = {"__name__": "__main__"}
        exec(compile(source, "<state program>", "exec"), self.space)  # noqa: S102  # its own text
        self.f = pf.compile(self.space["f"]) if compiled else self.space["f"]
        self.grad, self.random, self.numpy = True, random.Random(0).getstate(), np.random.RandomState(0).get_state()
        self.dtype = pf.float32

    def run(self, change: str, values: list[float], same: bool, looks: list[str]) -> object:
        """Change something, call the function, and tell what came out and what the state is."""
        pf.set_grad_enabled(self.grad), pf.set_default_dtype(self.dtype)
        random.setstate(self.random), np.random.set_state(self.numpy)
        try:
            pf.manual_seed(2)
            changed = self._change(change)
            pf.manual_seed(1)
            x = pf.tensor(values, dtype=pf.float32)
            y = x if same else pf.tensor(values[::-1], dtype=pf.float32)
            try:
                out = self.f(x, y)["out"]
                found = (out.tolist(), str(out.dtype), out.requires_grad)
            except (RuntimeError, ValueError, TypeError, AttributeError, LookupError, NameError) as error:
                found = type(error).__name__
            return changed, found, [self._look(look) for look in looks]
        finally:
            self.grad, self.dtype = pf.is_grad_enabled(), pf.get_default_dtype()
            self.random, self.numpy = random.getstate(), np.random.get_state()
            pf.set_grad_enabled(True), pf.set_default_dtype(pf.float32)

    def _look(self, look: str) -> object:
        try:
            return eval(look, self.space)
        except (RuntimeError, TypeError, ValueError, LookupError, AttributeError, NameError) as error:
            return type(error).__name__

    def _change(self, change: str) -> str:
        """Change something; what an earlier change made impossible is refused, and must be on both sides."""
        try:
            exec(change, self.space)  # noqa: S102
        except (RuntimeError, TypeError, ValueError, LookupError, AttributeError, NameError) as error:
            return type(error).__name__
        return ""


def close(a: object, b: object) -> bool:
    """Whether two outcomes are equal, numbers up to rounding."""
    if isinstance(a, list | tuple):
        return isinstance(b, list | tuple) and len(a) == len(b) and all(map(close, a, b))
    if isinstance(a, float) or isinstance(b, float):
        return (
            isinstance(a, float | int)
            and isinstance(b, float | int)
            and bool(np.isclose(a, b, 1e-4, 1e-5, equal_nan=True))
        )
    return a == b


def run_kind(kind: Kind, statement: str = "") -> str:
    """One kind of state, every change of it in turn, with a statement in the function; what is different, or ""."""
    body = [f"    out = {statement}"] if statement == "log_random()" else [f"    {statement or 'pass'}"]
    source = "\n".join([PRELUDE, kind.setup, SUPPORT, "def f(x, y):", *body, f"    return {{'out': {kind.read}}}"])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        plain, compiled = Side(source, False), Side(source, True)
        for i, change in enumerate(["", "", *kind.changes, "", *kind.changes[::-1]]):
            text = change.replace("{v}", f"{i}.5").replace("{w}", f"-{i}.25").replace("{i}", str(i))
            want, got = (side.run(text, [1.0, i - 2.0], False, [kind.look]) for side in (plain, compiled))
            if isinstance(want[1], str) and want[:2] == got[:2]:
                continue
            if not close(want, got):
                return "\n".join([source, text, f"as it is: {want}", f"compiled: {got}"])
    return ""


def run_program(seed: int, steps: int = 6) -> str:
    """Run a program both ways; what is different, or "" for nothing."""
    rng = random.Random(seed)
    kinds = rng.sample(KINDS, rng.choice([1, 1, 2, 3]))
    source = source_of(kinds, rng)
    looks = [kind.look for kind in kinds]
    told: list[str] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        plain, compiled = Side(source, False), Side(source, True)
        for _ in range(steps):
            change = ""
            if rng.random() < 0.7:
                template = rng.choice(rng.choice(kinds).changes)
                change = template.replace("{v}", str(number(rng))).replace("{w}", str(number(rng)))
                change = change.replace("{i}", str(rng.randrange(4)))
            values, same = [number(rng), number(rng)], rng.random() < 0.3
            told.append(f"{change!r} x={values} same={same}")
            want, got = (side.run(change, values, same, looks) for side in (plain, compiled))
            if isinstance(want[1], str) and want[:2] == got[:2]:
                return ""  # a compiled function that fails leaves everything as it was
            if not close(want, got):
                return "\n".join([source, *told, f"as it is: {want}", f"compiled: {got}"])
    return ""
