"""Operators between DequantizeLinear and QuantizeLinear as operators on the integers themselves.

A product of dequantized numbers is a product of integers times their scales: exact sums, then one rounding, where the
graph as written rounds every product. What only moves numbers, or takes the greatest, does so with integers as well
where scale and zero point stay what they are.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from pyflame_rt.graph import DType, Node
from pyflame_rt.ops.onnx.activation import Clip, Relu
from pyflame_rt.ops.onnx.arithmetic import Add, Div, Mul
from pyflame_rt.ops.onnx.cast import Cast, Identity
from pyflame_rt.ops.onnx.conv import Conv, ConvInteger
from pyflame_rt.ops.onnx.index import Gather
from pyflame_rt.ops.onnx.math import Round
from pyflame_rt.ops.onnx.matmul import Gemm, MatMul, MatMulInteger
from pyflame_rt.ops.onnx.maxpool import MaxPool
from pyflame_rt.ops.onnx.pool import GlobalMaxPool
from pyflame_rt.ops.onnx.quantize import DequantizeLinear, QuantizeLinear
from pyflame_rt.ops.onnx.resize import Resize
from pyflame_rt.ops.onnx.shape import (
    DepthToSpace,
    Expand,
    Flatten,
    Reshape,
    SpaceToDepth,
    Squeeze,
    Transpose,
    Unsqueeze,
)
from pyflame_rt.ops.onnx.slicing import Concat, Slice, Tile
from pyflame_rt.ops.pyflame.fused import FusedConvBN, FusedConvBNRelu, FusedConvRelu
from pyflame_rt.opt.rule import specialized_rule
from pyflame_rt.opt.rules.exact_integers import is_kernel_group

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from pyflame_rt.opt.specialize import Specializer

    Array = np.ndarray[Any, Any]

__all__ = ["quantized_products"]

_BYTES = (np.dtype(np.int8), np.dtype(np.uint8))
_GEOMETRY = ("auto_pad", "dilations", "group", "kernel_shape", "pads", "strides")
_FUSED = {FusedConvBN.name: "", FusedConvBNRelu.name: Relu.name, FusedConvRelu.name: Relu.name}
# Operators of one input that move numbers or choose among them.
_MOVES = frozenset(
    op.name
    for op in (
        *(DepthToSpace, Expand, Flatten, Gather, GlobalMaxPool, MaxPool, Reshape, Resize, Slice, SpaceToDepth, Squeeze),
        *(Tile, Transpose, Unsqueeze),
    )
)
_NEAR = 1e-5  # scales of a bias that differ by less are those of the product
_SPAN = 255  # the greatest difference of two bytes
_INT32 = 2**31 - 1
_TINY, _LARGEST = float(np.finfo(np.float32).tiny), float(np.finfo(np.float32).max)


class Scaled(NamedTuple):
    """A DequantizeLinear: what it reads, the scale and the zero point, which are constant."""

    source: str
    zero_name: str
    scale: Array
    zero: Array
    axis: int

    @property
    def single(self) -> bool:
        """Whether all numbers have one scale."""
        return self.scale.size == 1


class Requantization(NamedTuple):
    """What follows a product up to its quantization: its result, scale, zero point and the limits of the result."""

    result: str
    scale: np.float32
    zero: Array
    low: float
    high: float
    nodes: tuple[Node, ...]


@specialized_rule("first", bound=256.0)
def quantized_products(s: Specializer, pairs: list[tuple[Node, str]]) -> list[tuple[Node, str]]:
    """Products of dequantized numbers as products of integers, and moves of such numbers as moves of integers."""
    nodes = [node for node, _ in pairs]
    if not any(node.op_type == DequantizeLinear.name and not node.domain for node in nodes):
        return pairs
    apart = [part for node in nodes for part in _parts(node, s.fresh)]
    return _Worker(apart, s.out.constants, s.wanted, s.fresh, s.constant).run()


def _parts(node: Node, fresh: Callable[[str], str]) -> list[Node]:
    """A fused convolution as the nodes it stands for; other nodes as they are."""
    if node.domain != "pyflame" or node.op_type not in _FUSED:
        return [node]
    given = {k: v for k, v in node.attributes.items() if k in _GEOMETRY and v is not None}
    if not _FUSED[node.op_type]:
        return [Node(node.name, Conv.name, node.inputs, node.outputs, given)]
    middle = fresh(node.name)
    first = Node(node.name, Conv.name, node.inputs, [middle], given)
    return [first, Node(fresh(node.name), _FUSED[node.op_type], [middle], node.outputs)]


class _Worker:
    def __init__(
        self,
        nodes: Sequence[Node],
        constants: Mapping[str, Array],
        wanted: Collection[str],
        fresh: Callable[[str], str],
        keep: Callable[[str, Array], None],
    ) -> None:
        self.nodes, self.constants, self.fresh, self.keep = nodes, constants, fresh, keep
        self.makers = {name: node for node in nodes for name in node.outputs if name}
        self.readers: dict[str, list[Node]] = {}
        for node in nodes:
            for name in node.inputs:
                self.readers.setdefault(name, []).append(node)
        self.wanted = set(wanted)
        self.gone: set[int] = set()
        self.made: dict[int, list[Node]] = {}  # by the node in whose place they stand

    def run(self) -> list[tuple[Node, str]]:
        for node in self.nodes:
            if node.domain or id(node) in self.gone:
                continue
            if node.op_type in (Conv.name, Gemm.name, MatMul.name):
                self._product(node)
            elif node.op_type == QuantizeLinear.name:
                self._move(node)
        pairs = [(new, node.name) for node in self.nodes for new in self._now(node)]
        for left in (Transpose.name, DequantizeLinear.name):  # of weights: what nobody reads any more
            read = Counter(n for node, _ in pairs for n in node.inputs)
            pairs = [(n, o) for n, o in pairs if n.full_name != left or self._is_read(n, read)]
        return pairs

    def _now(self, node: Node) -> list[Node]:
        if id(node) in self.made:
            return self.made[id(node)]
        return [] if id(node) in self.gone else [node]

    def _is_read(self, node: Node, read: Mapping[str, int]) -> bool:
        return any(read.get(n) or n in self.wanted for n in node.outputs)

    # ------------------------------------------------------------------ what is there

    def _scaled(self, name: str) -> Scaled | None:
        """The DequantizeLinear that makes a value, if it is one of bytes or int32 by float32 scales."""
        node = self.makers.get(name)
        if node is None or node.op_type != DequantizeLinear.name or node.domain:
            return None
        return self._parameters(node)

    def _parameters(self, node: Node) -> Scaled | None:
        source, scale_name, zero_name = (*node.inputs, "")[:3]
        scale, zero = self.constants.get(scale_name), self.constants.get(zero_name)
        if scale is None or scale.dtype != np.float32 or scale.ndim > 1 or (zero_name and zero is None):
            return None
        plain = (None, 0, DType.Float32.onnx)
        if node.attributes.get("block_size") or node.attributes.get("output_dtype") not in plain:
            return None
        if zero is None:
            array = self.constants.get(source)
            if array is None:
                return None
            zero = np.zeros(scale.shape, array.dtype)
        axis = node.attributes.get("axis", 1)
        return Scaled(source, zero_name, scale, zero, axis) if isinstance(axis, int) else None

    def _only_reader(self, name: str) -> Node | None:
        readers = self.readers.get(name, ())
        return readers[0] if len(readers) == 1 and name not in self.wanted else None

    def _ending(self, name: str) -> Requantization | None:
        """An activation that keeps numbers within limits, if there is one, and the quantization of a value."""
        low, high, between = -np.inf, np.inf, []
        reader = self._only_reader(name)
        while reader is not None and (limits := self._limits(reader, name)) is not None:
            low, high = max(low, limits[0]), min(max(high, limits[0]), limits[1])
            between.append(reader)
            name = reader.outputs[0]
            reader = self._only_reader(name)
        if reader is None or reader.op_type != QuantizeLinear.name or reader.domain or reader.inputs[0] != name:
            return None
        if reader.attributes.get("precision", 0):
            return None
        scale, zero = (self.constants.get(n) for n in (*reader.inputs[1:], "")[:2])
        if scale is None or scale.size != 1 or scale.dtype != np.float32 or not scale.reshape(-1)[0] > 0:
            return None
        if zero is None or zero.dtype not in _BYTES or zero.size != 1:
            return None
        return Requantization(reader.outputs[0], scale.reshape(-1)[0], zero, low, high, (*between, reader))

    def _limits(self, node: Node, name: str) -> tuple[float, float] | None:
        """What an activation keeps its input between; None of other operators."""
        if node.domain or node.inputs[0] != name:
            return None
        if node.op_type == Relu.name:
            return 0.0, np.inf
        if node.op_type != Clip.name:
            return None
        bounds = []
        for place, otherwise in ((1, -np.inf), (2, np.inf)):
            given = node.inputs[place] if len(node.inputs) > place else ""
            array = self.constants.get(given)
            if given and (array is None or array.size != 1 or np.isnan(array).any()):
                return None
            bounds.append(otherwise if array is None else float(array.reshape(-1)[0]))
        return (bounds[0], bounds[1]) if bounds[0] <= bounds[1] else None

    # ------------------------------------------------------------------ products

    def _product(self, node: Node) -> None:
        """A convolution or a product with constant weights."""
        x, (w, column) = self._scaled(node.inputs[0]), self._weight(node)
        if x is None or w is None or not x.single or x.zero.dtype not in _BYTES or w.zero.dtype not in _BYTES:
            return
        weights = self.constants.get(w.source)
        if weights is None or not weights.size or not self._fits(node, w, weights, column):
            return
        ending = self._ending(node.outputs[0])
        scale = _product_of(x.scale.reshape(-1)[0], w.scale.reshape(-1))
        columns = weights.shape[column]
        reach = weights.size // columns * _SPAN * _SPAN
        if scale is None or reach > _INT32:
            return
        if ending is not None and _product_of(scale, 1 / np.float64(ending.scale)) is None:
            return
        nodes: list[Node] = []
        name = self._integer_product(node, x, w, nodes, column)
        form = (columns, 1, 1) if node.op_type == Conv.name else (columns,)
        name, rest = self._bias(node, name, scale, form, nodes, _INT32 - reach)
        name = self._add(nodes, node, Cast.name, [name], to=DType.Float32.onnx)
        if ending is None:
            factor = scale.reshape(form) if scale.size > 1 else scale
            self._add(nodes, node, Mul.name, [name, self._constant(node, factor)], rest or node.outputs[0])
            if rest:
                bias = self._shaped(nodes, node, node.inputs[2], form)
                nodes.append(Node(self.fresh(node.name), Add.name, [rest, bias], [node.outputs[0]]))
            self.made[id(node)] = nodes
            return
        factor = scale / ending.scale
        name = self._add(
            nodes, node, Mul.name, [name, self._constant(node, factor.reshape(form) if factor.size > 1 else factor)]
        )
        if rest:
            bias = self._shaped(nodes, node, node.inputs[2], form)
            step = self._constant(node, np.full(1, ending.scale, np.float32))
            name = self._add(nodes, node, Add.name, [name, self._add(nodes, node, Div.name, [bias, step])])
        self._quantized(nodes, node, name, ending)
        self.gone |= {id(node), *map(id, ending.nodes)}
        self.made[id(ending.nodes[-1])] = nodes

    def _weight(self, node: Node) -> tuple[Scaled | None, int]:
        """The weights of a product and the axis of its columns; exporters transpose them behind their scales, too."""
        name, column = node.inputs[1], _column_axis(node)
        maker = self.makers.get(name)
        if maker is None or maker.full_name != Transpose.name or node.op_type == Conv.name:
            return self._scaled(name), column
        perm = maker.attributes.get("perm")
        turned = perm is None or (isinstance(perm, (list, tuple)) and list(perm) == [1, 0])
        return (self._scaled(maker.inputs[0]), 1 - column) if turned else (None, column)

    def _fits(self, node: Node, w: Scaled, weights: Array, column: int) -> bool:
        """Whether kernels take weights of this form, with one scale or one for each column."""
        if node.op_type == Conv.name:
            return is_kernel_group(node, weights.shape) and (
                w.single or (w.axis in (0, -4) and w.scale.size == weights.shape[0])
            )
        if weights.ndim != 2:
            return False
        a = node.attributes
        if a.get("transA", 0) or a.get("alpha", 1.0) != 1.0 or a.get("beta", 1.0) != 1.0:
            return False
        return w.single or (w.axis % 2 == column and w.scale.size == weights.shape[column])

    def _integer_product(self, node: Node, x: Scaled, w: Scaled, nodes: list[Node], column: int) -> str:
        """The sums; gives their name."""
        zeros = [x.zero_name or self._constant(node, x.zero), w.zero_name or self._constant(node, w.zero)]
        if node.op_type == Conv.name:
            given = {k: v for k, v in node.attributes.items() if k in _GEOMETRY}
            return self._add(nodes, node, ConvInteger.name, [x.source, w.source, *zeros], **given)
        name = w.source
        if column == 0:
            name = self._add(nodes, node, Transpose.name, [name], perm=[1, 0])
        return self._add(nodes, node, MatMulInteger.name, [x.source, name, *zeros])

    def _bias(
        self, node: Node, name: str, scale: Array, form: tuple[int, ...], nodes: list[Node], room: int
    ) -> tuple[str, str]:
        """Sums with a bias of integers added, and a name for what lacks a bias of another kind; "" without one.

        ``room`` is how large a bias may be: beyond, a sum with it could leave 32 bits.
        """
        given = node.inputs[2] if len(node.inputs) > 2 else ""
        if not given:
            return name, ""
        found = self._scaled(given)
        array = None if found is None else self.constants.get(found.source)
        if found is None or array is None or array.dtype != np.int32 or found.zero.any():
            return name, self.fresh(node.name)
        if array.shape[-1:] != form[:1] or array.size != form[0] or np.abs(array.astype(np.int64)).max() > room:
            return name, self.fresh(node.name)
        if found.scale.size not in (1, scale.size) or not np.allclose(
            found.scale.reshape(-1), scale, rtol=_NEAR, atol=0
        ):
            return name, self.fresh(node.name)
        bias = self._constant(node, np.ascontiguousarray(array.reshape(form)))
        return self._add(nodes, node, Add.name, [name, bias]), ""

    def _shaped(self, nodes: list[Node], node: Node, name: str, form: tuple[int, ...]) -> str:
        """A float bias in a form that broadcasts against the product; that of Gemm does so already."""
        if node.op_type != Conv.name:
            return name
        sizes = self._constant(node, np.array(form, np.int64))
        return self._add(nodes, node, Reshape.name, [name, sizes])

    def _quantized(self, nodes: list[Node], node: Node, name: str, ending: Requantization) -> None:
        """Round, move by the zero point, keep within the limits of the type and of the activation."""
        info, zero = np.iinfo(ending.zero.dtype), float(ending.zero.reshape(-1)[0])
        limits = []
        for bound, end in ((ending.low, info.min), (ending.high, info.max)):
            moved = np.float32(bound) / ending.scale
            steps = float(np.round(moved)) + zero if np.isfinite(moved) else float(np.sign(moved) * np.inf)
            limits.append(min(max(steps, float(info.min)), float(info.max)) if np.isfinite(steps) else float(end))
        name = self._add(nodes, node, Round.name, [name])
        if zero:
            name = self._add(nodes, node, Add.name, [name, self._constant(node, np.full(1, zero, np.float32))])
        bounds = [self._constant(node, np.array(limit, np.float32)) for limit in limits]
        name = self._add(nodes, node, Clip.name, [name, *bounds])
        to = DType.of(ending.zero.dtype).onnx
        nodes.append(Node(self.fresh(node.name), Cast.name, [name], [ending.result], {"to": to}))

    # ------------------------------------------------------------------ moves

    def _move(self, quantize: Node) -> None:
        """A quantization of what was moved after it was dequantized with the same parameters."""
        node = self.makers.get(quantize.inputs[0])
        target = self._parameters(quantize)
        if target is None or not target.single or target.zero.dtype not in _BYTES or not quantize.inputs[2:]:
            return
        direct = self._scaled(quantize.inputs[0])
        if direct is not None and _alike(direct, target):
            self.made[id(quantize)] = [Node(quantize.name, Identity.name, [direct.source], [quantize.outputs[0]])]
            return
        if (
            node is None
            or node.domain
            or self._only_reader(quantize.inputs[0]) is not quantize
            or len(node.outputs) > 1
        ):
            return
        count = len(node.inputs) if node.op_type == Concat.name else 1 if node.op_type in _MOVES else 0
        if not count or (node.op_type == Resize.name and not _only_moves(node)):
            return
        sources = [self._scaled(name) for name in node.inputs[:count]]
        if any(s is None or not _alike(s, target) for s in sources):
            return
        inputs = [s.source for s in sources if s is not None] + list(node.inputs[count:])
        self.gone.add(id(node))
        self.made[id(quantize)] = [node.replace(inputs=inputs, outputs=[quantize.outputs[0]])]

    # ------------------------------------------------------------------ writing

    def _constant(self, node: Node, array: Array) -> str:
        name = self.fresh(node.name)
        self.keep(name, np.ascontiguousarray(array))
        return name

    def _add(self, nodes: list[Node], node: Node, op: str, inputs: list[str], out: str = "", **given: Any) -> str:
        name = out or self.fresh(node.name)
        nodes.append(Node(self.fresh(node.name), op, inputs, [name], given))
        return name


def _column_axis(node: Node) -> int:
    """The axis of a weight along which results have columns."""
    return 0 if node.op_type == Conv.name or node.attributes.get("transB", 0) else 1


def _product_of(a: Any, b: Any) -> Array | None:
    """The product of scales as float32; None where float32 rounds it coarsely, to zero or to infinity."""
    wide = np.multiply(a, b, dtype=np.float64)
    return wide.astype(np.float32) if ((wide >= _TINY) & (wide <= _LARGEST / 2**32)).all() else None


def _only_moves(resize: Node) -> bool:
    """Whether a Resize takes nearest neighbours, and has no number of its own for places outside."""
    given = [resize.attributes.get("mode"), resize.attributes.get("coordinate_transformation_mode")]
    mode, places = (v.decode() if isinstance(v, bytes) else v for v in given)
    return mode in (None, "nearest") and places != "tf_crop_and_resize"


def _alike(a: Scaled, b: Scaled) -> bool:
    return (
        a.single and a.zero.dtype == b.zero.dtype
        and _product_of(a.scale, 1.0) is not None
        and a.scale.reshape(-1)[0] == b.scale.reshape(-1)[0]
        and a.zero.reshape(-1)[0] == b.zero.reshape(-1)[0]
    )  # fmt: skip
