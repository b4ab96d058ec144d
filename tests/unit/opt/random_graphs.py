"""Random graphs over many operators and element types, with values at the edges of what the types hold."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from pyflame_rt.graph import DType, Graph

FLOATS = (np.float32, np.float64, np.float16, ml_dtypes.bfloat16)
INTEGERS = (np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32, np.int64, np.uint64)
EDGES = (0.0, -0.0, 1.0, -1.0, np.nan, np.inf, -np.inf, 1e-40, -1e-45, 65504.0, 0.5)


def values(rng: np.random.Generator, dtype: Any, shape: tuple[int, ...], *, edges: bool = True) -> np.ndarray:
    """Numbers of a type, some of them special."""
    kind = np.dtype(dtype)
    if kind == np.bool_:
        return rng.random(shape) < 0.5
    if kind.kind in "iu":
        info = np.iinfo(kind)
        numbers = rng.integers(0 if kind.kind == "u" else -5, 6, shape).astype(kind)
        special = rng.random(shape) < 0.1
        return np.where(
            special, np.where(rng.random(shape) < 0.5, kind.type(info.min), kind.type(info.max)), numbers
        ).astype(kind)
    numbers = rng.standard_normal(shape)
    if edges:
        special = rng.random(shape) < 0.1
        numbers = np.where(special, rng.choice(EDGES, shape), numbers)
    with np.errstate(over="ignore"):
        return numbers.astype(kind)


class Maker:
    """Grows a graph node by node; every value's type and shape is known."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.graph = Graph(f"random{seed}")
        self.types: dict[str, tuple[Any, tuple[int, ...]]] = {}
        self.feed: dict[str, np.ndarray] = {}
        self.count = 0
        self.edges = seed % 3 != 0

    # ------------------------------------------------------------------ pieces

    def name(self) -> str:
        self.count += 1
        return f"v{self.count}"

    def input(self, dtype: Any, shape: tuple[int, ...]) -> str:
        name = self.name()
        self.graph.add_input(name, list(shape), DType.of(np.dtype(dtype)))
        self.feed[name] = values(self.rng, dtype, shape, edges=self.edges)
        self.types[name] = (dtype, shape)
        return name

    def constant(self, array: np.ndarray) -> str:
        name = self.name()
        self.graph.add_initializer(name, array)
        self.types[name] = (array.dtype.type, array.shape)
        return name

    def node(self, op: str, inputs: list[str], dtype: Any, shape: tuple[int, ...], **attributes: Any) -> str:
        name = self.name()
        self.graph.add_node(f"n_{name}", op, inputs, [name], attributes)
        self.types[name] = (dtype, shape)
        return name

    def pick(self, kinds: Any = None, rank: int | None = None) -> str | None:
        found = [
            n
            for n, (d, s) in self.types.items()
            if (kinds is None or d in kinds) and (rank is None or len(s) == rank) and n not in self.graph.initializers
        ]
        return found[int(self.rng.integers(len(found)))] if found else None

    def maybe(self, chance: float) -> bool:
        return bool(self.rng.random() < chance)

    # ------------------------------------------------------------------ operators

    def unary(self) -> None:
        x = self.pick(FLOATS[:2])
        if x is not None:
            op = str(self.rng.choice(["Relu", "Neg", "Abs", "Sigmoid", "Tanh", "Exp", "Floor", "Identity", "Sqrt"]))
            self.node(op, [x], *self.types[x])

    def integer(self) -> None:
        x = self.pick(INTEGERS)
        if x is not None:
            dtype, shape = self.types[x]
            other = self.constant(values(self.rng, dtype, shape[-1:] if self.maybe(0.5) else ()))
            self.node(str(self.rng.choice(["Add", "Mul", "Sub", "Max"])), [x, other], dtype, shape)

    def binary(self) -> None:
        x = self.pick(FLOATS)
        if x is None:
            return
        dtype, shape = self.types[x]
        same = [n for n, t in self.types.items() if t == (dtype, shape)]
        number = self.rng.choice([0.0, -0.0, 1.0, 2.0, np.nan])
        other = self.constant(np.array(number, dtype)) if self.maybe(0.4) else str(self.rng.choice(same))
        pair = [x, other] if self.maybe(0.7) else [other, x]
        self.node(str(self.rng.choice(["Add", "Mul", "Sub", "Div"])), pair, dtype, shape)

    def bias(self) -> None:
        x = self.pick(FLOATS[:2])
        if x is not None and self.types[x][1]:
            dtype, shape = self.types[x]
            c = self.constant(values(self.rng, dtype, shape[-1:], edges=False))
            y = self.node("Add", [x, c], dtype, shape)
            if self.maybe(0.7):
                self.node("Relu", [y], dtype, shape)

    def transpose(self) -> None:
        x = self.pick()
        if x is None or len(self.types[x][1]) < 2:
            return
        dtype, shape = self.types[x]
        perm = [int(p) for p in self.rng.permutation(len(shape))]
        y = self.node("Transpose", [x], dtype, tuple(shape[p] for p in perm), perm=perm)
        if dtype in FLOATS[:2] and self.maybe(0.6):
            y = self.node("Relu", [y], *self.types[y])
            if self.maybe(0.5):
                c = self.constant(values(self.rng, dtype, self.types[y][1][-1:], edges=False))
                y = self.node("Mul", [y, c], *self.types[y])
        if self.maybe(0.7):
            back = [perm.index(i) for i in range(len(perm))]
            self.node("Transpose", [y], dtype, shape, perm=back)

    def reshape(self) -> None:
        x = self.pick()
        if x is None:
            return
        dtype, shape = self.types[x]
        size = int(np.prod(shape))
        options = [(size,), (1, size), (size, 1), shape, (*shape, 1)]
        new = options[int(self.rng.integers(len(options)))]
        if self.maybe(0.3):
            sizes = self.node("Shape", [x], np.int64, (len(shape),))
            total = self.node("ReduceProd", [sizes], np.int64, (1,), keepdims=1)
            self.node("Reshape", [x, total], dtype, (size,))
            return
        written = list(new)
        if self.maybe(0.4) and size:
            written[int(self.rng.integers(len(written)))] = -1
        self.node("Reshape", [x, self.constant(np.array(written, np.int64))], dtype, new)

    def cast(self) -> None:
        x = self.pick((*FLOATS[:2], *INTEGERS, np.bool_))
        if x is None:
            return
        dtype, shape = self.types[x]
        small = dtype in (np.bool_, np.int8, np.uint8, np.int16)
        wide = [np.float32, np.float64, np.int32, np.int64] if small else [dtype]
        to = wide[int(self.rng.integers(len(wide)))]
        y = self.node("Cast", [x], to, shape, to=DType.of(np.dtype(to)).onnx)
        if self.maybe(0.7):
            self.node("Cast", [y], dtype, shape, to=DType.of(np.dtype(dtype)).onnx)

    def folded(self) -> None:
        a = self.constant(values(self.rng, np.float32, (3,)))
        b = self.node("Mul", [a, self.constant(values(self.rng, np.float32, (3,)))], np.float32, (3,))
        if self.maybe(0.5):
            self.node("Add", [b, b], np.float32, (3,))

    def twins(self) -> None:
        x = self.pick(FLOATS[:2])
        if x is not None:
            op, given = ("Abs", [x]) if self.maybe(0.5) else ("Mul", [x, x])
            a, b = (self.node(op, given, *self.types[x]) for _ in range(2))
            self.node("Add", [a, b], *self.types[x])

    def slicing(self) -> None:
        x = self.pick()
        if x is None or not self.types[x][1]:
            return
        dtype, shape = self.types[x]
        end = shape[0] if self.maybe(0.5) else 2**62
        bounds = [self.constant(np.array([n], np.int64)) for n in (0, end, 0)]
        y = self.node("Slice", [x, *bounds], dtype, shape)
        if self.maybe(0.5):
            axes = self.constant(np.array([0], np.int64))
            y = self.node("Unsqueeze", [y, axes], dtype, (1, *shape))
            self.node("Squeeze", [y, axes], dtype, shape)

    def matmul(self) -> None:
        x = self.pick((np.float32, np.float64), rank=2)
        if x is None:
            return
        dtype, (rows, inner) = self.types[x]
        w = self.constant(values(self.rng, dtype, (inner, 4), edges=False))
        y = self.node("MatMul", [x, w], dtype, (rows, 4))
        if self.maybe(0.8):
            c = self.constant(values(self.rng, dtype, (4,) if self.maybe(0.7) else (rows, 4), edges=False))
            self.node("Add", [y, c] if self.maybe(0.5) else [c, y], dtype, (rows, 4))

    def convolution(self) -> None:
        x = self.pick((np.float32, np.float64), rank=4)
        if x is None:
            return
        dtype, (n, c, h, w) = self.types[x]
        weights = self.constant(values(self.rng, dtype, (3, c, 1, 1), edges=False))
        given = [x, weights]
        if self.maybe(0.5):
            given.append(self.constant(values(self.rng, dtype, (3,), edges=False)))
        y = self.node("Conv", given, dtype, (n, 3, h, w))
        if self.maybe(0.6):
            stats = [self.constant(self.rng.uniform(0.5, 1.5, 3).astype(dtype)) for _ in range(4)]
            y = self.node("BatchNormalization", [y, *stats], dtype, (n, 3, h, w))
        if self.maybe(0.6):
            self.node("Relu", [y], dtype, (n, 3, h, w))

    def exported(self) -> None:
        """What exporters write out for one operator."""
        x = self.pick((np.float32, np.float64))
        if x is None or not self.types[x][1]:
            return
        dtype, shape = self.types[x]

        def number(value: float) -> str:
            return self.constant(np.array(value, dtype))

        match int(self.rng.integers(4)):
            case 0:
                s = self.node("Sigmoid", [x], dtype, shape)
                self.node("Mul", [x, s], dtype, shape)
            case 1:
                e = self.node("Erf", [self.node("Div", [x, number(2**0.5)], dtype, shape)], dtype, shape)
                p = self.node("Mul", [x, self.node("Add", [e, number(1.0)], dtype, shape)], dtype, shape)
                self.node("Mul", [p, number(0.5)], dtype, shape)
            case 2:
                self._normalised(x, dtype, shape, number, centred=True)
            case _:
                self._normalised(x, dtype, shape, number, centred=False)

    def attention(self) -> None:
        """Attention as exporters write it, with any of its parts left out or in another place."""
        q = self.pick((np.float32, np.float64), rank=4)
        if q is None:
            return
        dtype, (batch, heads, queries, size) = self.types[q]
        keys = int(self.rng.integers(1, 4))
        shared = [self.constant(values(self.rng, dtype, (batch, heads, keys, n), edges=False)) for n in (size, 2)]
        k = self.node("Transpose", [shared[0]], dtype, (batch, heads, size, keys), perm=[0, 1, 3, 2])
        shape = (batch, heads, queries, keys)
        if self.maybe(0.5):
            q = self.node("Mul", [q, self.constant(np.array(0.5, dtype))], *self.types[q])
        s = self.node("MatMul", [q, k], dtype, shape)
        if self.maybe(0.5):
            op = "Div" if self.maybe(0.5) else "Mul"
            s = self.node(op, [s, self.constant(np.array(1.5, dtype))], dtype, shape)
        if self.maybe(0.6):
            mask = np.where(self.rng.random((batch, 1, queries, keys)) < 0.4, -np.inf, 0.0).astype(dtype)
            s = self.node("Add", [s, self.constant(mask)], dtype, shape)
        p = self.node("Softmax", [s], dtype, shape, axis=-1)
        if self.maybe(0.5):
            n = self.node("IsNaN", [p], np.bool_, shape)
            p = self.node("Where", [n, self.constant(np.array(0.0, dtype)), p], dtype, shape)
        self.node("MatMul", [p, shared[1]], dtype, (batch, heads, queries, 2))

    def rotary(self) -> None:
        x = self.pick((np.float32, np.float64))
        if x is None or not self.types[x][1] or self.types[x][1][-1] % 2:
            return
        dtype, shape = self.types[x]
        last, half = len(shape) - 1, shape[-1] // 2
        parts = []
        for start, end in ((half, 2 * half), (0, half)):
            bounds = [self.constant(np.array([n], np.int64)) for n in (start, end, last)]
            parts.append(self.node("Slice", [x, *bounds], dtype, (*shape[:-1], half)))
        parts[0] = self.node("Neg", [parts[0]], dtype, (*shape[:-1], half))
        t = self.node("Concat", parts if self.maybe(0.9) else parts[::-1], dtype, shape, axis=-1)
        factors = [self.constant(values(self.rng, dtype, shape[-1:], edges=False)) for _ in range(2)]
        u = self.node("Mul", [x, factors[0]], dtype, shape)
        self.node("Add", [u, self.node("Mul", [t, factors[1]], dtype, shape)], dtype, shape)

    def _normalised(self, x: str, dtype: Any, shape: tuple[int, ...], number: Any, *, centred: bool) -> None:
        axes = self.constant(np.array([-1], np.int64))
        thin = (*shape[:-1], 1)
        d = x
        if centred:
            m = self.node("ReduceMean", [x, axes], dtype, thin, keepdims=1)
            d = self.node("Sub", [x, m], dtype, shape)
        q = self.node("Pow", [d, number(2.0)], dtype, shape)
        v = self.node("ReduceMean", [q, axes], dtype, thin, keepdims=1)
        r = self.node("Sqrt", [self.node("Add", [v, number(1e-5)], dtype, thin)], dtype, thin)
        y = self.node("Div", [d, r], dtype, shape)
        w = self.constant(values(self.rng, dtype, shape[-1:], edges=False))
        y = self.node("Mul", [y, w], dtype, shape)
        if centred:
            self.node("Add", [y, self.constant(values(self.rng, dtype, shape[-1:], edges=False))], dtype, shape)


OPERATORS = (
    "unary", "integer", "binary", "bias", "transpose", "transpose", "reshape", "cast", "folded", "twins", "slicing",
    "matmul", "convolution", "exported", "attention", "rotary",
)  # fmt: skip


def random_graph(seed: int, nodes: int = 14) -> tuple[Graph, dict[str, np.ndarray]]:
    """A graph and a feed for it."""
    maker = Maker(seed)
    rng = maker.rng
    maker.input(np.float32, tuple(int(n) for n in rng.integers(1, 4, int(rng.integers(1, 5)))))
    maker.input(FLOATS[int(rng.integers(len(FLOATS)))], (2, 3))
    maker.input(INTEGERS[int(rng.integers(len(INTEGERS)))], (2, 3))
    if maker.maybe(0.5):
        maker.input(np.float32, (1, 2, 3, 3))
    if maker.maybe(0.3):
        maker.input(np.bool_, (2, 2))
    while len(maker.graph.nodes) < nodes:
        getattr(maker, OPERATORS[int(rng.integers(len(OPERATORS)))])()
    graph = maker.graph
    read = {name for node in graph.nodes for name in node.inputs}
    made = [name for node in graph.nodes for name in node.outputs]
    for name in made:
        if (name not in read or maker.maybe(0.05)) and (name in read or maker.maybe(0.9)):
            dtype, shape = maker.types[name]
            graph.add_output(name, list(shape), DType.of(np.dtype(dtype)))
    if not graph.outputs:
        dtype, shape = maker.types[made[-1]]
        graph.add_output(made[-1], list(shape), DType.of(np.dtype(dtype)))
    return graph, maker.feed
