"""A model compiled once and asked often."""

from __future__ import annotations

import hashlib
import threading
import time
from collections import OrderedDict
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from pyflame.arrays import adopt
from pyflame.autograd import no_grad
from pyflame.compiling.compiled import compile_function
from pyflame.data.collate import to_arrays, to_tensors
from pyflame.dtypes import DType
from pyflame.nn import Module
from pyflame.ops.shaping import cat
from pyflame.training.precision import in_precision, lowered
from pyflame_rt.graph.named_arguments import expect_fields, names_arguments
from pyflame_rt.session import InferenceSession

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

__all__ = ["InferenceConfig", "InferenceEngine", "InferenceStats"]


@dataclass
class InferenceConfig:
    """How an engine answers.

    Attributes:
        batch_size: Samples that `warmup` prepares for when its example is a single sample shape; None takes it as is.
        max_batch_size: Larger batches are answered in parts of this size.
        enable_caching: Answer a batch that was seen before from memory.
        cache_size: How many answers are kept.
        warmup_iterations: How often `warmup` asks the model.
        enable_fp16: Compute in float16; answers are float32.
        num_threads: Threads of the CPU engine; None uses what the process has.

    Example:
        >>> from pyflame.serving import InferenceConfig
        >>> InferenceConfig(max_batch_size=8).warmup_iterations
        10
    """

    batch_size: int | None = None
    max_batch_size: int | None = None
    enable_caching: bool = False
    cache_size: int = 128
    warmup_iterations: int = 10
    enable_fp16: bool = False
    num_threads: int | None = None

    def __post_init__(self) -> None:
        expect_fields(self)
        for name in ("batch_size", "max_batch_size", "cache_size", "warmup_iterations", "num_threads"):
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise ValueError(f"{name} must be positive. Received: {value}")


@dataclass
class InferenceStats:
    """What an engine has done so far.

    Example:
        >>> from pyflame.serving import InferenceStats
        >>> InferenceStats(total_requests=2, total_time_ms=6.0).average_time_ms
        3.0
    """

    total_requests: int = 0
    total_samples: int = 0
    total_time_ms: float = 0.0
    cache_hits: int = 0
    cache_misses: int = 0

    @property
    def average_time_ms(self) -> float:
        """Time of one request."""
        return self.total_time_ms / self.total_requests if self.total_requests else 0.0

    @property
    def throughput(self) -> float:
        """Samples in a second of answering."""
        return 1e3 * self.total_samples / self.total_time_ms if self.total_time_ms else 0.0

    @property
    def cache_hit_rate(self) -> float:
        """The share of requests answered from memory."""
        asked = self.cache_hits + self.cache_misses
        return self.cache_hits / asked if asked else 0.0


class InferenceEngine:
    """A model in evaluation mode, without gradients, compiled once for each shape of its input.

    Example:
        >>> import numpy as np, pyflame as pf
        >>> engine = pf.serving.InferenceEngine(pf.nn.Linear(4, 2))
        >>> engine.warmup(np.ones((1, 4), np.float32))
        >>> engine.infer(np.ones((3, 4), np.float32)).shape
        [3, 2]
        >>> engine.get_stats().total_requests
        1
    """

    @names_arguments
    def __init__(self, model: Any, config: InferenceConfig | None = None) -> None:
        if not callable(model):
            raise TypeError(f"An engine needs a model that can be called. Received: {type(model).__name__}")
        self.model, self.config = model, config or InferenceConfig()
        # A model that holds a session of the runtime is compiled already, and computes with arrays.
        held = isinstance(getattr(model, "session", None), InferenceSession)
        self._compiled = self._forward if held else compile_function(self._forward)
        self._stats, self._lock = InferenceStats(), threading.Lock()
        self._cache: OrderedDict[bytes, Any] = OrderedDict()

    def warmup(self, example: Any) -> None:
        """Ask the model with an example, so that the first request finds it compiled; statistics do not count it."""
        batch = to_tensors(example)
        if self.config.batch_size is not None:
            batch = _resized(to_arrays(batch), self.config.batch_size)
        for _ in range(self.config.warmup_iterations):
            self._answer(batch)

    def infer(self, batch: Any, *, batch_size: int | None = None) -> Any:
        """The model's answer, evaluated: a tensor, or the nest of tensors that the model gives.

        Args:
            batch: What to answer.
            batch_size: Compute in parts of this size; the config's `max_batch_size` by default.
        """
        return self.infer_with_time(batch, batch_size=batch_size)[0]

    def infer_with_time(self, batch: Any, *, batch_size: int | None = None) -> tuple[Any, float]:
        """The answer and how many milliseconds it took."""
        begun = time.perf_counter()
        inputs = to_tensors(batch)
        key = _fingerprint(inputs) if self.config.enable_caching else None
        answer = self._remembered(key)
        if answer is None:
            answer = self._in_parts(inputs, batch_size or self.config.max_batch_size)
            self._remember(key, answer)
        took = 1e3 * (time.perf_counter() - begun)
        with self._lock:
            self._stats.total_requests += 1
            self._stats.total_samples += _count(inputs)
            self._stats.total_time_ms += took
        return answer, took

    def get_stats(self) -> InferenceStats:
        """A copy of the statistics."""
        with self._lock:
            return InferenceStats(**vars(self._stats))

    def reset_stats(self) -> None:
        """Begin to count anew."""
        with self._lock:
            self._stats = InferenceStats()

    def get_info(self) -> dict[str, Any]:
        """What the model and the settings are."""
        parameters = list(self.model.parameters()) if isinstance(self.model, Module) else []
        return {
            "model": type(self.model).__name__,
            "parameters": sum(int(p.numel) for p in parameters),
            "parameter_bytes": sum(int(p.nbytes) for p in parameters),
            "device": "cpu",
            **vars(self.config),
        }

    def _forward(self, inputs: Any) -> Any:
        args = inputs if isinstance(inputs, tuple | list) else (inputs,)
        if isinstance(inputs, dict):
            return self.model(**inputs)
        if self.config.enable_fp16 and isinstance(self.model, Module):
            with in_precision(self.model, DType.float16):
                return lowered(self.model(*lowered(tuple(args), DType.float16)), DType.float32)
        return self.model(*args)

    def _answer(self, inputs: Any) -> Any:
        module = self.model if isinstance(self.model, Module) and self.model.training else None
        if module is not None:
            module.eval()
        try:
            with no_grad(), self._threads():
                answer = self._compiled(inputs)
                to_arrays(answer)  # evaluated when it leaves
                return answer
        finally:
            if module is not None:
                module.train()

    def _threads(self) -> AbstractContextManager[Any]:
        if self.config.num_threads is None:
            return nullcontext()
        from pyflame_rt.threads import use_threads

        return use_threads(self.config.num_threads)

    def _in_parts(self, inputs: Any, most: int | None) -> Any:
        size = _count(inputs)
        if most is None or size <= most:
            return self._answer(inputs)
        parts = [self._answer(_cut(inputs, start, min(start + most, size))) for start in range(0, size, most)]
        return _joined(parts)

    def _remembered(self, key: bytes | None) -> Any:
        if key is None:
            return None
        with self._lock:
            found = self._cache.get(key)
            if found is None:
                self._stats.cache_misses += 1
            else:
                self._stats.cache_hits += 1
                self._cache.move_to_end(key)
            return found

    def _remember(self, key: bytes | None, answer: Any) -> None:
        if key is None:
            return
        with self._lock:
            self._cache[key] = answer
            while len(self._cache) > self.config.cache_size:
                self._cache.popitem(last=False)


def _leaves(nest: Any) -> list[Any]:
    if isinstance(nest, dict):
        return [leaf for key in sorted(nest) for leaf in _leaves(nest[key])]
    if isinstance(nest, tuple | list):
        return [leaf for part in nest for leaf in _leaves(part)]
    return [nest]


def _count(inputs: Any) -> int:
    first = _leaves(inputs)[0]
    return int(first.shape[0]) if len(getattr(first, "shape", ())) else 1


def _fingerprint(inputs: Any) -> bytes:
    digest = hashlib.blake2b(digest_size=16)
    for leaf in _leaves(inputs):
        array = np.ascontiguousarray(np.asarray(to_arrays(leaf)))
        digest.update(f"{array.dtype}{array.shape}".encode())
        digest.update(array.view(np.uint8).reshape(-1).data if array.size else b"")
    return digest.digest()


def _each(nest: Any, change: Any) -> Any:
    if isinstance(nest, dict):
        return {key: _each(value, change) for key, value in nest.items()}
    if isinstance(nest, tuple) and hasattr(nest, "_fields"):
        return type(nest)(*(_each(part, change) for part in nest))
    if isinstance(nest, tuple | list):
        return type(nest)(_each(part, change) for part in nest)
    return change(nest)


def _cut(inputs: Any, start: int, end: int) -> Any:
    return _each(inputs, lambda t: adopt(np.asarray(t.numpy())[start:end]))


def _resized(arrays: Any, size: int) -> Any:
    return _each(arrays, lambda a: adopt(np.resize(a, (size, *np.shape(a)[1:]))))


def _joined(parts: list[Any]) -> Any:
    first = parts[0]
    if isinstance(first, dict):
        return {key: _joined([part[key] for part in parts]) for key in first}
    if isinstance(first, tuple) and hasattr(first, "_fields"):
        return type(first)(*(_joined(list(each)) for each in zip(*parts, strict=True)))
    if isinstance(first, tuple | list):
        return type(first)(_joined(list(each)) for each in zip(*parts, strict=True))
    return cat(parts, dim=0).eval()
