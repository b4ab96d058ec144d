"""Products of rows that indices take from a table: where that is less work, the table is multiplied instead.

A row of a product depends on one row of its first operand alone. So the product of rows taken from a table is rows
taken from the product of the table; in the gradients, what belongs to one row of the table is added up before it is
multiplied. A language model of fewer words than its batch has places saves half the work of its first layer so.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from pyflame_rt.graph import DType, Node
from pyflame_rt.ops.core.evaluate import bind_attributes
from pyflame_rt.ops.core.registry import get_op
from pyflame_rt.ops.onnx.arithmetic import Add
from pyflame_rt.ops.onnx.index import Gather, ScatterND
from pyflame_rt.ops.onnx.matmul import MatMul
from pyflame_rt.ops.onnx.shape import Flatten, Reshape, Squeeze, Transpose, Unsqueeze
from pyflame_rt.opt.rule import specialized_rule
from pyflame_rt.opt.specialized_graph import SpecializedNode

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyflame_rt.opt.specialized_graph import SpecializedGraph

__all__ = ["gather_matmul"]

# Taking a number from the product of the table costs as much as so many multiplications in a product.
TAKING = 32
_RESHAPES = frozenset({Flatten, Reshape, Squeeze, Unsqueeze})


class _Taken(NamedTuple):
    """Rows of a table: row ``r`` is the one that place ``places[r]`` of the flattened indices names."""

    table: str
    indices: str
    places: np.ndarray[Any, Any]


class _Later(NamedTuple):
    """A product of taken rows that waits for the bias that is added to it."""

    taken: _Taken
    weights: str


@specialized_rule("last", bound=256.0)
def gather_matmul(concrete: SpecializedGraph) -> None:
    """Products of rows taken from a smaller table: the table is multiplied, and rows are taken from the product."""
    finder = _Finder(concrete)
    if finder.taken:
        finder.rewrite()


class _Finder:
    def __init__(self, concrete: SpecializedGraph) -> None:
        self.concrete = concrete
        self.maker = {name: step for step in concrete.steps for name in step.node.outputs if name}
        self.readers: dict[str, list[SpecializedNode]] = {}
        for step in concrete.steps:
            for name in step.node.inputs:
                self.readers.setdefault(name, []).append(step)
        self.handed = set(concrete.outputs).union(n for node, _ in concrete.deferred for n in node.inputs)
        self.taken: dict[str, _Taken] = {}
        for step in concrete.steps:
            self._note(step)
        self.made: list[SpecializedNode] = []
        self.ordered: dict[tuple[str, bytes], str] = {}
        self.summed: dict[tuple[str, str, bytes], str] = {}
        self.later: dict[str, _Later] = {}

    # ------------------------------------------------------------------ what there is

    def _note(self, step: SpecializedNode) -> None:
        """Remember rows that a step takes or moves."""
        if step.op.domain or not step.node.outputs:
            return
        source, out = step.node.inputs[0] if step.node.inputs else "", step.node.outputs[0]
        if step.op is Gather and self._is_worth_it(step):
            count = math.prod(self.concrete.shape(step.node.inputs[1]))
            self.taken[out] = _Taken(source, step.node.inputs[1], np.arange(count))
        elif source in self.taken:
            places = self._moved(step, self.taken[source].places)
            if places is not None:
                self.taken[out] = self.taken[source]._replace(places=places)

    def _is_worth_it(self, step: SpecializedNode) -> bool:
        table, indices = step.node.inputs
        shape, count = self.concrete.shape(table), math.prod(self.concrete.shape(indices))
        if len(shape) != 2 or step.attributes["axis"] not in (0, -2):
            return False
        if self.concrete.dtype(table) not in (DType.Float32, DType.Float64):
            return False
        return (count - shape[0]) * shape[1] > TAKING * count

    def _moved(self, step: SpecializedNode, places: np.ndarray[Any, Any]) -> np.ndarray[Any, Any] | None:
        """Where rows come from after a step that moves whole rows; None for any other."""
        if step.op is not Transpose and step.op not in _RESHAPES:
            return None
        before, after = (self.concrete.shape(n) for n in (step.node.inputs[0], step.node.outputs[0]))
        if len(before) < 2 or len(after) < 2 or before[-1] != after[-1]:
            return None
        if step.op in _RESHAPES:
            return places
        perm = list(step.attributes["perm"] or reversed(range(len(before))))
        if perm[-1] != len(before) - 1:
            return None
        return places.reshape(before[:-1]).transpose(perm[:-1]).ravel()

    def _alone(self, name: str) -> SpecializedNode | None:
        """The one step that reads a value."""
        readers = self.readers.get(name, [])
        return readers[0] if len(readers) == 1 and name not in self.handed else None

    def _rows(self, name: str) -> str:
        """The value a matrix is another shape of, with the same rows."""
        step = self.maker.get(name)
        while step is not None and step.op in _RESHAPES:
            before, after = (self.concrete.shape(n) for n in (step.node.inputs[0], step.node.outputs[0]))
            if len(before) < 2 or before[-1] != after[-1]:
                break
            name = step.node.inputs[0]
            step = self.maker.get(name)
        return name

    # ------------------------------------------------------------------ the steps that take their place

    def rewrite(self) -> None:
        """The steps, those on taken rows replaced, without what nobody reads any more."""
        steps: list[SpecializedNode] = []
        for step in self.concrete.steps:
            self.made = []
            done = not step.op.domain and self._replace(step)
            steps += self.made if done else [step]
        used, kept = set(self.handed), []
        for step in reversed(steps):
            if any(o in used for o in step.node.outputs):
                used.update(n for n in step.node.inputs if n)
                kept.append(step)
        self.concrete.steps = kept[::-1]

    def _replace(self, step: SpecializedNode) -> bool:
        match step.op.name:
            case MatMul.name:
                return self._product(step) or self._weights_gradient(step)
            case Add.name:
                return self._biased(step)
            case ScatterND.name:
                return self._table_gradient(step)
            case _:
                return False

    def _product(self, step: SpecializedNode) -> bool:
        """Taken rows times a matrix: rows taken from the product of the table."""
        rows, weights = step.node.inputs
        taken = self.taken.get(rows)
        if taken is None or len(self.concrete.shape(weights)) != 2:
            return False
        out = step.node.outputs[0]
        following = self._alone(out)
        if following is not None and self._bias_of(following, out):
            self.later[out] = _Later(taken, weights)
            return True
        self._take(step, taken, self._times(step, taken.table, weights))
        return True

    def _bias_of(self, step: SpecializedNode, product: str) -> str:
        """What a step adds to every row of a product; empty when it does something else."""
        if step.op.domain or step.op is not Add or step.node.inputs[0] == step.node.inputs[1]:
            return ""
        bias = next(n for n in step.node.inputs if n != product)
        shape, width = self.concrete.shape(bias), self.concrete.shape(product)[-1]
        whole = shape and shape[-1] == width and math.prod(shape) == width
        return bias if whole and self.concrete.shape(step.node.outputs[0]) == self.concrete.shape(product) else ""

    def _biased(self, step: SpecializedNode) -> bool:
        product = next((n for n in step.node.inputs if n in self.later), "")
        if not product:
            return False
        taken, weights = self.later[product]
        bias = self._bias_of(step, product)
        table = self._times(step, taken.table, weights)
        shape = self.concrete.shape(table)
        flat = self._reshaped(step, bias, (shape[1],))
        self._take(step, taken, self._make(step, Add.name, [table, flat], shape))
        return True

    def _weights_gradient(self, step: SpecializedNode) -> bool:
        """Taken rows, turned, times gradients: the table, turned, times their sums."""
        turned, given = step.node.inputs
        turning = self.maker.get(turned)
        if turning is None or turning.op.domain or turning.op is not Transpose:
            return False
        taken = self.taken.get(turning.node.inputs[0])
        if taken is None or len(self.concrete.shape(turned)) != 2 or len(self.concrete.shape(given)) != 2:
            return False
        if list(turning.attributes["perm"] or (1, 0)) != [1, 0]:
            return False
        sums = self._sums(step, taken, given)
        count, width = self.concrete.shape(taken.table)
        table = self._make(step, Transpose.name, [taken.table], (width, count), {"perm": [1, 0]})
        shape = self.concrete.shape(step.node.outputs[0])
        self._make(step, MatMul.name, [table, sums], shape, output=step.node.outputs[0])
        return True

    def _table_gradient(self, step: SpecializedNode) -> bool:
        """Products of gradients, added up by rows of the table: the product of their sums."""
        zeros, indices, updates = step.node.inputs
        start = self.concrete.constants.get(zeros)
        if step.attributes["reduction"] != "add" or start is None or start.ndim != 2 or start.any():
            return False
        if self.concrete.shape(indices)[-1] != 1:
            return False
        found = self._product_behind(updates)
        if found is None:
            return False
        product, order = found
        given, weights = product.node.inputs
        # Row order[p] of the product goes where place p of the indices says.
        taken = _Taken(zeros, self._without_last(indices), np.argsort(order))
        if not self._sums_pay(given, start.shape[0]):
            return False
        sums = self._sums(step, taken, given)
        shape = self.concrete.shape(step.node.outputs[0])
        self._make(step, MatMul.name, [sums, weights], shape, output=step.node.outputs[0])
        return True

    def _sums_pay(self, given: str, rows: int) -> bool:
        *lead, depth = self.concrete.shape(given)
        count = math.prod(lead)
        return (count - rows) * depth > TAKING * count

    def _product_behind(self, name: str) -> tuple[SpecializedNode, np.ndarray[Any, Any]] | None:
        """The product whose rows a value has in another order, and that order; None where others read it too."""
        chain: list[SpecializedNode] = []
        while True:
            step = self.maker.get(name)
            if step is None or step.op.domain or self._alone(name) is None:
                return None
            if step.op is MatMul:
                break
            chain.append(step)
            name = step.node.inputs[0]
        if len(self.concrete.shape(step.node.inputs[1])) != 2 or len(self.concrete.shape(name)) < 2:
            return None
        order: np.ndarray[Any, Any] | None = np.arange(math.prod(self.concrete.shape(name)[:-1]))
        for moving in reversed(chain):
            order = None if order is None else self._moved(moving, order)
        return None if order is None else (step, order)

    def _without_last(self, indices: str) -> str:
        """Indices before an axis of one was added to them, so that equal ones have one name."""
        step = self.maker.get(indices)
        shape = self.concrete.shape(indices)[:-1]
        if step is not None and step.op in _RESHAPES and self.concrete.shape(step.node.inputs[0]) == shape:
            return step.node.inputs[0]
        return indices

    # ------------------------------------------------------------------ making steps

    def _times(self, step: SpecializedNode, table: str, weights: str) -> str:
        shape = (self.concrete.shape(table)[0], self.concrete.shape(weights)[1])
        return self._make(step, MatMul.name, [table, weights], shape)

    def _take(self, step: SpecializedNode, taken: _Taken, table: str) -> None:
        """The result of a step: rows of a table."""
        out = step.node.outputs[0]
        shape = self.concrete.shape(out)
        indices = self._reshaped(step, self._in_order(step, taken), shape[:-1])
        self._make(step, Gather.name, [table, indices], shape, {"axis": 0}, output=out)

    def _sums(self, step: SpecializedNode, taken: _Taken, given: str) -> str:
        """For each row of the table the sum of those given for it; made once for equal ones."""
        source = self._rows(given)
        key = (source, taken.indices, taken.places.tobytes())
        if key not in self.summed:
            rows, width = self.concrete.shape(taken.table)[0], self.concrete.shape(given)[-1]
            count, dtype = taken.places.size, self.concrete.dtype(given)
            zeros = self._constant(np.broadcast_to(np.zeros((), dtype.numpy), (rows, width)))
            indices = self._reshaped(step, self._in_order(step, taken), (count, 1))
            updates = self._reshaped(step, source, (count, width))
            attributes = {"reduction": "add"}
            self.summed[key] = self._make(step, ScatterND.name, [zeros, indices, updates], (rows, width), attributes)
        return self.summed[key]

    def _in_order(self, step: SpecializedNode, taken: _Taken) -> str:
        """The indices of the rows, one after the other."""
        key = (taken.indices, taken.places.tobytes())
        if key not in self.ordered:
            count = taken.places.size
            flat = self._reshaped(step, taken.indices, (count,))
            if (taken.places != np.arange(count)).any():
                places = self._constant(taken.places.astype(np.int64))
                flat = self._make(step, Gather.name, [flat, places], (count,), {"axis": 0})
            self.ordered[key] = flat
        return self.ordered[key]

    def _reshaped(self, step: SpecializedNode, name: str, shape: tuple[int, ...]) -> str:
        if self.concrete.shape(name) == shape:
            return name
        return self._make(step, Reshape.name, [name, self._constant(np.array(shape, np.int64))], shape)

    def _constant(self, array: np.ndarray[Any, Any]) -> str:
        name = self._fresh("table")
        self.concrete.constants[name] = array
        self.concrete.types[name] = (DType.of(array.dtype), array.shape)
        return name

    def _make(
        self,
        step: SpecializedNode,
        kind: str,
        inputs: list[str],
        shape: tuple[int, ...],
        attributes: Mapping[str, Any] | None = None,
        output: str = "",
    ) -> str:
        """Add a step in place of another; its first input says the type."""
        output = output or self._fresh("table")
        op = get_op(kind)
        node = Node(self._fresh(step.node.name), kind, inputs, [output], dict(attributes or {}))
        self.concrete.types[output] = (self.concrete.dtype(inputs[0]), shape)
        self.made.append(SpecializedNode(node, op, bind_attributes(node, op), step.origin))
        return output

    def _fresh(self, hint: str) -> str:
        self.concrete.count += 1
        return f"{hint}%{self.concrete.count}"
