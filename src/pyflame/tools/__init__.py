"""Look into programs: what takes time, what values are, what a graph looks like."""

from pyflame.tools.debugger import Breakpoint, BreakpointHit, Hit, PyFlameDebugger, Watched, tap
from pyflame.tools.inspector import TensorInspector
from pyflame.tools.profile_result import OperationStats, ProfileEvent, ProfileResult
from pyflame.tools.profiler import Profiler, disable_profiling, enable_profiling, get_profiler, profile
from pyflame.tools.visualization import GraphVisualizer, visualize_graph, visualize_model

__all__ = [
    "Breakpoint",
    "BreakpointHit",
    "GraphVisualizer",
    "Hit",
    "OperationStats",
    "ProfileEvent",
    "ProfileResult",
    "Profiler",
    "PyFlameDebugger",
    "TensorInspector",
    "Watched",
    "disable_profiling",
    "enable_profiling",
    "get_profiler",
    "profile",
    "tap",
    "visualize_graph",
    "visualize_model",
]
