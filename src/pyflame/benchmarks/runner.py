"""Take times."""

from __future__ import annotations

import logging
import resource
import sys
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from pyflame.arrays import adopt
from pyflame.autograd import no_grad
from pyflame.benchmarks.results import BenchmarkReport, BenchmarkResult
from pyflame.compiling.compiled import compile_function
from pyflame.data.collate import to_arrays
from pyflame.dtypes import to_dtype
from pyflame.nn import Module

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

__all__ = ["BenchmarkConfig", "BenchmarkRunner", "benchmark", "timed"]

log = logging.getLogger("pyflame.benchmarks")
PRECISIONS = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16", "fp64": "float64"}


@dataclass
class BenchmarkConfig:
    """How times are taken.

    Attributes:
        warmup_iterations: Calls before the first that is timed.
        benchmark_iterations: Calls that are timed.
        batch_sizes: Measured one after the other.
        precision: "fp32", "fp16", "bf16" or "fp64": element type of inputs and weights.
        profile_memory: Note by how much the process grew.
        max_seconds: Stop taking times of one batch size after so long, with what there is by then.
        seed: Of the random inputs.
    """

    warmup_iterations: int = 10
    benchmark_iterations: int = 100
    batch_sizes: Sequence[int] = field(default_factory=lambda: [1, 8, 32, 64])
    precision: Literal["fp32", "fp16", "bf16", "fp64"] = "fp32"
    profile_memory: bool = True
    max_seconds: float = 60.0
    seed: int = 0

    def __post_init__(self) -> None:
        if self.warmup_iterations < 0 or self.benchmark_iterations < 1 or any(b < 1 for b in self.batch_sizes):
            raise ValueError("warmup_iterations must not be negative, benchmark_iterations and batch_sizes positive")
        if self.precision not in PRECISIONS:
            raise ValueError(f"precision must be one of {', '.join(PRECISIONS)}. Received: {self.precision!r}")


class BenchmarkRunner:
    """Measures models (compiled, in evaluation mode, without gradients) and functions.

    Example:
        >>> import pyflame as pf
        >>> config = pf.benchmarks.BenchmarkConfig(warmup_iterations=1, benchmark_iterations=3, batch_sizes=[2])
        >>> runner = pf.benchmarks.BenchmarkRunner(config)
        >>> [r.batch_size for r in runner.run_model_benchmark("linear", pf.nn.Linear(4, 2), [4])]
        [2]
    """

    def __init__(self, config: BenchmarkConfig | None = None) -> None:
        self.config = config or BenchmarkConfig()
        self.results: list[BenchmarkResult] = []

    def run_model_benchmark(
        self,
        name: str,
        model: Callable[..., Any],
        input_shape: Sequence[int],
        batch_sizes: Sequence[int] | None = None,
        *,
        make_input: Callable[[int], Any] | None = None,
    ) -> list[BenchmarkResult]:
        """Time a model for each batch size.

        Args:
            name: Of the results.
            model: A module or a function of one tensor.
            input_shape: Of one sample.
            batch_sizes: In place of the config's.
            make_input: Makes a batch of a size, in place of normal random numbers.
        """
        dtype = to_dtype(PRECISIONS[self.config.precision])
        module = model if isinstance(model, Module) else None
        was_training, kinds = module is not None and module.training, {}
        if module is not None:
            module.eval()
            if dtype.name != "float32":
                kinds = {key: value.dtype for key, value in module.state_dict().items()}
                module.to(dtype)
        try:
            compiled = compile_function(model)
            made = [
                self._measure(name, size, self._once(compiled, self._input(size, input_shape, dtype, make_input)))
                for size in batch_sizes or self.config.batch_sizes
            ]
        finally:
            if module is not None:
                if kinds:
                    module.to(next(k for k in kinds.values() if k.is_floating_point))
                module.train(was_training)
        self.results += made
        return made

    def run_operation_benchmark(
        self, name: str, operation: Callable[..., Any], input_shapes: Sequence[Sequence[int]]
    ) -> BenchmarkResult:
        """Time a function of tensors, as it is: graphs are built and evaluated at each call."""
        dtype = to_dtype(PRECISIONS[self.config.precision])
        rng = np.random.default_rng(self.config.seed)
        inputs = [adopt(rng.standard_normal(tuple(shape)).astype(dtype.numpy)) for shape in input_shapes]
        made = self._measure(name, 1, lambda: to_arrays(operation(*inputs)))
        self.results.append(made)
        return made

    def report(self, title: str = "benchmarks") -> BenchmarkReport:
        """All results so far."""
        return BenchmarkReport(title, list(self.results))

    def clear_results(self) -> None:
        """Forget all results."""
        self.results.clear()

    def _input(self, size: int, shape: Sequence[int], dtype: Any, make: Callable[[int], Any] | None) -> Any:
        if make is not None:
            return make(size)
        rng = np.random.default_rng(self.config.seed)
        return adopt(rng.standard_normal((size, *shape)).astype(dtype.numpy))

    @staticmethod
    def _once(compiled: Callable[..., Any], batch: Any) -> Callable[[], Any]:
        def call() -> Any:
            with no_grad():
                return to_arrays(compiled(*batch) if isinstance(batch, tuple) else compiled(batch))

        return call

    def _measure(self, name: str, size: int, call: Callable[[], Any]) -> BenchmarkResult:
        held = _peak_mb()
        for _ in range(self.config.warmup_iterations):
            call()
        times: list[float] = []
        end = time.perf_counter() + self.config.max_seconds
        while len(times) < self.config.benchmark_iterations and (not times or time.perf_counter() < end):
            begin = time.perf_counter_ns()
            call()
            times.append((time.perf_counter_ns() - begin) / 1e6)
        grown = max(_peak_mb() - held, 0.0) if self.config.profile_memory else 0.0
        return BenchmarkResult.of(name, size, times, grown, precision=self.config.precision)


def _peak_mb() -> float:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (1 << 20) if sys.platform == "darwin" else peak / 1024


def benchmark(
    model: Callable[..., Any],
    input_shape: Sequence[int],
    batch_sizes: Sequence[int] | None = None,
    iterations: int = 100,
    *,
    name: str | None = None,
    **settings: Any,
) -> list[BenchmarkResult]:
    """Time a model; settings as of :class:`BenchmarkConfig`.

    Example:
        >>> import pyflame as pf
        >>> pf.benchmarks.benchmark(pf.nn.ReLU(), [4], [3], iterations=2)[0].iterations
        2
    """
    config = BenchmarkConfig(benchmark_iterations=iterations, **settings)
    return BenchmarkRunner(config).run_model_benchmark(name or type(model).__name__, model, input_shape, batch_sizes)


@dataclass
class Elapsed:
    """The time a block took.

    Attributes:
        name: Of the block.
        ms: Milliseconds; 0 until the block has ended.
    """

    name: str
    ms: float = 0.0


@contextmanager
def timed(name: str = "block") -> Iterator[Elapsed]:
    """Time a block; the time is in what ``as`` names, and in the log ("pyflame.benchmarks", level INFO).

    Example:
        >>> import pyflame as pf
        >>> with pf.benchmarks.timed("sum") as elapsed:
        ...     _ = pf.ones([10]).sum().item()
        >>> elapsed.ms > 0
        True
    """
    made = Elapsed(name)
    begin = time.perf_counter_ns()
    try:
        yield made
    finally:
        made.ms = (time.perf_counter_ns() - begin) / 1e6
        log.info("%s took %.3f ms", name, made.ms)
