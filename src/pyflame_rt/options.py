"""Options of sessions and runs, under our names and ONNX Runtime's."""

from __future__ import annotations

import copy
import functools
import os
from dataclasses import field
from enum import Enum
from typing import TYPE_CHECKING, Any

import numpy as np

from pyflame_rt.graph.errors import InputError
from pyflame_rt.graph.names import AliasedEnum
from pyflame_rt.graph.records import dataclass
from pyflame_rt.logs import LEVELS, SEVERITIES

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

__all__ = [
    "CompileOptions",
    "GraphOptimizationLevel",
    "ModelMetadata",
    "OptLevel",
    "RunOptions",
    "SessionOptions",
]

DEVICES = ("cpu", "wse", "wse2", "wse3")
EXECUTION_MODES = ("sequential", "parallel")
MAX_THREADS = 256


@functools.total_ordering
class OptLevel(AliasedEnum):
    """How much a graph is optimised before it runs.

    Example:
        >>> OptLevel.Basic is OptLevel.BASIC, OptLevel.ALL > OptLevel.EXTENDED, int(OptLevel.ALL)
        (True, True, 3)
    """

    NONE = 0
    BASIC = 1
    EXTENDED = 2
    ALL = 3

    def __int__(self) -> int:
        return self.value

    __index__ = __int__

    def __lt__(self, other: object) -> bool:
        if isinstance(other, (OptLevel, int)):
            return self.value < int(other)
        return NotImplemented

    @classmethod
    def of(cls, level: object) -> OptLevel:
        """The member for a member, a number or a name.

        Example:
            >>> OptLevel.of(2), OptLevel.of("all")
            (<OptLevel.EXTENDED: 2>, <OptLevel.ALL: 3>)
        """
        if isinstance(level, GraphOptimizationLevel):
            return _FROM_ORT[level]
        try:
            return cls[level.upper()] if isinstance(level, str) else cls(level)
        except (KeyError, ValueError):
            names = ", ".join(cls.__members__)
            raise InputError(f"optimization level {level!r} is not known. Levels: {names}") from None


class GraphOptimizationLevel(Enum):
    """ONNX Runtime's levels.

    Example:
        >>> OptLevel.of(GraphOptimizationLevel.ORT_ENABLE_BASIC)
        <OptLevel.BASIC: 1>
    """

    ORT_DISABLE_ALL = 0
    ORT_ENABLE_BASIC = 1
    ORT_ENABLE_EXTENDED = 2
    ORT_ENABLE_LAYOUT = 3
    ORT_ENABLE_ALL = 99

    def __int__(self) -> int:
        return self.value


_FROM_ORT = {
    GraphOptimizationLevel.ORT_DISABLE_ALL: OptLevel.NONE,
    GraphOptimizationLevel.ORT_ENABLE_BASIC: OptLevel.BASIC,
    GraphOptimizationLevel.ORT_ENABLE_EXTENDED: OptLevel.EXTENDED,
    GraphOptimizationLevel.ORT_ENABLE_LAYOUT: OptLevel.ALL,
    GraphOptimizationLevel.ORT_ENABLE_ALL: OptLevel.ALL,
}

# Keys of ONNX Runtime that choose between ways of getting the same numbers.
SPEED_ONLY_KEYS = {  # with the value that means the default
    "session.disable_prepacking": "0",
    "session.use_env_allocators": "0",
    "session.use_device_allocator_for_initializers": "0",
    "session.use_memory_efficient_weight_loading": "0",
    "session.inter_op.allow_spinning": "1",
    "session.intra_op.allow_spinning": "1",
    "session.force_spinning_stop": "0",
    "session.intra_op_thread_affinities": "",
    "session.dynamic_block_base": "0",
    "session.load_model_format": "ONNX",
    "session.use_ort_model_bytes_directly": "0",
    "session.use_ort_model_bytes_for_initializers": "0",
    "session.record_ep_graph_assignment_info": "0",
    "memory.enable_memory_arena_shrinkage": "",
    "ep.share_ep_contexts": "0",
}
NO_FALLBACK = "session.disable_cpu_ep_fallback"  # "1": the first provider runs the whole model, or there is no session


class _ConfigEntries:
    """String settings by key, as ONNX Runtime has them."""

    __slots__ = ()
    _config: dict[str, str]

    def _add_config(self, key: str, value: str, kind: str) -> None:
        if key not in SPEED_ONLY_KEYS and key != NO_FALLBACK:
            raise InputError(
                f"{kind} {key!r} has no counterpart here, and would change more than speed. "
                f"Accepted: {', '.join((NO_FALLBACK, *SPEED_ONLY_KEYS))}"
            )
        self._config[str(key)] = str(value)

    def _get_config(self, key: str, owner: str) -> str:
        try:
            return self._config[key]
        except KeyError:
            raise InputError(f"{owner} does not have configuration with key: {key}") from None


_SESSION_DEFAULTS: dict[str, Any] = {
    "device": "cpu",
    "num_threads": 0,
    "enable_profiling": False,
    "execution_mode": "sequential",
    "optimization_level": OptLevel.EXTENDED,
    "verbose_optimization": False,
    "disabled_optimizers": (),
    "log_level": "warning",
    "quantization": None,
    "calibration_data": None,
    "calibration_batches": 100,
    "memory_limit": 0,
    "strict_math_mode": False,
    "fast_math": False,
    "immutable_model": False,
    "optimization_timeout_ms": 30_000,
    "cache": None,
    "checked": False,
    "verify": False,
    "plan_cache_size": 32,
    "tune": False,
    "quick_start": True,
    "profile_file_prefix": "pyflame_rt_profile_",
    "inter_op_num_threads": 0,
    "log_verbosity_level": 0,
    "logid": "",
    "optimized_model_filepath": "",
    "enable_cpu_mem_arena": True,
    "enable_mem_pattern": True,
    "enable_mem_reuse": True,
    "use_deterministic_compute": False,
    "use_per_session_threads": True,
}
_FLAGS = [name for name, value in _SESSION_DEFAULTS.items() if isinstance(value, bool)]


class SessionOptions(_ConfigEntries):
    """How a session loads, optimises and runs its model.

    Assignment never fails for a known name; :meth:`validate` lists what is wrong, and a session
    refuses options that are. A session keeps a copy: later changes do not reach it.

    Attributes:
        device: "cpu", or "wse", "wse2", "wse3" for the simulated wafer.
        num_threads: threads of one run; 0 asks the machine. ONNX Runtime's
            ``intra_op_num_threads`` is the same setting.
        enable_profiling: record every node; ``session.end_profiling()`` writes the file.
        execution_mode: "sequential", or "parallel": independent branches of the graph run at the
            same time where that is estimated to pay, ``inter_op_num_threads`` of them at most.
        optimization_level: see OptLevel; ONNX Runtime's ``graph_optimization_level`` too.
        verbose_optimization: log what each pass did.
        disabled_optimizers: names of passes and rules that are left out (see ``pyflame_rt.opt``).
        log_level: "verbose", "debug", "info", "warning", "error" or "fatal".
        quantization: a QuantConfig, to quantize while loading.
        calibration_data: called for one feed at a time, for static quantization.
        calibration_batches: how many of them.
        memory_limit: bytes that weights and the values of a run may take, checked before any is taken. 0 for the
            default: half of the machine, and of that 1.25 GiB or 256 times what weights and inputs take.
        strict_math_mode: no optimisation that changes a bit of the reference's answer.
        fast_math: 3x3 convolutions may go by Winograd's transform, which is quicker, but whose outputs depend on their
            neighbours' inputs too: beside a pixel 10,000 times as large as others, errors are 10,000 times as large,
            and a NaN spreads over its tile. The environment variable PYFLAME_FAST_MATH=1 does so for all sessions.
        immutable_model: the caller promises that nobody writes to the model's files while the session is open. They
            are mapped then, not read into memory; truncating one would end the process. Weights that are more than
            ``memory_limit`` allows stay in files: see the engine's guide.
        optimization_timeout_ms: stop optimising after this time and run what there is.
        cache: folder for compiled code and packed weights; None for PYFLAME_CACHE_DIR or the user's cache folder.
        checked: test every address in native code and guard every buffer (slow; to find faults of
            the engine). The environment variable PYFLAME_CHECKED=1 does the same for all sessions.
        verify: compare what the graph gives after each pass with what it gave before (slow).
        tune: before the first run with new shapes, time the kernels that can do each product and convolution;
            the fastest are remembered on disk for this machine and taken from then on, also without this option.
        quick_start: the first runs may use kernels that were compiled quickly; better code, of the same results, takes
            their place a little later. False waits for that code (the environment: PYFLAME_QUICK_START=0).
        plan_cache_size: how many prepared forms of the model are kept (shapes, taps).
        optimized_model_filepath: where to write the optimised model, as .onnx or .pfm.
        use_deterministic_compute: the same bits whenever a model runs, on any number of threads. They always are here;
            with it ``tune``, which may choose other kernels, is refused.

    A setting that has no effect, because the provider makes no use of it or because there is nothing to steer
    (``enable_cpu_mem_arena``, ``enable_mem_pattern``, ``enable_mem_reuse``, ``use_per_session_threads``,
    ``log_verbosity_level``), is told by a UserWarning that names it, and by ``session.explain()``.

    Example:
        >>> options = SessionOptions(num_threads=2)
        >>> options.intra_op_num_threads, options.validate()
        (2, [])
        >>> SessionOptions(device="abacus").validate()
        ["device is 'abacus', not one of cpu, wse, wse2, wse3"]
    """

    __slots__ = (
        *_SESSION_DEFAULTS,
        "_config",
        "_free_dimensions",
        "_initializers",
        "_load_cancelled",
        "_providers",
    )
    device: str
    num_threads: int
    enable_profiling: bool
    execution_mode: Any
    optimization_level: Any
    verbose_optimization: bool
    disabled_optimizers: Sequence[str]
    log_level: str
    quantization: Any
    calibration_data: Callable[[], Any] | None
    calibration_batches: int
    memory_limit: int
    strict_math_mode: bool
    fast_math: bool
    immutable_model: bool
    optimization_timeout_ms: int
    cache: str | Path | None
    checked: bool
    verify: bool
    plan_cache_size: int
    tune: bool
    quick_start: bool
    profile_file_prefix: str
    inter_op_num_threads: int
    log_verbosity_level: int
    logid: str
    optimized_model_filepath: str
    enable_cpu_mem_arena: bool
    enable_mem_pattern: bool
    enable_mem_reuse: bool
    use_deterministic_compute: bool
    use_per_session_threads: bool

    def __init__(self, **settings: Any) -> None:
        self._config: dict[str, str] = {}
        self._free_dimensions: dict[str, int] = {}
        self._initializers: dict[str, Any] = {}
        self._providers: list[tuple[str, dict[str, Any]]] = []
        self._load_cancelled = [False]  # shared with copies: it reaches sessions under construction
        for name, value in {**_SESSION_DEFAULTS, **settings}.items():
            setattr(self, name, value)

    # ------------------------------------------------------------------ linked names

    @property
    def intra_op_num_threads(self) -> int:
        """Same as ``num_threads``."""
        return self.num_threads

    @intra_op_num_threads.setter
    def intra_op_num_threads(self, value: int) -> None:
        self.num_threads = value

    @property
    def memory_limit_mb(self) -> float:
        """``memory_limit`` in megabytes of 2**20 bytes."""
        return self.memory_limit / 2**20

    @memory_limit_mb.setter
    def memory_limit_mb(self, value: float) -> None:
        self.memory_limit = int(value * 2**20)

    @property
    def graph_optimization_level(self) -> GraphOptimizationLevel:
        """``optimization_level`` in ONNX Runtime's terms."""
        level = OptLevel.of(self.optimization_level)
        names = GraphOptimizationLevel
        return names.ORT_ENABLE_ALL if level is OptLevel.ALL else names(level.value)

    @graph_optimization_level.setter
    def graph_optimization_level(self, value: object) -> None:
        self.optimization_level = OptLevel.of(value)

    @property
    def log_severity_level(self) -> int:
        """``log_level`` as ONNX Runtime's number, 0 (verbose) to 4 (fatal)."""
        name = {"debug": "verbose"}.get(self.log_level, self.log_level)
        return SEVERITIES.index(name)

    @log_severity_level.setter
    def log_severity_level(self, value: int) -> None:
        self.log_level = "warning" if value == -1 else _severity_name(value)

    # ------------------------------------------------------------------ ONNX Runtime's methods

    def add_session_config_entry(self, key: str, value: str) -> None:
        """Set a configuration entry; keys that would change results are refused."""
        self._add_config(key, value, "session configuration")

    def get_session_config_entry(self, key: str) -> str:
        """A configuration entry that was set."""
        return self._get_config(key, "SessionOptions")

    def add_free_dimension_override_by_name(self, name: str, value: int) -> None:
        """Fix a symbolic size of the inputs."""
        if not isinstance(value, (int, np.integer)) or value < 0:
            raise InputError(f"dimension {name!r} cannot be {value!r}")
        self._free_dimensions[name] = int(value)

    def add_free_dimension_override_by_denotation(self, denotation: str, value: int) -> None:
        """Refused: graphs do not keep denotations. Use the dimension's name."""
        raise InputError(
            f"dimension denotation {denotation!r} cannot be fixed to {value}: denotations are not "
            f"kept. Use add_free_dimension_override_by_name"
        )

    def add_initializer(self, name: str, value: Any) -> None:
        """Replace an initializer of the model by an OrtValue, Tensor or array."""
        self._initializers[name] = value

    def add_external_initializers(self, names: list[str], values: list[Any]) -> None:
        """Replace several initializers."""
        if len(names) != len(values):
            raise InputError(f"{len(names)} names for {len(values)} initializers")
        self._initializers.update(zip(names, values, strict=True))

    def add_provider(self, name: str, options: Mapping[str, Any] | None = None) -> None:
        """Append a provider, used when the session is given none."""
        self._providers.append((name, dict(options or {})))

    def has_providers(self) -> bool:
        """True when :meth:`add_provider` was called."""
        return bool(self._providers)

    def register_custom_ops_library(self, path: str) -> None:
        """Refused: native operator libraries are built for another runtime."""
        raise InputError(
            f"cannot load {path!r}: native operator libraries are not supported. Register the "
            f"operators in Python with pyflame_rt.OperatorRegistry"
        )

    def set_load_cancellation_flag(self, cancel: bool) -> None:
        """Make sessions under construction with these options stop (True) or go on."""
        self._load_cancelled[0] = bool(cancel)

    # ------------------------------------------------------------------ checks

    def validate(self) -> list[str]:
        """Messages about settings that are wrong; empty when all is well."""
        problems = [
            f"{name} is {getattr(self, name)!r}, not one of {', '.join(allowed)}"
            for name, allowed in _CHOICES.items()
            if getattr(self, name) not in allowed
        ]
        for name, low, high in _RANGES:
            value = getattr(self, name)
            if not _is_count(value) or not low <= value <= high:
                most = "" if high == float("inf") else f" to {high:g}"
                problems.append(f"{name} is {value!r}, not a whole number from {low}{most}")
        try:
            OptLevel.of(self.optimization_level)
        except InputError as error:
            problems.append(str(error))
        problems += _no_folder(self.cache)
        problems += [f"{n} is {v!r}, not a bool" for n in _FLAGS if (v := getattr(self, n)) not in (0, 1)]
        if self.tune and self.use_deterministic_compute:
            problems.append("tune measures which kernels are taken, use_deterministic_compute forbids that")
        if self.calibration_data is not None and not (
            callable(self.calibration_data) or hasattr(self.calibration_data, "__iter__")
        ):
            problems.append("calibration_data is neither callable nor iterable")
        return problems

    def copy(self) -> SessionOptions:
        """An independent copy; a load cancellation flag set later still reaches it."""
        twin = copy.copy(self)
        for name in ("_config", "_free_dimensions", "_initializers", "_providers"):
            setattr(twin, name, copy.copy(getattr(self, name)))
        return twin

    def __repr__(self) -> str:
        changed = [f"{n}={getattr(self, n)!r}" for n, d in _SESSION_DEFAULTS.items() if getattr(self, n) != d]
        return f"SessionOptions({', '.join(changed)})"


_CHOICES = {"device": DEVICES, "execution_mode": EXECUTION_MODES, "log_level": tuple(LEVELS)}
_RANGES = (
    ("num_threads", 0, MAX_THREADS),
    ("inter_op_num_threads", 0, MAX_THREADS),
    ("calibration_batches", 1, float("inf")),
    ("memory_limit", 0, float("inf")),
    ("optimization_timeout_ms", 0, float("inf")),
    ("plan_cache_size", 1, float("inf")),
    ("log_verbosity_level", 0, float("inf")),
)


class RunOptions(_ConfigEntries):
    """Settings of one run.

    Attributes:
        log_level: overrides the session's for this run.
        tag: a name for the run in logs and profiles; ONNX Runtime's ``logid`` is the same.
        timeout_ms: give up after this time with RunTimeoutError, checked between nodes.
        terminate: set it, from any thread, to stop runs that were given these options.
        only_execute_path_to_fetches: leave out nodes that no requested output needs.

    Example:
        >>> options = RunOptions(tag="batch_1", timeout_ms=5000)
        >>> options.logid, options.validate()
        ('batch_1', [])
    """

    __slots__ = (
        "_config",
        "log_level",
        "log_verbosity_level",
        "only_execute_path_to_fetches",
        "tag",
        "terminate",
        "timeout_ms",
    )

    def __init__(
        self, *, log_level: str | None = None, tag: str | None = None, timeout_ms: float | None = None
    ) -> None:
        self._config: dict[str, str] = {}
        self.log_level = log_level
        self.tag = tag
        self.timeout_ms = timeout_ms
        self.terminate = False
        self.only_execute_path_to_fetches = False
        self.log_verbosity_level = 0

    @property
    def logid(self) -> str:
        """Same as ``tag``."""
        return "" if self.tag is None else self.tag

    @logid.setter
    def logid(self, value: str) -> None:
        self.tag = value

    @property
    def log_severity_level(self) -> int:
        """``log_level`` as ONNX Runtime's number; -1 for the session's."""
        name = {None: "", "debug": "verbose"}.get(self.log_level, self.log_level)
        return SEVERITIES.index(name) if name else -1

    @log_severity_level.setter
    def log_severity_level(self, value: int) -> None:
        self.log_level = None if value == -1 else _severity_name(value)

    def add_run_config_entry(self, key: str, value: str) -> None:
        """Set a configuration entry; keys that would change results are refused."""
        self._add_config(key, value, "run configuration")

    def get_run_config_entry(self, key: str) -> str:
        """A configuration entry that was set."""
        return self._get_config(key, "RunOptions")

    def add_active_adapter(self, adapter: object) -> None:
        """Refused: LoRA adapters are merged into a model before it is loaded."""
        raise InputError(f"adapter {adapter!r} cannot be attached to a run; merge it into the model")

    def validate(self) -> list[str]:
        """Messages about settings that are wrong; empty when all is well."""
        problems = []
        if self.log_level is not None and self.log_level not in LEVELS:
            problems.append(f"log_level is {self.log_level!r}, not one of {', '.join(LEVELS)}")
        if self.timeout_ms is not None and not (isinstance(self.timeout_ms, (int, float)) and self.timeout_ms >= 0):
            problems.append(f"timeout_ms is {self.timeout_ms!r}, not a time in milliseconds")
        return problems


@dataclass(frozen=True, slots=True)
class CompileOptions:
    """What compiling a model depends on besides the model.

    Attributes:
        cache_dir: folder for compiled code, or None.
        dynamic_batch: let the first size of every input vary.
        optimization_level: see OptLevel.

    Example:
        >>> CompileOptions(cache_dir="cache").session_options().cache
        'cache'
    """

    cache_dir: str | Path | None = None
    dynamic_batch: bool = False
    optimization_level: OptLevel = OptLevel.EXTENDED

    def session_options(self) -> SessionOptions:
        """The same settings for a session (all but ``dynamic_batch``, which is about the graph)."""
        return SessionOptions(cache=self.cache_dir, optimization_level=self.optimization_level)


@dataclass(slots=True)
class ModelMetadata:
    """Who made a model, and what it says of itself.

    Example:
        >>> ModelMetadata(graph_name="classifier").custom_metadata_map
        {}
    """

    producer_name: str = ""
    producer_version: str = ""
    graph_name: str = ""
    domain: str = ""
    description: str = ""
    graph_description: str = ""
    version: int = 0
    ir_version: int = 0
    opsets: dict[str, int] = field(default_factory=dict)
    custom_metadata: dict[str, str] = field(default_factory=dict)

    @property
    def custom_metadata_map(self) -> dict[str, str]:
        """ONNX Runtime's name for ``custom_metadata``."""
        return self.custom_metadata


def _severity_name(value: int) -> str:
    if not 0 <= value < len(SEVERITIES):
        raise InputError(f"log severity must be 0 (verbose) to 4 (fatal), or -1; got {value}")
    return SEVERITIES[value]


def _no_folder(cache: object) -> list[str]:
    """What is wrong with the place of a cache."""
    if cache is None or (isinstance(cache, (str, os.PathLike)) and str(cache) and "\0" not in str(cache)):
        return []
    return [f"cache is {cache!r}, not the path of a folder, nor None for the usual one"]


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
