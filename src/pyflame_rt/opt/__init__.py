"""The optimiser: passes over graphs, made of rules, run by a manager.

>>> from pyflame_rt import opt
>>> opt.PassManager.create_default(opt.OptLevel.BASIC).list_passes()
['ConstantFoldingPass', 'SimplificationPass', 'DeadCodeEliminationPass']
"""

from pyflame_rt.opt.base import Pass, PassResult, PassStats, Rewrite
from pyflame_rt.opt.config import (
    ConstantFoldingConfig,
    CSEConfig,
    DCEConfig,
    FusionConfig,
    Layout,
    LayoutConfig,
    PassManagerConfig,
)
from pyflame_rt.opt.constant_folding import ConstantFoldingPass, fold_constants
from pyflame_rt.opt.cse import CSEPass, eliminate_common_subexpressions
from pyflame_rt.opt.dead_code import DeadCodeEliminationPass, eliminate_dead_code
from pyflame_rt.opt.fusion import OperatorFusionPass, fuse_operators
from pyflame_rt.opt.layout import LayoutOptimizationPass, optimize_layout
from pyflame_rt.opt.manager import PassManager, optimize, register_pass
from pyflame_rt.opt.pattern import Pattern, PatternEdge, PatternMatch, PatternMatcher, PatternNode
from pyflame_rt.opt.rule import all_rules
from pyflame_rt.opt.simplification import SimplificationPass, simplify
from pyflame_rt.options import OptLevel

__all__ = [
    "CSEConfig",
    "CSEPass",
    "ConstantFoldingConfig",
    "ConstantFoldingPass",
    "DCEConfig",
    "DeadCodeEliminationPass",
    "FusionConfig",
    "Layout",
    "LayoutConfig",
    "LayoutOptimizationPass",
    "OperatorFusionPass",
    "OptLevel",
    "Pass",
    "PassManager",
    "PassManagerConfig",
    "PassResult",
    "PassStats",
    "Pattern",
    "PatternEdge",
    "PatternMatch",
    "PatternMatcher",
    "PatternNode",
    "Rewrite",
    "SimplificationPass",
    "all_rules",
    "eliminate_common_subexpressions",
    "eliminate_dead_code",
    "fold_constants",
    "fuse_operators",
    "optimize",
    "optimize_layout",
    "register_pass",
    "simplify",
]
