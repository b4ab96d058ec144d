"""Options with ONNX Runtime's defaults and enums."""

from __future__ import annotations

import warnings
from enum import Enum
from typing import Any

from pyflame_rt.graph.errors import InputError
from pyflame_rt.options import GraphOptimizationLevel, OptLevel
from pyflame_rt.options import RunOptions as _RunOptions
from pyflame_rt.options import SessionOptions as _SessionOptions

__all__ = ["ExecutionMode", "ExecutionOrder", "RunOptions", "SessionOptions"]


class ExecutionMode(Enum):
    """Whether branches of a graph may run at the same time.

    Example:
        >>> ExecutionMode.ORT_SEQUENTIAL.value
        0
    """

    ORT_SEQUENTIAL = 0
    ORT_PARALLEL = 1


class ExecutionOrder(Enum):
    """In which order nodes run that do not depend on each other.

    Example:
        >>> ExecutionOrder.DEFAULT.value
        0
    """

    DEFAULT = 0
    PRIORITY_BASED = 1
    MEMORY_EFFICIENT = 2


_MODES: dict[Any, str] = {ExecutionMode.ORT_SEQUENTIAL: "sequential", ExecutionMode.ORT_PARALLEL: "parallel"}
_MODE_SLOT: Any = _SessionOptions.__dict__["execution_mode"]


class SessionOptions(_SessionOptions):
    """Options of a session, as ONNX Runtime has them.

    Example:
        >>> SessionOptions().graph_optimization_level
        <GraphOptimizationLevel.ORT_ENABLE_ALL: 99>
    """

    __slots__ = ("_severity", "execution_order")

    def __init__(self) -> None:
        self._severity = -1
        self.execution_order = ExecutionOrder.DEFAULT
        super().__init__(optimization_level=OptLevel.ALL, profile_file_prefix="onnxruntime_profile_")

    @property
    def execution_mode(self) -> ExecutionMode:
        """Sequential or parallel."""
        stored = _MODE_SLOT.__get__(self)
        return next(mode for mode, name in _MODES.items() if name == stored)

    @execution_mode.setter
    def execution_mode(self, value: Any) -> None:
        if value not in ("sequential", "parallel") and not isinstance(value, ExecutionMode):
            raise TypeError(f"execution_mode takes an ExecutionMode, got {value!r}")
        _MODE_SLOT.__set__(self, _MODES.get(value, value))

    @property
    def graph_optimization_level(self) -> GraphOptimizationLevel:
        """How much the graph is optimised."""
        return super().graph_optimization_level

    @graph_optimization_level.setter
    def graph_optimization_level(self, value: object) -> None:
        if not isinstance(value, GraphOptimizationLevel):
            raise TypeError(f"graph_optimization_level takes a GraphOptimizationLevel, got {value!r}")
        self.optimization_level = OptLevel.of(value)

    @property
    def log_severity_level(self) -> int:
        """0 verbose to 4 fatal; -1 for the default."""
        return self._severity

    @log_severity_level.setter
    def log_severity_level(self, value: int) -> None:
        _SessionOptions.log_severity_level.fset(self, value)  # type: ignore[misc]
        self._severity = value

    def add_session_config_entry(self, key: str, value: str) -> None:
        """Set a configuration entry; one without counterpart here is kept, with a warning."""
        _add_entry(self, key, value)

    def native(self) -> _SessionOptions:
        """The same settings in our form."""
        twin = _SessionOptions()
        for name in _SessionOptions.__slots__:
            setattr(twin, name, getattr(self, name))
        twin.execution_mode = _MODE_SLOT.__get__(self)
        return twin.copy()


class RunOptions(_RunOptions):
    """Options of a run, as ONNX Runtime has them.

    Example:
        >>> RunOptions().log_severity_level
        -1
    """

    __slots__ = ()

    def add_run_config_entry(self, key: str, value: str) -> None:
        """Set a configuration entry; one without counterpart here is kept, with a warning."""
        _add_entry(self, key, value)


def _add_entry(options: Any, key: str, value: str) -> None:
    try:
        options._add_config(key, value, "configuration")
    except InputError as error:
        warnings.warn(str(error), UserWarning, stacklevel=3)
        options._config[key] = value
