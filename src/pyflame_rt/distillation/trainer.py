"""DistillationTrainer: trains a student to answer as its teacher does."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from pyflame_rt.distillation.config import DistillationConfig
from pyflame_rt.distillation.objective import DistillationObjective
from pyflame_rt.graph import Graph
from pyflame_rt.graph.arguments import expect
from pyflame_rt.graph.errors import InputError
from pyflame_rt.graph.records import dataclass
from pyflame_rt.loading import load_graph
from pyflame_rt.session import InferenceSession
from pyflame_rt.training import GraphTrainer, TrainingConfig, TrainingHistory
from pyflame_rt.training.data import rows_of

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Mapping

__all__ = ["DistillationResult", "DistillationTrainer"]


@dataclass
class DistillationResult:
    """What a distillation gives.

    Attributes:
        student_graph: the trained student.
        final_loss: the mean loss of the last epoch.
        best_loss: the smallest loss of an epoch, of the validation data where there is some.
        training_steps: steps that were made.
        loss_history: the loss of every step.
        teacher_size_bytes: bytes of the teacher's constants.
        student_size_bytes: bytes of the student's.
        history: everything that was measured.
    """

    student_graph: Graph
    final_loss: float
    best_loss: float
    training_steps: int
    loss_history: list[float]
    teacher_size_bytes: int
    student_size_bytes: int
    history: TrainingHistory

    def compression_ratio(self) -> float:
        """Bytes of the teacher over bytes of the student."""
        return self.teacher_size_bytes / self.student_size_bytes if self.student_size_bytes else 1.0

    def plot(self, path: str | os.PathLike[str] | None = None) -> str:
        """The loss and its terms over epochs as an SVG picture, written to a file where one is given."""
        return self.history.plot(path)


class DistillationTrainer:
    """Trains a student by what its teacher says.

    Args:
        teacher: a graph, a session, or a path to a model.
        student: a graph; or a model that gives its graph through ``__runtime_graph__``, such as a `pyflame` module,
            which has the trained weights in the end.
        config: what is compared.

    Example:
        >>> from pyflame_rt.distillation import StudentConfig, create_student_model
        >>> g = Graph("g")
        >>> rng = np.random.default_rng(0)
        >>> for name, shape in (("a", (4, 8)), ("b", (8, 2))):
        ...     _ = g.add_initializer(name, rng.normal(size=shape).astype(np.float32))
        >>> _ = g.add_input("x", ["N", 4]), g.add_node("1", "MatMul", ["x", "a"], ["h"])
        >>> _ = g.add_node("2", "MatMul", ["h", "b"], ["y"]), g.add_output("y", ["N", 2])
        >>> student = create_student_model(g, StudentConfig.half_size())
        >>> trainer = DistillationTrainer(g, student, DistillationConfig.soft_label(2.0))
        >>> trainer.set_dataset({"x": rng.normal(size=(64, 4)).astype(np.float32)})
        >>> trainer.set_training_config(TrainingConfig(learning_rate=0.05, num_epochs=20))
        >>> result = trainer.train()
        >>> result.loss_history[-1] < result.loss_history[0], result.compression_ratio()
        (True, 2.0)
    """

    def __init__(self, teacher: Any, student: Any, config: DistillationConfig | None = None) -> None:
        self.config = DistillationConfig() if config is None else config
        expect(self.config, DistillationConfig, "the config of a DistillationTrainer")
        self.config.check()
        self._teacher = _graph_of(teacher)
        self._model = None if isinstance(student, (Graph, InferenceSession)) else student
        if self._model is not None and not hasattr(type(student), "__runtime_graph__"):
            raise InputError(
                f"a student is a Graph, or a model that gives one (__runtime_graph__), such as a pyflame.nn.Module; "
                f"got {type(student).__name__}"
            )
        self._student: Graph | None = None if self._model is not None else _graph_of(student)
        self._data: Any = None
        self._validation: Any = None
        self._training = TrainingConfig()
        self._trainer: GraphTrainer | None = None

    # ------------------------------------------------------------------ settings

    def set_dataset(self, data: Any) -> None:
        """What to train with: an InMemoryDataset, ``(inputs, labels)``, a mapping of inputs, or many of these."""
        self._data = data

    def set_validation_dataset(self, data: Any) -> None:
        """What to measure with after every epoch."""
        self._validation = data

    def set_training_config(self, config: TrainingConfig) -> None:
        """How to train."""
        config.check()
        self._training, self._trainer = config, None

    # ------------------------------------------------------------------ training

    def train(self, callback: Callable[[dict[str, float]], Any] | None = None) -> DistillationResult:
        """Train for all epochs; the callback gets what was measured after each, and ends the training with False."""
        if self._data is None:
            raise InputError("there is nothing to train with: call set_dataset first")
        trainer = self._prepared(self._data)
        history = trainer.fit(self._data, self._validation, callback)
        self._give_back(trainer)
        return self._result(trainer, history)

    def train_step(self, inputs: Mapping[str, Any], labels: Any = None) -> dict[str, float]:
        """Train on one batch, for loops of one's own; the terms of the loss before the step."""
        data = (dict(inputs), labels)
        trainer = self._prepared(data)
        rows = rows_of(trainer.graph(), data)
        return trainer.step(rows.inputs, rows.labels)

    def evaluate(self, data: Any = None) -> float:
        """The loss over data, the validation data by default."""
        given = self._validation if data is None else data
        if given is None:
            raise InputError("there is nothing to evaluate with: give data, or call set_validation_dataset first")
        return self._prepared(given).evaluate(given)

    def get_student(self) -> Graph:
        """The student as it is now."""
        if self._trainer is not None:
            return self._trainer.graph()
        if self._student is None:
            raise InputError("the graph of the model is made from the first data: train first")
        return self._student.copy()

    def save_checkpoint(self, path: str | os.PathLike[str]) -> None:
        """Write everything needed to go on from here."""
        if self._trainer is None:
            raise InputError("there is nothing to write before the first step")
        self._trainer.save_checkpoint(path)

    def load_checkpoint(self, path: str | os.PathLike[str]) -> None:
        """Go on from a checkpoint of the same student; the next ``train`` does the epochs that are left."""
        if self._data is None:
            raise InputError("set the dataset before loading a checkpoint")
        self._prepared(self._data).load_checkpoint(path)

    def _prepared(self, data: Any) -> GraphTrainer:
        if self._trainer is None:
            config = self._training
            fixed = [info.shape[0] for info in self._teacher.required_inputs if info.shape]
            if fixed and isinstance(fixed[0], int):
                config = dataclasses.replace(config, batch_size=fixed[0])
            if self._student is None:
                self._student = self._model_graph(data, config)
            objective = DistillationObjective(self._teacher, self._student, self.config)
            self._trainer = GraphTrainer(self._student, objective, config)
        return self._trainer

    def _model_graph(self, data: Any, config: TrainingConfig) -> Graph:
        """The graph of a model for batches of the training's size, its inputs named as the teacher's."""
        rows = rows_of(self._teacher, data)
        size = rows.batch_size(config.batch_size)
        inputs, _ = next(rows.batches(size, None))
        model: Any = self._model
        graph: Graph = model.__runtime_graph__(tuple(inputs[info.name] for info in self._teacher.required_inputs))
        names = [info.name for info in graph.required_inputs]
        theirs = [info.name for info in self._teacher.required_inputs]
        if len(names) != len(theirs):
            raise InputError(f"the teacher has the inputs {theirs}, the student {names}")
        return _renamed(graph, dict(zip(names, theirs, strict=True)))

    def _give_back(self, trainer: GraphTrainer) -> None:
        """The trained weights, into the model that they came from."""
        if self._model is None:
            return
        state, trained = self._model.state_dict(), trainer.graph().initializers
        known = {name: trained[name].raw() for name in state if name in trained}
        lost = sorted(set(trainer.parameters) - set(known) - {n for n in trainer.parameters if n.startswith("hint::")})
        if lost:
            raise InputError(f"the model has no parameters for {', '.join(lost)}, which were trained")
        self._model.load_state_dict({**state, **known})

    def _result(self, trainer: GraphTrainer, history: TrainingHistory) -> DistillationResult:
        student = trainer.graph()
        return DistillationResult(
            student,
            history.epochs[-1] if history.epochs else float("nan"),
            history.best_loss,
            trainer.step_number,
            list(history.steps),
            _bytes(self._teacher),
            _bytes(student),
            history,
        )


def _graph_of(model: Any) -> Graph:
    if isinstance(model, InferenceSession):
        return model.graph()
    return load_graph(model)[0]


def _bytes(graph: Graph) -> int:
    return sum(tensor.size_bytes for tensor in graph.initializers.values())


def _renamed(graph: Graph, names: dict[str, str]) -> Graph:
    """The graph with other names of its inputs."""
    twin = graph.copy()
    for info in twin.inputs:
        info.name = names.get(info.name, info.name)
    twin.nodes = [node.replace(inputs=[names.get(n, n) for n in node.inputs]) for node in twin.nodes]
    twin.types = {names.get(name, name): kind for name, kind in twin.types.items()}
    return twin
