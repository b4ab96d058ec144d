"""Attention as exporters write it (product, scaling, mask, softmax, product), noted for kernels that do it whole."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyflame_rt.graph import DType
from pyflame_rt.ops.onnx.activation import Softmax
from pyflame_rt.ops.onnx.arithmetic import Add, Div, Mul
from pyflame_rt.ops.onnx.logic import Where
from pyflame_rt.ops.onnx.math import IsNaN
from pyflame_rt.ops.onnx.matmul import MatMul
from pyflame_rt.ops.onnx.shape import Expand, Reshape, Transpose, Unsqueeze
from pyflame_rt.opt.rule import specialized_rule
from pyflame_rt.opt.specialized_graph import Attention

if TYPE_CHECKING:
    from pyflame_rt.ops.core.registry import Op
    from pyflame_rt.opt.specialized_graph import SpecializedGraph, SpecializedNode

__all__ = ["attention_steps"]


@specialized_rule("last", bound=256.0)
def attention_steps(concrete: SpecializedGraph) -> None:
    """Every attention whose inner values nobody else reads is noted, for a kernel that does it whole."""
    concrete.attentions = _Finder(concrete).run()


class _Finder:
    def __init__(self, concrete: SpecializedGraph) -> None:
        self.concrete = concrete
        self.maker = {name: step for step in concrete.steps for name in step.node.outputs if name}
        self.readers: dict[str, int] = {}
        for step in concrete.steps:
            for name in step.node.inputs:
                self.readers[name] = self.readers.get(name, 0) + 1
        for name in concrete.outputs:
            self.readers[name] = self.readers.get(name, 0) + 2

    def run(self) -> list[Attention]:
        order = {id(step): i for i, step in enumerate(self.concrete.steps)}
        found = []
        for step in self.concrete.steps:
            match = self._attention(step) if step.op is MatMul else None
            if match is not None:
                match.steps.sort(key=lambda s: order[id(s)])
                found.append(match)
        return found

    def _attention(self, last: SpecializedNode) -> Attention | None:
        weights, v = last.node.inputs
        guard = self._guard(weights)
        softmax = guard[0] if guard else self._inner(weights, Softmax)
        if softmax is None or v == weights or self.concrete.dtype(weights) is not DType.Float32:
            return None
        shape = self.concrete.shape(weights)
        if softmax.attributes["axis"] % len(shape) != len(shape) - 1 or len(shape) not in (3, 4):
            return None
        steps = [*guard, last] if guard else [softmax, last]
        match = Attention("", "", v, last.node.outputs[0], guarded=bool(guard), steps=steps)
        product = self._scores(match, softmax.node.inputs[0], shape)
        if product is None:
            return None
        match.q, match.k = product.node.inputs
        match.q = self._unscaled(match, match.q)
        match.k = self._unscaled(match, match.k)
        if not self._whole(match, shape):
            return None
        self._share_heads(match)
        return match

    def _guard(self, name: str) -> list[SpecializedNode]:
        """Softmax, IsNaN and Where that put zeros in the place of what is no number; none where they do not."""
        where = self._inner(name, Where)
        condition, zero, shares = where.node.inputs if where is not None else ("", "", "")
        test, softmax = self._inner(condition, IsNaN), self.maker.get(shares)
        number = self.concrete.constants.get(zero)
        if where is None or test is None or softmax is None or number is None or number.size != 1 or number.any():
            return []
        alone = test.node.inputs[0] == shares and self.readers.get(shares) == 2
        plain = softmax.op is Softmax and self.concrete.shape(name) == self.concrete.shape(shares)
        return [softmax, test, where] if alone and plain else []

    def _inner(self, name: str, *ops: Op) -> SpecializedNode | None:
        """The step that makes a value nobody else reads, if it is one of these operators."""
        step = self.maker.get(name)
        if step is None or step.op not in ops or self.readers.get(name) != 1:
            return None
        return step

    def _scores(self, match: Attention, name: str, shape: tuple[int, ...]) -> SpecializedNode | None:
        """Back from the softmax to the product of queries and keys, through a mask and scalings."""
        while True:
            step = self._inner(name, MatMul, Add, Mul, Div)
            if step is None:
                return None
            if step.op is MatMul:
                match.steps.append(step)
                return step
            following = self._masked(match, step, shape) if step.op is Add else self._scaled(match, step)
            if not following:
                return None
            match.steps.append(step)
            name = following

    def _masked(self, match: Attention, step: SpecializedNode, shape: tuple[int, ...]) -> str:
        """The scores an addition adds the mask to; empty when it is no mask."""
        left, right = step.node.inputs
        scores, mask = (left, right) if self.concrete.shape(left) == shape and left in self.maker else (right, left)
        if self.concrete.shape(scores) == shape == self.concrete.shape(mask) and not self._leads_to_product(scores):
            scores, mask = mask, scores
        # A scaling met before this one, nearer to the softmax, would scale the mask as well.
        if match.mask or match.scale != 1.0 or self.concrete.shape(scores) != shape or scores == mask:
            return ""
        match.mask = mask
        return scores

    def _leads_to_product(self, name: str) -> bool:
        step = self.maker.get(name)
        while step is not None and step.op in (Mul, Div):
            varying = [n for n in step.node.inputs if n not in self.concrete.constants]
            step = self.maker.get(varying[0]) if len(varying) == 1 else None
        return step is not None and step.op is MatMul

    def _scaled(self, match: Attention, step: SpecializedNode) -> str:
        left, right = step.node.inputs
        value, factor = (left, right) if right in self.concrete.constants else (right, left)
        array = self.concrete.constants.get(factor)
        same = self.concrete.shape(value) == self.concrete.shape(step.node.outputs[0])
        if array is None or array.size != 1 or not same or (step.op is Div and factor != right):
            return ""
        number = float(array.reshape(-1)[0])
        if step.op is Div and number == 0.0:
            return ""
        match.scale *= number if step.op is Mul else 1.0 / number
        return value

    def _unscaled(self, match: Attention, name: str) -> str:
        """The value before a scaling of queries or keys alone."""
        step = self._inner(name, Mul, Div)
        before = "" if step is None else self._scaled(match, step)
        if step is None or not before:
            return name
        match.steps.append(step)
        return before

    def _whole(self, match: Attention, shape: tuple[int, ...]) -> bool:
        """Whether the shapes are those of attention, without broadcasting between batches."""
        names = [match.q, match.k, match.v] + ([match.mask] if match.mask else [])
        if any(self.concrete.dtype(n) is not DType.Float32 for n in names):
            return False
        q, k, v = (self.concrete.shape(n) for n in names[:3])
        if not q[:-2] == k[:-2] == v[:-2] == shape[:-2] or 0 in (*q, *k, *v):
            return False
        return q[-1] == k[-2] and v[-2] == shape[-1]

    # ------------------------------------------------------------------ heads that are repeated

    def _share_heads(self, match: Attention) -> None:
        """Leave out the steps that repeat heads of keys and values for several heads of queries."""
        turned = self._inner(match.k, Transpose)
        rank = len(self.concrete.shape(match.k))
        if rank != 4 or turned is None or list(turned.attributes["perm"]) != [0, 1, 3, 2]:
            return
        k, v = self._repeated(turned.node.inputs[0]), self._repeated(match.v)
        if k is None or v is None or k[1] != v[1]:
            return
        match.k, match.v, match.repeat, match.k_turned = k[0], v[0], k[1], False
        match.steps += [turned, *k[2], *v[2]]

    def _repeated(self, name: str) -> tuple[str, int, list[SpecializedNode]] | None:
        """Reshape(Expand(Unsqueeze(x))) that repeats each head: x, how often, and the steps."""
        reshape = self._inner(name, Reshape)
        expand = None if reshape is None else self._inner(reshape.node.inputs[0], Expand)
        unsqueeze = None if expand is None else self._inner(expand.node.inputs[0], Unsqueeze, Reshape)
        if reshape is None or expand is None or unsqueeze is None:
            return None
        source = unsqueeze.node.inputs[0]
        x, wide, out = (self.concrete.shape(n) for n in (source, expand.node.outputs[0], reshape.node.outputs[0]))
        if len(x) != 4 or len(wide) != 5 or self.concrete.shape(expand.node.inputs[0]) != (*x[:2], 1, *x[2:]):
            return None
        if wide != (*x[:2], wide[2], *x[2:]) or out != (x[0], x[1] * wide[2], *x[2:]):
            return None
        return source, wide[2], [unsqueeze, expand, reshape]
