"""Pruning: models with fewer weights, channels, heads or blocks."""

from pyflame_rt.pruning import layout_rules as _layout_rules  # noqa: F401 - registers its rules
from pyflame_rt.pruning.config import PruningConfig, PruningCriterion, PruningGranularity, PruningSchedule
from pyflame_rt.pruning.functional import block_prune, magnitude_prune, nm_sparsity_prune, structured_prune
from pyflame_rt.pruning.masks import PruningMask, apply_masks
from pyflame_rt.pruning.pruner import WeightPruner
from pyflame_rt.pruning.sensitivity import SensitivityReport, sensitivity_scan
from pyflame_rt.pruning.sparse import SparseFormat, SparseTensor, sparse_add, sparse_matmul
from pyflame_rt.pruning.stats import LayerSparsity, PruningStats, analyze_sparsity
from pyflame_rt.pruning.structured import PruningWarning
from pyflame_rt.pruning.tuning import FineTuned, fine_tune, zero_masks
from pyflame_rt.training import TrainingConfig

__all__ = [
    "FineTuned",
    "LayerSparsity",
    "PruningConfig",
    "PruningCriterion",
    "PruningGranularity",
    "PruningMask",
    "PruningSchedule",
    "PruningStats",
    "PruningWarning",
    "SensitivityReport",
    "SparseFormat",
    "SparseTensor",
    "TrainingConfig",
    "WeightPruner",
    "analyze_sparsity",
    "apply_masks",
    "block_prune",
    "fine_tune",
    "magnitude_prune",
    "nm_sparsity_prune",
    "sensitivity_scan",
    "sparse_add",
    "sparse_matmul",
    "structured_prune",
    "zero_masks",
]
