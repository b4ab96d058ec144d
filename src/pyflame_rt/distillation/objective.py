"""The loss of a distillation: outputs, features and attention of the teacher, and labels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from pyflame_rt.distillation.config import DistillationConfig, DistillationLoss
from pyflame_rt.distillation.layers import attention_value, feature_value
from pyflame_rt.graph import DType, Graph, Shape, TensorInfo, TensorType
from pyflame_rt.graph.errors import InputError, ShapeMismatchError
from pyflame_rt.ops.onnx.activation import Softmax
from pyflame_rt.ops.onnx.matmul import MatMul
from pyflame_rt.ops.onnx.reduce import ReduceMean, ReduceSum
from pyflame_rt.ops.onnx.shape import Transpose
from pyflame_rt.opt.editor import Editor
from pyflame_rt.session import InferenceSession
from pyflame_rt.training.losses import cosine, cross_entropy, kl_divergence, logits_of, mean_squared_error, unit_rows

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyflame_rt.ops.core.value import Value
    from pyflame_rt.training.extending import Extension

__all__ = ["DistillationObjective"]

Array = np.ndarray[Any, Any]


class DistillationObjective:
    """What a student makes smaller; the teacher answers each batch."""

    def __init__(self, teacher: Graph, student: Graph, config: DistillationConfig) -> None:
        config.check()
        self._config = config
        if len(teacher.outputs) != len(student.outputs):
            raise InputError(f"the teacher has {len(teacher.outputs)} outputs, the student {len(student.outputs)}")
        softened = config.loss_type not in (DistillationLoss.MSE, DistillationLoss.COSINE)
        pairs = [(t.name, s.name) for t, s in zip(teacher.outputs, student.outputs, strict=True)]
        self._first = logits_of(student, pairs[0][1])
        if softened:
            pairs = [(logits_of(teacher, a), logits_of(student, b)) for a, b in pairs]
        self._outputs = pairs
        mine = config.student_layers or config.layers
        cut = len(config.feature_layers)
        finders = [feature_value] * cut + [attention_value] * len(config.attention_layers)
        self._layers = [
            (find(teacher, a), find(student, b)) for find, a, b in zip(finders, config.layers, mine, strict=True)
        ]
        self._shares = [_is_softmax(teacher, a) and _is_softmax(student, b) for a, b in self._layers]
        self._inputs = [info.name for info in teacher.required_inputs]
        self._student_inputs = [info.name for info in student.required_inputs]
        if len(self._inputs) != len(self._student_inputs):
            raise InputError(f"the teacher has the inputs {self._inputs}, the student {self._student_inputs}")
        self._wanted = [a for a, _ in (*pairs, *self._layers)]
        self._session = InferenceSession(_with_outputs(teacher, list(dict.fromkeys(self._wanted))))

    def teacher_values(self, inputs: Mapping[str, Array]) -> list[Array]:
        """What the teacher says: outputs, then features."""
        names = zip(self._inputs, self._student_inputs, strict=True)
        found = self._session.run(None, {theirs: inputs[mine] for theirs, mine in names})
        known = dict(zip(dict.fromkeys(self._wanted), found, strict=True))
        return [known[name] for name in self._wanted]

    def extras(self, inputs: Mapping[str, Array], labels: Array | None) -> dict[str, Array]:
        """The teacher's answers for a batch, and its labels."""
        made = {f"teacher::{i}": value for i, value in enumerate(self.teacher_values(inputs))}
        if labels is not None and self._config.use_hard_labels:
            made["labels"] = labels if labels.dtype.kind in "iu" else labels.astype(np.float32)
        return made

    def build(self, graph: Extension, extras: Mapping[str, Value], added: dict[str, Array]) -> dict[str, Value]:
        """Append the loss; its terms are named."""
        config, count = self._config, len(self._outputs)
        taught = [extras[f"teacher::{i}"] for i in range(count + len(self._layers))]
        terms = {"output": _sum([self._output(graph.value(b), taught[i]) for i, (_, b) in enumerate(self._outputs)])}
        weights = config.feature_weights or [1.0 / max(len(self._layers), 1)] * len(self._layers)
        found = [
            self._layer(i, graph, taught[count + i], graph.value(own), added) * weights[i]
            for i, (_, own) in enumerate(self._layers)
        ]
        if found:
            terms["features"] = _sum(found)
        whole = _sum(list(terms.values())) * config.alpha
        if "labels" in extras:
            scores, labels = graph.value(self._first), extras["labels"]
            whole_numbers = labels.dtype is DType.Int64
            terms["labels"] = cross_entropy(scores, labels) if whole_numbers else mean_squared_error(scores, labels)
            share = 1 - config.alpha if config.hard_label_weight is None else config.hard_label_weight
            whole = whole + terms["labels"] * share
        return {"loss": whole, **terms}

    def _output(self, student: Value, teacher: Value) -> Value:
        _same_shape(student, teacher, "outputs")
        match self._config.loss_type:
            case DistillationLoss.MSE:
                return mean_squared_error(student, teacher)
            case DistillationLoss.COSINE:
                return cosine(student, teacher)
            case _:
                return kl_divergence(student, teacher, self._config.temperature)

    def _layer(self, i: int, graph: Extension, teacher: Value, student: Value, added: dict[str, Array]) -> Value:
        config = self._config
        if i >= len(config.feature_layers):
            return _attention(student, teacher, shares=self._shares[i], layer=config.layers[i])
        if config.loss_type is DistillationLoss.HINT or _channels(student) != _channels(teacher):
            student = self._projected(i, graph, student, teacher, added)
        _same_shape(student, teacher, f"features of {config.layers[i]!r}")
        if config.loss_type is DistillationLoss.COSINE:
            return cosine(student, teacher)
        if config.normalize_features:
            return _row_distance(unit_rows(student), unit_rows(teacher))
        return mean_squared_error(student, teacher)

    def _projected(self, i: int, graph: Extension, student: Value, teacher: Value, added: dict[str, Array]) -> Value:
        """The student's features at the teacher's width, by a trained matrix over the channels."""
        narrow, wide, name = _channels(student), _channels(teacher), f"hint::{i}"
        start = np.random.default_rng([self._config.seed, i]).normal(size=(narrow, wide)) / np.sqrt(narrow)
        added[name] = start.astype(np.float32)
        matrix = graph.declare(name, TensorType(DType.Float32, Shape([narrow, wide])))
        if student.rank <= 3:
            return MatMul(student, matrix)
        last = [0, *range(2, student.rank), 1]
        back = [0, student.rank - 1, *range(1, student.rank - 1)]
        product = MatMul(Transpose(student, perm=last), matrix)
        return Transpose(product, perm=back)


def _attention(student: Value, teacher: Value, *, shares: bool, layer: str) -> Value:
    """Where a layer looks: shares of an attention averaged over heads, else squares summed over channels."""
    if min(student.rank, teacher.rank) < 3:
        raise ShapeMismatchError(f"layer {layer!r} has the shape {list(teacher.shape)}: there is nowhere to look")
    maps = [_map(value, squared=not shares) for value in (student, teacher)]
    _same_shape(maps[0], maps[1], f"attention maps of {layer!r}")
    return _row_distance(unit_rows(maps[0]), unit_rows(maps[1]))


def _row_distance(a: Value, b: Value) -> Value:
    """The mean over rows of the squared distance."""
    away = a - b
    return ReduceMean(ReduceSum(away * away, [-1], keepdims=0), keepdims=0)


def _map(value: Value, *, squared: bool) -> Value:
    axis = 1 if value.rank >= 4 else -1
    return ReduceMean(value * value if squared else value, [axis], keepdims=0)


def _is_softmax(graph: Graph, name: str) -> bool:
    maker = graph.get_producer(name)
    return maker is not None and maker.op_type == Softmax.name


def _sum(values: list[Value]) -> Value:
    total = values[0]
    for value in values[1:]:
        total = total + value
    return total


def _channels(value: Value) -> int:
    return int(value.shape[1 if value.rank > 3 else -1])  # type: ignore[arg-type]


def _same_shape(student: Value, teacher: Value, what: str) -> None:
    if list(student.shape) != list(teacher.shape):
        raise ShapeMismatchError(
            f"{what} of the student have the shape {list(student.shape)}, those of the teacher {list(teacher.shape)}"
        )


def _with_outputs(graph: Graph, names: list[str]) -> Graph:
    """The part of a graph that gives these values."""
    twin = graph.needed_for(names)
    editor = Editor(graph.copy())
    twin.outputs = []
    for name in names:
        kind = editor.type(name)
        if kind is None:
            raise InputError(f"the type of {name!r} in graph {graph.name!r} is only known when running")
        twin.outputs.append(TensorInfo(name, type=TensorType(kind.dtype, kind.shape)))
    return twin
