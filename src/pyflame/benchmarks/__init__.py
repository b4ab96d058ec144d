"""Measure models and functions, keep what was measured, and compare."""

from pyflame.benchmarks.models import (
    BenchmarkModelInfo,
    get_benchmark_model,
    get_benchmark_model_info,
    list_benchmark_models,
    register_benchmark_model,
)
from pyflame.benchmarks.results import BenchmarkReport, BenchmarkResult, compare_results
from pyflame.benchmarks.runner import BenchmarkConfig, BenchmarkRunner, benchmark, timed

__all__ = [
    "BenchmarkConfig",
    "BenchmarkModelInfo",
    "BenchmarkReport",
    "BenchmarkResult",
    "BenchmarkRunner",
    "benchmark",
    "compare_results",
    "get_benchmark_model",
    "get_benchmark_model_info",
    "list_benchmark_models",
    "register_benchmark_model",
    "timed",
]
