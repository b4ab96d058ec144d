"""Random programs of views, in-place operations, detach, clone, no_grad and backward, run by torch and by pyflame."""

import warnings
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st

import pyflame as pf

SHAPES = [(2, 3), (4,), (2, 2, 2), (3, 1), (1, 4), (2, 4)]
NUMBERS = [0.5, -1.0, 2.0, 0.25]


@dataclass
class Pair:
    """One tensor as both have it."""

    theirs: torch.Tensor
    ours: pf.Tensor
    leaf: bool = False


@dataclass
class Run:
    """The state of a program."""

    pool: list[Pair] = field(default_factory=list)
    grad: bool = True
    log: list[str] = field(default_factory=list)
    ended: bool = False


class Differs(AssertionError):
    """The two do not agree."""


@st.composite
def programs(draw):
    leaves = draw(st.lists(st.tuples(st.sampled_from(SHAPES), st.booleans()), min_size=1, max_size=3))
    steps = st.tuples(st.sampled_from(sorted(STEPS)), *[st.integers(0, 1 << 16)] * 4)
    return leaves, draw(st.lists(steps, min_size=1, max_size=14))


# ------------------------------------------------------------------ steps: each gives a function of a tensor


def _shapes_for(count):
    found = {(count,), (1, count), (count, 1)}
    for a in range(1, count + 1):
        if count % a == 0:
            found.add((a, count // a))
    return sorted(found)


def _reshape(kind):
    def make(t, a, b, c, _others):
        shapes = _shapes_for(t.numel()) if t.numel() else [tuple(t.shape)]
        shape = shapes[a % len(shapes)]
        return lambda x: getattr(x, kind)(shape)

    return make


def _dim(t, a):
    return a % t.dim() if t.dim() else None


def _transpose(t, a, b, c, _o):
    return None if t.dim() < 1 else lambda x: x.transpose(_dim(t, a), _dim(t, b))


def _select(t, a, b, c, _o):
    d = _dim(t, a)
    return None if d is None or not t.shape[d] else lambda x: x.select(d, b % t.shape[d])


def _index(t, a, b, c, _o):
    if not t.dim():
        return None
    key = []
    for size, n in zip(t.shape, (a, b, c), strict=False):
        choice = n % 5
        if choice == 0 and size:
            key.append((n // 5) % size)
        elif choice == 1:
            key.append(slice((n // 5) % (size + 1), None))
        elif choice == 2:
            key.append(slice(None, None, 2))
        elif choice == 3:
            key += [None, slice(None)]
        else:
            key.append(slice(None, (n // 5) % (size + 1)))
    return lambda x: x[tuple(key)]


def _diagonal(t, a, b, c, _o):
    return None if t.dim() < 2 else lambda x: x.diagonal(b % 3 - 1, 0, 1)


def _unsqueeze(t, a, b, c, _o):
    return lambda x: x.unsqueeze(a % (t.dim() + 1))


def _squeeze(t, a, b, c, _o):
    return lambda x: x.squeeze()


def _expand(t, a, b, c, _o):
    return lambda x: x.expand(2, *t.shape)


def _piece(kind):
    def make(t, a, b, c, _o):
        d = _dim(t, a)
        if d is None or not t.shape[d]:
            return None
        if kind == "unbind":
            return lambda x: x.unbind(d)[b % t.shape[d]]
        if kind == "chunk":
            return lambda x: (lambda parts: parts[b % len(parts)])(x.chunk(2, d))
        return lambda x: (lambda parts: parts[b % len(parts)])(x.split(1, d))

    return make


def _unary(name):
    return lambda t, a, b, c, _o: lambda x: getattr(x, name)()


def _scaled(t, a, b, c, _o):
    return lambda x: x * NUMBERS[a % 4]


def _fits(t, others, a):
    """Tensors that an operand may be."""
    return [k for k, p in enumerate(others) if tuple(p.theirs.shape) == tuple(t.shape)]


def _binary(name):
    def make(t, a, b, c, others):
        found = _fits(t, others, a)
        if not found:
            return None
        k = found[a % len(found)]
        source = others[k].theirs
        if name.endswith("_") and _read_once_written(t, source):
            return (
                None  # torch refuses this where it sees it, else the answer depends on the order it happens to write in
            )
        same = source.data_ptr() == t.data_ptr() and source.stride() == t.stride()
        if name == "copy_" and 0 in t.stride() and same and (t.requires_grad or source.requires_grad):
            return None  # torch takes an expanded tensor copied to itself, and refuses the gradient later
        return lambda x: getattr(x, name)(others[k].theirs if isinstance(x, torch.Tensor) else others[k].ours)

    return make


def _read_once_written(t, source):
    """Whether elements of an operand are other elements of what is written, each of which is written once."""
    if t.untyped_storage().data_ptr() != source.untyped_storage().data_ptr():
        return False
    written, read = (_places(x) for x in (t, source))
    elsewhere = (written[:, None] == read) & ~torch.eye(len(written), dtype=torch.bool)
    return len(written.unique()) == len(written) and bool(elsewhere.any())


def _places(t):
    """Where the elements of a tensor are in its storage."""
    stored = torch.arange(t.untyped_storage().nbytes() // t.element_size())
    return stored.as_strided(t.shape, t.stride(), t.storage_offset()).flatten()


def _written(t, a, b, c, _o):
    make = _index(t, a, b, c, _o)
    if make is None:
        return None
    key = []
    make(_Key(key))

    def write(x):
        x[key[0]] = NUMBERS[a % 4]
        return x

    return write


class _Key:
    """Keeps the key it is asked for."""

    def __init__(self, kept):
        self.kept = kept

    def __getitem__(self, key):
        self.kept.append(key)


def _in_place_number(name):
    return lambda t, a, b, c, _o: lambda x: getattr(x, name)(NUMBERS[a % 4])


def _augmented(t, a, b, c, _o):
    def add(x):
        x += NUMBERS[a % 4]
        return x

    return add


VIEWS = {
    "reshape": _reshape("reshape"), "view": _reshape("view"), "transpose": _transpose, "select": _select,
    "index": _index, "index again": _index, "diagonal": _diagonal, "unsqueeze": _unsqueeze, "squeeze": _squeeze,
    "expand": _expand, "unbind": _piece("unbind"), "chunk": _piece("chunk"), "split": _piece("split"),
    "detach": _unary("detach"), "flatten": _unary("flatten"),
}  # fmt: skip
MAKERS = {
    "clone": _unary("clone"), "sin": _unary("sin"), "tanh": _unary("tanh"), "sigmoid": _unary("sigmoid"),
    "relu": _unary("relu"), "neg": _unary("neg"), "scaled": _scaled, "add": _binary("add"), "mul": _binary("mul"),
    "sub": _binary("sub"), "sum": _unary("sum"), "abs": _unary("abs"), "maximum": _binary("maximum"),
}  # fmt: skip
WRITERS = {
    "add_": _binary("add_"), "mul_": _binary("mul_"), "copy_": _binary("copy_"), "zero_": _unary("zero_"),
    "tanh_": _unary("tanh_"), "relu_": _unary("relu_"), "neg_": _unary("neg_"), "fill_": _in_place_number("fill_"),
    "add number": _in_place_number("add_"), "mul number": _in_place_number("mul_"), "set": _written,
    "set again": _written, "+=": _augmented,
}  # fmt: skip
OTHER = ("grad off", "grad on", "grad on again", "backward")
STEPS = {**VIEWS, **MAKERS, **WRITERS, **dict.fromkeys(OTHER)}


# ------------------------------------------------------------------ running


def run(program):
    """Run a program in both; raises Differs where they do not agree."""
    leaves, steps = program
    state = Run()
    for number, (shape, wants) in enumerate(leaves):
        data = np.random.default_rng(number).uniform(-1, 1, shape)
        pair = Pair(torch.tensor(data), pf.tensor(data), leaf=True)
        if wants:
            pair.theirs.requires_grad_()
            pair.ours.requires_grad_()
        state.pool.append(pair)
    before = torch.is_grad_enabled()
    try:
        for step in steps:
            _step(state, *step)
            if state.ended:
                return state
        _compare(state)
        _backward(state, [p for p in state.pool if _wants(p)])
        if not state.ended:
            _compare(state)
        return state
    finally:
        torch.set_grad_enabled(before)
        pf.set_grad_enabled(True)


def _step(state, name, at, a, b, c):
    if name in ("grad off", "grad on", "grad on again"):
        state.grad = name != "grad off"
        torch.set_grad_enabled(state.grad)
        pf.set_grad_enabled(state.grad)
        state.log.append(name)
        return
    pair = state.pool[at % len(state.pool)]
    if name == "backward":
        state.log.append(f"{at % len(state.pool)}.backward")
        _backward(state, [pair] if _wants(pair) else [])
        return
    if name in WRITERS and not pair.theirs.numel():
        return  # nothing is written, but torch counts it
    if name in ("reshape", "view", "flatten") and not _lies_as_ours(pair.theirs):
        return  # torch keeps the order in memory of operands, and copies or not by that
    if name in ("zero_", "fill_") and 0 in pair.theirs.stride():
        return  # torch writes an expanded tensor so, and refuses the gradient later
    make = STEPS[name](pair.theirs, a, b, c, state.pool)
    if make is None:
        return
    state.log.append(f"{len(state.pool)} = {at % len(state.pool)}.{name}({a}, {b}, {c})")
    theirs, ours = _both(make, pair)
    if isinstance(theirs, RuntimeError) and name in WRITERS and "some elements of the input" in str(theirs):
        state.ended = True  # torch compares strides of dimensions of size 1 too, and these it has its own way
        return
    said = str(theirs) if isinstance(theirs, Exception) else ""  # printing a tensor would be a use of it
    if ("is a view" in said or "A view" in said) and not isinstance(ours, Exception):
        _refused_later(state, ours, theirs)
        return
    if isinstance(theirs, Exception) != isinstance(ours, Exception):
        raise Differs(f"{state.log}\ntorch: {theirs!r}\npyflame: {ours!r}")
    if isinstance(theirs, Exception) or isinstance(ours, Exception) or name in WRITERS:
        return
    state.pool.append(Pair(theirs, ours))


def _both(make, pair) -> list[Any]:
    results: list[Any] = []
    for x in (pair.theirs, pair.ours):
        try:
            results.append(make(x))
        except (RuntimeError, ValueError, IndexError, TypeError, NotImplementedError) as error:
            results.append(error)
    return results


def _refused_later(state, ours, theirs):
    """A view that torch refuses to use is refused by our next backward pass through it."""
    state.ended = True
    with pf.enable_grad():
        if not ours.requires_grad:
            raise Differs(f"{state.log}\ntorch refuses: {theirs}")
        try:
            ours.sum().backward()
        except RuntimeError:
            return
    raise Differs(f"{state.log}\ntorch refuses: {theirs}")


def _lies_as_ours(t):
    base = t._base if t._is_view() else t
    return base.is_contiguous()


def _wants(pair):
    try:
        return pair.theirs.requires_grad
    except RuntimeError:
        return pair.ours.requires_grad


def _backward(state, pairs):
    if not pairs:
        return
    outcomes = []
    for side, module in (("theirs", torch), ("ours", pf)):
        try:
            with module.enable_grad():
                total: Any = sum((getattr(p, side) * 1.0).sum() for p in pairs)
                total.backward(retain_graph=True)
            outcomes.append(None)
        except RuntimeError as error:
            outcomes.append(error)
    if (outcomes[0] is None) != (outcomes[1] is None):
        raise Differs(f"{state.log}\ntorch: {outcomes[0]!r}\npyflame: {outcomes[1]!r}")
    if outcomes[0] is not None:
        state.ended = True  # gradients may have been added to some leaves before


def _compare(state):
    for k, p in enumerate(state.pool):
        _equal(state, f"value {k}", p.theirs.detach().numpy(), p.ours.detach().numpy())
        try:
            wants = p.theirs.requires_grad
        except RuntimeError:
            continue
        if wants != p.ours.requires_grad:
            raise Differs(f"{state.log}\nrequires_grad of {k}: torch {wants}, pyflame {p.ours.requires_grad}")
        if p.leaf:
            with warnings.catch_warnings():  # torch warns where a write made the leaf a result
                warnings.simplefilter("ignore")
                theirs, ours = p.theirs.grad, p.ours.grad
            if (theirs is None) != (ours is None):
                raise Differs(f"{state.log}\ngradient of {k}: torch {theirs}, pyflame {ours}")
            if theirs is not None:
                _equal(state, f"gradient {k}", theirs.numpy(), ours.numpy())


def _equal(state, what, theirs, ours):
    if theirs.shape != ours.shape or not np.allclose(theirs, ours, rtol=1e-9, atol=1e-12, equal_nan=True):
        raise Differs(f"{state.log}\n{what}: torch\n{theirs}\npyflame\n{ours}")
