"""What a student learns from its teacher: the settings of a distillation."""

from __future__ import annotations

import enum
import math
from dataclasses import field
from typing import TYPE_CHECKING

from pyflame_rt.graph.errors import InputError
from pyflame_rt.graph.records import dataclass

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["DistillationConfig", "DistillationLoss"]


class DistillationLoss(enum.Enum):
    """How the student is compared with the teacher.

    KL_DIVERGENCE compares softened classes, MSE and COSINE outputs and features as they are. ATTENTION compares where
    layers look, HINT features through a trained projection; both compare outputs as KL_DIVERGENCE does.
    """

    KL_DIVERGENCE = "kl_divergence"
    MSE = "mse"
    COSINE = "cosine"
    ATTENTION = "attention"
    HINT = "hint"


@dataclass
class DistillationConfig:
    """Settings of a distillation.

    The loss is ``alpha`` times what the teacher says (outputs, and features by their weights), plus ``1 - alpha``
    times the loss of the labels, where there are labels and ``use_hard_labels`` is set.

    Attributes:
        loss_type: how the student is compared with the teacher.
        temperature: by which scores are divided before they are compared as classes.
        alpha: share of the teacher in the loss.
        use_hard_labels: learn from labels too, where there are some.
        hard_label_weight: in place of ``1 - alpha``.
        feature_layers: layers of the teacher whose values are compared: values, nodes, or dotted prefixes of nodes.
        feature_weights: one for each of them; equal ones by default.
        attention_layers: layers whose attention is compared.
        student_layers: the layers of the student that belong to them, where names differ.
        normalize_features: divide the features of each sample by their length first.
        seed: of the projections between features of different width.

    Example:
        >>> DistillationConfig.soft_label(temperature=2.0).loss_type
        <DistillationLoss.KL_DIVERGENCE: 'kl_divergence'>
    """

    loss_type: DistillationLoss = DistillationLoss.KL_DIVERGENCE
    temperature: float = 4.0
    alpha: float = 0.7
    use_hard_labels: bool = True
    hard_label_weight: float | None = None
    feature_layers: list[str] = field(default_factory=list)
    feature_weights: list[float] = field(default_factory=list)
    attention_layers: list[str] = field(default_factory=list)
    student_layers: list[str] = field(default_factory=list)
    normalize_features: bool = False
    seed: int = 0

    @classmethod
    def soft_label(cls, temperature: float = 4.0) -> DistillationConfig:
        """Learn the teacher's classes, softened."""
        return cls(temperature=temperature)

    @classmethod
    def feature_distillation(cls, layers: Sequence[str]) -> DistillationConfig:
        """Learn outputs and the values of layers."""
        return cls(loss_type=DistillationLoss.MSE, feature_layers=list(layers))

    @classmethod
    def hint(cls, layers: Sequence[str]) -> DistillationConfig:
        """Learn classes, and the values of layers through trained projections."""
        return cls(loss_type=DistillationLoss.HINT, feature_layers=list(layers))

    @classmethod
    def attention_transfer(cls, layers: Sequence[str]) -> DistillationConfig:
        """Learn classes, and where layers look."""
        return cls(loss_type=DistillationLoss.ATTENTION, attention_layers=list(layers))

    @property
    def layers(self) -> list[str]:
        """The layers of the teacher that are compared."""
        return [*self.feature_layers, *self.attention_layers]

    def check(self) -> None:
        """Refuse settings that mean nothing."""
        if not isinstance(self.loss_type, DistillationLoss):
            raise InputError(
                f"loss_type must be one of {', '.join(map(str, DistillationLoss))}; got {self.loss_type!r}"
            )
        if not self.temperature > 0 or not math.isfinite(self.temperature):
            raise InputError(f"temperature must be positive, got {self.temperature!r}")
        if not 0 <= self.alpha <= 1:
            raise InputError(f"alpha must be from 0 to 1, got {self.alpha!r}")
        for name, given in (("feature_weights", self.feature_weights), ("student_layers", self.student_layers)):
            if given and len(given) != len(self.layers):
                raise InputError(f"{name} has {len(given)} entries for {len(self.layers)} layers")
        needs = {DistillationLoss.HINT: self.feature_layers, DistillationLoss.ATTENTION: self.attention_layers}
        if not needs.get(self.loss_type, True):
            raise InputError(f"{self.loss_type.name} compares layers, and none are named")
