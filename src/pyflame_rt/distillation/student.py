"""Students: a teacher with fewer channels, heads and layers, which begin with the teacher's weights."""

from __future__ import annotations

import warnings

import numpy as np

from pyflame_rt.distillation.depth import blocks_of, drop_blocks
from pyflame_rt.graph import Graph, Tensor
from pyflame_rt.graph.arguments import expect
from pyflame_rt.graph.errors import InputError
from pyflame_rt.graph.records import dataclass
from pyflame_rt.ops.onnx.norm import BatchNormalization
from pyflame_rt.pruning import PruningConfig, PruningWarning
from pyflame_rt.pruning.coupling import Family, analyse
from pyflame_rt.pruning.narrow import narrow
from pyflame_rt.pruning.structured import choose
from pyflame_rt.training import trainable

__all__ = ["StudentConfig", "create_student_model"]


@dataclass
class StudentConfig:
    """How large a student is, compared with its teacher.

    Attributes:
        hidden_dim_ratio: share of the channels that stay.
        num_layers_ratio: share of the layers that stay, of those that could be left out.
        num_heads_ratio: share of the heads of each attention that stay.
        student_init: ``"teacher"`` begins with the weights of the channels that stay, those worth most;
            ``"random"`` with new ones.
        round_to: keep a multiple of so many channels.
        seed: of new weights.

    Example:
        >>> StudentConfig.quarter_size().hidden_dim_ratio
        0.25
    """

    hidden_dim_ratio: float = 1.0
    num_layers_ratio: float = 1.0
    num_heads_ratio: float = 1.0
    student_init: str = "teacher"
    round_to: int = 1
    seed: int = 0

    @classmethod
    def half_size(cls) -> StudentConfig:
        """Half of the channels and heads, all layers."""
        return cls(hidden_dim_ratio=0.5, num_heads_ratio=0.5)

    @classmethod
    def quarter_size(cls) -> StudentConfig:
        """A quarter of the channels and heads, all layers."""
        return cls(hidden_dim_ratio=0.25, num_heads_ratio=0.25)

    def check(self) -> None:
        """Refuse settings that mean nothing."""
        for name in ("hidden_dim_ratio", "num_layers_ratio", "num_heads_ratio"):
            given = getattr(self, name)
            if not isinstance(given, (int, float)) or not 0 < given <= 1:
                raise InputError(f"{name} must be above 0 and at most 1, got {given!r}")
        if self.student_init not in ("teacher", "random"):
            raise InputError(f"student_init is 'teacher' or 'random', got {self.student_init!r}")


def create_student_model(teacher: Graph, config: StudentConfig | None = None) -> Graph:
    """A smaller copy of a teacher, with the same inputs and outputs.

    Channels that are coupled go together, as in structured pruning; layers can be left out where what goes in has the
    shape of what comes out. A PruningWarning tells of a ratio that nothing in the model can follow.

    Example:
        >>> g = Graph("g")
        >>> _ = g.add_input("x", ["N", 4]), g.add_initializer("a", np.ones((4, 8), np.float32))
        >>> _ = g.add_initializer("b", np.ones((8, 2), np.float32)), g.add_node("1", "MatMul", ["x", "a"], ["h"])
        >>> _ = g.add_node("2", "MatMul", ["h", "b"], ["y"]), g.add_output("y", ["N", 2])
        >>> create_student_model(g, StudentConfig.half_size()).get_initializer("a").shape
        [4, 4]
    """
    chosen = StudentConfig() if config is None else config
    expect(chosen, StudentConfig, "the config of a student")
    chosen.check()
    if not isinstance(teacher, Graph):
        raise InputError(f"a teacher is a Graph (session.graph()), got {type(teacher).__name__}")
    shorter = drop_blocks(teacher, chosen.num_layers_ratio)
    if chosen.num_layers_ratio < 1 and len(shorter.nodes) == len(teacher.nodes):
        _tell("num_layers_ratio", f"there are {len(blocks_of(teacher))} layers that keep the shape of what goes in")
    student = _narrowed(shorter, chosen)
    return _drawn(student, chosen.seed) if chosen.student_init == "random" else student


def _tell(name: str, why: str) -> None:
    warnings.warn(f"{name} changes nothing: {why}", PruningWarning, stacklevel=4)


def _narrowed(graph: Graph, config: StudentConfig) -> Graph:
    coupling, families = analyse(graph)
    able = [family for family in families if not family.pinned]

    def share(family: Family) -> float:
        return 1 - (config.num_heads_ratio if family.heads else config.hidden_dim_ratio)

    settings = PruningConfig.structured_pruning(0.5)
    settings.round_to = config.round_to
    choice = choose(coupling, able, settings, 0.0, share=share)
    if config.hidden_dim_ratio < 1 and not any(len(f.channels) > 1 and f.owners and not f.heads for f in able):
        _tell("hidden_dim_ratio", "no channels can be removed without changing the outputs")
    return narrow(coupling, choice.channels())


def _drawn(graph: Graph, seed: int) -> Graph:
    """New weights: normal ones scaled by what a layer reads, vectors as they are when a layer is made."""
    twin, rng = graph.copy(), np.random.default_rng(seed)
    norms = {name for node in graph.nodes if node.op_type.endswith("Normalization") for name in node.inputs[1:2]}
    tracked = [node.inputs[3:5] for node in graph.nodes if node.full_name == BatchNormalization.name]
    for name in trainable(graph):
        shape = graph.initializers[name].raw().shape
        reads = max(1, int(np.prod(shape[1:])))
        made = rng.normal(size=shape) * np.sqrt(2 / reads) if len(shape) > 1 else np.full(shape, float(name in norms))
        twin.initializers[name] = Tensor(made.astype(np.float32))
    for names in tracked:
        for name, value in zip(names, (0.0, 1.0), strict=True):
            shape = graph.initializers[name].raw().shape
            twin.initializers[name] = Tensor(np.full(shape, value, np.float32))
    return twin
