"""Look into programs: what takes time, what values are, what a graph looks like."""

from pyflame.tools.debugger import Breakpoint, BreakpointHit, Hit, PyFlameDebugger, Watched, tap
from pyflame.tools.inspector import TensorInspector
from pyflame.tools.profile_result import OperationStats, ProfileEvent, ProfileResult
from pyflame.tools.profiler import Profiler, disable_profiling, enable_profiling, get_profiler, profile
