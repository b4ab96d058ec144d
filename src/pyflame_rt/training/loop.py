"""Training a graph: epochs over one compiled step, with schedules, early stopping, checkpoints and masks."""

from __future__ import annotations

import math
import os
from contextlib import AbstractContextManager, nullcontext
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from pyflame_rt.curves import draw
from pyflame_rt.graph import Graph, Shape, Tensor, TensorInfo, TensorType
from pyflame_rt.graph.arguments import expect
from pyflame_rt.graph.errors import InputError
from pyflame_rt.graph.named_arguments import names_arguments
from pyflame_rt.graph.records import dataclass
from pyflame_rt.session import InferenceSession
from pyflame_rt.training.checkpoints import read_checkpoint, write_checkpoint
from pyflame_rt.training.config import TrainingConfig
from pyflame_rt.training.data import Rows, rows_of
from pyflame_rt.training.losses import cross_entropy, logits_of, named_loss
from pyflame_rt.training.step import StepGraphs, concrete, step_graphs, trainable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pyflame_rt.ops.core.value import Value
    from pyflame_rt.training.extending import Extension

__all__ = ["GraphTrainer", "Mask", "Objective", "SupervisedLoss", "TrainingHistory"]

Array = np.ndarray[Any, Any]


class Mask(Protocol):
    """What stays of a parameter, such as a PruningMask."""

    def numpy(self) -> Array:
        """True where an element stays."""
        ...

    def apply(self, tensor: Any) -> Any:
        """The parameter with zeros elsewhere."""
        ...


class Objective(Protocol):
    """What a training makes smaller."""

    def extras(self, inputs: Mapping[str, Array], labels: Array | None) -> dict[str, Array]:
        """Further inputs of a step, for a batch."""
        ...

    def build(self, graph: Extension, extras: Mapping[str, Value], added: dict[str, Array]) -> dict[str, Value]:
        """Append the loss; its terms by name, the whole of it first."""
        ...


class SupervisedLoss:
    """A loss of a graph's outputs and labels.

    Args:
        outputs: names of the outputs that the loss is called with, before the labels.
        loss: ``"cross_entropy"`` (of the scores before a last Softmax), ``"mse"``, or a function of values.
    """

    @names_arguments
    def __init__(self, outputs: Sequence[str], loss: str | Callable[..., Value] = "cross_entropy") -> None:
        self._outputs, self._loss = list(outputs), named_loss(loss)
        if isinstance(loss, str) and len(self._outputs) != 1:
            raise InputError(f"{loss} compares one output with labels, there are {self._outputs}: give a function")

    def extras(self, inputs: Mapping[str, Array], labels: Array | None) -> dict[str, Array]:  # noqa: ARG002
        """The labels."""
        if labels is None:
            raise InputError("a loss of outputs and labels needs labels: give data as (inputs, labels)")
        return {"labels": labels}

    def build(self, graph: Extension, extras: Mapping[str, Value], added: dict[str, Array]) -> dict[str, Value]:  # noqa: ARG002
        """Append it."""
        names = self._outputs
        if self._loss is cross_entropy:
            names = [logits_of(graph.graph, name) for name in names]
        return {"loss": self._loss(*(graph.value(name) for name in names), extras["labels"])}


@dataclass
class TrainingHistory:
    """What a training measured.

    Attributes:
        steps: the loss of every step.
        epochs: the mean loss of every epoch.
        validation: the loss of the validation data after every epoch, where there is some.
        terms: the parts of the loss, epoch by epoch.
        best_loss: the smallest of those that early stopping watches.
        best_epoch: the epoch it belongs to (the first is 0).
        stopped_early: whether training ended before all epochs were done.
    """

    steps: list[float] = field(default_factory=list)
    epochs: list[float] = field(default_factory=list)
    validation: list[float] = field(default_factory=list)
    terms: dict[str, list[float]] = field(default_factory=dict)
    best_loss: float = math.inf
    best_epoch: int = -1
    stopped_early: bool = False

    def plot(self, path: str | os.PathLike[str] | None = None) -> str:
        """The curves as an SVG picture, written to a file where one is given."""
        curves = {name: list(enumerate(values, 1)) for name, values in self.terms.items() if len(self.terms) > 1}
        curves = {"loss": list(enumerate(self.epochs, 1)), **curves}
        if self.validation:
            curves["validation"] = list(enumerate(self.validation, 1))
        picture = draw({name: [(float(x), y) for x, y in curve] for name, curve in curves.items()})
        if path is not None:
            Path(path).write_text(picture, "utf-8")
        return picture


class GraphTrainer:
    """Trains the parameters of a graph; the graph that was given stays as it is.

    Args:
        graph: what is trained, in the form that is used for inference.
        objective: what is made smaller.
        config: the settings.
        parameters: names of what is trained; all that look like parameters by default.
        masks: what stays of single parameters; the rest is zero after every step.

    Example:
        >>> from pyflame_rt.graph import Graph
        >>> g = Graph("line")
        >>> _ = g.add_input("x", ["N", 3]), g.add_initializer("w", np.zeros((3, 1), np.float32))
        >>> _ = g.add_node("fc", "MatMul", ["x", "w"], ["y"]), g.add_output("y", ["N", 1])
        >>> x = np.random.default_rng(0).normal(size=(64, 3)).astype(np.float32)
        >>> config = TrainingConfig(learning_rate=0.2, num_epochs=40, weight_decay=0.0)
        >>> trainer = GraphTrainer(g, SupervisedLoss(["y"], "mse"), config)
        >>> history = trainer.fit((x, x @ np.array([[1.0], [2.0], [3.0]], np.float32)))
        >>> trainer.graph().get_initializer("w").numpy().round(1).ravel().tolist()
        [1.0, 2.0, 3.0]
    """

    @names_arguments
    def __init__(
        self,
        graph: Graph,
        objective: Objective,
        config: TrainingConfig | None = None,
        *,
        parameters: Sequence[str] | None = None,
        masks: Mapping[str, Mask] | None = None,
    ) -> None:
        self.config = TrainingConfig() if config is None else config
        expect(graph, Graph, "the graph of a GraphTrainer")
        expect(self.config, TrainingConfig, "the config of a GraphTrainer")
        self.config.check()
        self._graph, self._objective = graph, objective
        names = trainable(graph) if parameters is None else list(parameters)
        if not names:
            raise InputError(f"graph {graph.name!r} has no parameters to train")
        self._names = names
        self.parameters: dict[str, Array] = {name: _copied(graph.get_initializer(name)) for name in names}
        self.masks: dict[str, Mask] = {}
        self.step_number = 0
        self.history = TrainingHistory()
        self._state: dict[str, Array] = {}
        self._graphs: StepGraphs | None = None
        self._plans: dict[Any, StepGraphs] = {}
        self._sessions: dict[Any, InferenceSession] = {}
        self.set_masks(masks or {})

    # ------------------------------------------------------------------ state

    def set_masks(self, masks: Mapping[str, Mask]) -> None:
        """Mask parameters from now on; names that are masked already get their new masks."""
        for name, mask in masks.items():
            if name not in self.parameters:
                continue
            self.parameters[name] = mask.apply(self.parameters[name])
        before, self.masks = set(self.masks), {**self.masks, **{n: m for n, m in masks.items() if n in self.parameters}}
        if set(self.masks) != before:
            self._plans, self._sessions = {}, {}

    def graph(self) -> Graph:
        """The graph with the parameters as they are now."""
        twin = self._graph.copy()
        twin.origin = None
        own = {name: self.parameters[name] for name in self._names}
        for name, array in {**own, **self._statistics()}.items():
            twin.initializers[name] = Tensor(array.copy())
        return twin

    def _statistics(self) -> dict[str, Array]:
        return {n: self._state[n] for n in (self._graphs.statistics if self._graphs else ()) if n in self._state}

    def save_checkpoint(self, path: str | os.PathLike[str]) -> None:
        """Write everything needed to go on from here: parameters, the optimizer's state, the number of steps."""
        arrays = {
            **{f"p::{n}": a for n, a in self.parameters.items()},
            **{f"s::{n}": a for n, a in self._state.items()},
        }
        write_checkpoint(path, arrays, {"step": self.step_number, "graph": self._graph.fingerprint()})

    def load_checkpoint(self, path: str | os.PathLike[str]) -> None:
        """Go on from a checkpoint of the same graph."""
        arrays, facts = read_checkpoint(path)
        if facts.get("graph") != self._graph.fingerprint():
            raise InputError(f"{os.fspath(path)!r} is a checkpoint of another graph than {self._graph.name!r}")
        self.parameters = {n[3:]: a for n, a in arrays.items() if n.startswith("p::")}
        self._state = {n[3:]: a for n, a in arrays.items() if n.startswith("s::")}
        self.step_number = int(facts["step"])
        self.set_masks(self.masks)

    # ------------------------------------------------------------------ one step

    def step(
        self, inputs: Mapping[str, Array], labels: Array | None = None, *, rate: float | None = None
    ) -> dict[str, float]:
        """Train on one batch; the terms of the loss before it.

        Args:
            inputs: the feed of the batch.
            labels: its labels.
            rate: the learning rate; the config's by default.
        """
        extras = self._objective.extras(inputs, labels)
        graphs = self._prepared(inputs, extras)
        self.step_number += 1
        feed: dict[str, Any] = {**inputs, **extras, **self.parameters, **self._state}
        feed["lr"] = np.float32(self.config.learning_rate if rate is None else rate)
        feed["step"] = np.int64(self.step_number)
        feed |= {f"mask::{name}": mask.numpy().astype(np.float32) for name, mask in self.masks.items()}
        session = self._session(graphs.step)
        names = [info.name for info in graphs.step.outputs]
        results = dict(zip(names, session.run(None, feed), strict=True))
        for name in (*graphs.parameters, *graphs.slots, *graphs.statistics):
            kept = self.parameters if name in graphs.parameters else self._state
            kept[name] = results[f"new::{name}"]
        return {name: float(results[f"loss::{name}"]) for name in graphs.terms}

    def _prepared(self, inputs: Mapping[str, Array], extras: Mapping[str, Array]) -> StepGraphs:
        shapes = {name: array.shape for name, array in (*inputs.items(), *extras.items())}
        key = tuple(sorted(shapes.items()))
        if key not in self._plans:
            self._plans[key] = self._build(shapes, extras)
            self._fill(self._plans[key])
        self._graphs = self._plans[key]
        return self._graphs

    def _build(self, shapes: Mapping[str, Any], extras: Mapping[str, Array]) -> StepGraphs:
        def build(graph: Extension, added: dict[str, Array]) -> dict[str, Value]:
            declared = {
                name: graph.declare(name, TensorType(_kind(array), Shape(array.shape)))
                for name, array in extras.items()
            }
            return self._objective.build(graph, declared, added)

        own = {name: shape for name, shape in shapes.items() if name not in extras}
        return step_graphs(concrete(self._graph, own), build, self.config, self._names, self.masks)

    def _fill(self, graphs: StepGraphs) -> None:
        """First values of what is not there yet."""
        for name, array in graphs.start.items():
            self.parameters.setdefault(name, array)
        for slot, name in graphs.slots.items():
            self._state.setdefault(slot, np.zeros_like(self.parameters[name]))
        for name in graphs.statistics:
            self._state.setdefault(name, _copied(self._graph.get_initializer(name)))

    def _session(self, graph: Graph) -> InferenceSession:
        if id(graph) not in self._sessions:  # the plans keep it alive
            self._sessions[id(graph)] = InferenceSession(graph)
        return self._sessions[id(graph)]

    def gradients(self, data: Any) -> dict[str, Array]:
        """The mean gradient of the loss for every parameter, over all batches of the data."""
        from pyflame_rt.autodiff import gradient

        rows = rows_of(self._graph, data)
        sums: dict[str, Array] = {}
        session, count = None, 0
        for inputs, labels in rows.batches(rows.batch_size(self.config.batch_size), None):
            extras = self._objective.extras(inputs, labels)
            graphs = self._prepared(inputs, extras)
            if session is None:
                whole = f"loss::{graphs.terms[0]}"
                session = InferenceSession(gradient(graphs.loss, [whole], self._names))
            _, *found = session.run(None, {**inputs, **extras, **self.parameters})
            for name, array in zip(self._names, found, strict=True):
                sums[name] = sums[name] + array if name in sums else array.astype(np.float64)
            count += 1
        return {name: array / count for name, array in sums.items()}

    def evaluate(self, data: Any) -> float:
        """The mean loss over data, without training."""
        rows = rows_of(self._graph, data)
        size = rows.batch_size(self.config.batch_size)
        fixed = rows.fixed_batch is not None
        total = count = 0.0
        for inputs, labels in rows.batches(size, None) if fixed else rows.plain_batches(size):
            extras = self._objective.extras(inputs, labels)
            graphs = self._prepared(inputs, extras)
            session = self._session(graphs.loss)
            found = session.run([f"loss::{graphs.terms[0]}"], {**inputs, **extras, **self.parameters})[0]
            number = len(next(iter(inputs.values())))
            total, count = total + float(found) * number, count + number
        return total / count

    # ------------------------------------------------------------------ many

    def fit(
        self,
        data: Any,
        validation: Any = None,
        callback: Callable[[dict[str, float]], Any] | None = None,
        before_step: Callable[[int], None] | None = None,
    ) -> TrainingHistory:
        """Train for all epochs.

        Args:
            data: an InMemoryDataset, ``(inputs, labels)``, a mapping of inputs, or an iterable of these.
            validation: the same, to measure after every epoch.
            callback: called after every epoch with what was measured; False ends the training.
            before_step: called with the number of each step before it is made.
        """
        rows, config = rows_of(self._graph, data), self.config
        size = rows.batch_size(config.batch_size)
        per_epoch = -(-len(rows) // size)
        total, rng = per_epoch * config.num_epochs, np.random.default_rng(config.seed)
        checks = None if validation is None else rows_of(self._graph, validation)
        best = dict(self.parameters)
        first = min(self.step_number // per_epoch, config.num_epochs)
        for _ in range(first if config.shuffle else 0):
            rng.permutation(len(rows))
        with self._shown(total) as tell:
            for epoch in range(first, config.num_epochs):
                logs = self._epoch(rows, size, rng, total, before_step, tell)
                logs |= {} if checks is None else {"validation": self.evaluate(checks)}
                if self._note(logs, epoch):
                    best = dict(self.parameters)
                wanted = callback(logs) if callback is not None else None
                if wanted is False or self._gives_up(epoch):
                    self.history.stopped_early = True
                    break
        if config.early_stopping_patience and self.history.best_epoch >= 0:
            self.parameters = best
        return self.history

    def _epoch(
        self, rows: Rows, size: int, rng: Any, total: int, before_step: Callable[[int], None] | None, tell: Any
    ) -> dict[str, float]:
        sums: dict[str, float] = {}
        count = 0
        for inputs, labels in rows.batches(size, rng if self.config.shuffle else None):
            if before_step is not None:
                before_step(self.step_number)
            terms = self.step(inputs, labels, rate=self.config.rate_at(self.step_number, total))
            whole = next(iter(terms.values()))
            if not math.isfinite(whole):
                raise InputError(
                    f"the loss is {whole} at step {self.step_number}: lower learning_rate "
                    f"({self.config.learning_rate}), or look for values in the data that are not finite"
                )
            self.history.steps.append(whole)
            sums, count = {n: sums.get(n, 0.0) + v for n, v in terms.items()}, count + 1
            tell(whole)
            self._checkpoint()
        return {name: value / count for name, value in sums.items()}

    def _note(self, logs: dict[str, float], epoch: int) -> bool:
        """Write down an epoch; whether it is the best so far."""
        names = [name for name in logs if name != "validation"]
        self.history.epochs.append(logs[names[0]])
        for name in names:
            self.history.terms.setdefault(name, []).append(logs[name])
        if "validation" in logs:
            self.history.validation.append(logs["validation"])
        watched = logs.get("validation", logs[names[0]])
        if watched < self.history.best_loss:
            self.history.best_loss, self.history.best_epoch = watched, epoch
            return True
        return False

    def _gives_up(self, epoch: int) -> bool:
        patience = self.config.early_stopping_patience
        return bool(patience) and epoch - self.history.best_epoch >= patience

    def _checkpoint(self) -> None:
        config = self.config
        if config.checkpoint_dir is None or not config.checkpoint_frequency:
            return
        if self.step_number % config.checkpoint_frequency == 0:
            folder = Path(config.checkpoint_dir)
            folder.mkdir(parents=True, exist_ok=True)
            self.save_checkpoint(folder / f"step_{self.step_number:08d}.npz")

    def _shown(self, total: int) -> AbstractContextManager[Callable[[float], None]]:
        if not self.config.progress:
            return nullcontext(lambda loss: None)  # noqa: ARG005
        from pyflame_rt.training.progress import progress_bar

        return progress_bar(total, self.step_number)


def _copied(tensor: Tensor) -> Array:
    return np.array(tensor.raw())


def _kind(array: Array) -> Any:
    return TensorInfo("", array.shape, Tensor(np.asarray(array)).dtype).dtype
