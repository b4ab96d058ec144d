"""A loaded version of a model: its session, its batcher, and a count of those who use it."""

from __future__ import annotations

import logging
import threading
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pyflame_rt.batching import BatchFuture, DynamicBatcher
from pyflame_rt.feeds import random_feed
from pyflame_rt.generate import load_tokenizer
from pyflame_rt.graph import TensorType
from pyflame_rt.graph.errors import InputError, PyFlameRTError, SessionClosedError, UnsupportedFormatError
from pyflame_rt.graph.named_arguments import names_arguments
from pyflame_rt.ops.onnx.control import If, Loop, Scan
from pyflame_rt.ops.onnx.sequence import SequenceMap
from pyflame_rt.serving.metrics import MetricsRegistry
from pyflame_rt.serving.quick import QuickRuns
from pyflame_rt.serving.sources import open_text_session
from pyflame_rt.serving.tensors import v2_name
from pyflame_rt.serving.text import TextModel

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping, Sequence

    from pyflame_rt.generate import Tokenizer
    from pyflame_rt.graph import DType, Graph, TensorInfo
    from pyflame_rt.serving.config import ModelConfig
    from pyflame_rt.session import InferenceSession

__all__ = ["ModelInstance"]

log = logging.getLogger("pyflame_rt.serving")


class ModelInstance:
    """One version of a model, ready to answer.

    Args:
        config: name, version and batching.
        session: the model.
        source: where it came from, for people.
        owned: close the session at the end.

    Example:
        >>> import numpy as np, pyflame_rt
        >>> from pyflame_rt.serving import ModelConfig
        >>> g = pyflame_rt.Graph("g")
        >>> _ = g.add_input("x", ["N", 2]), g.add_node("n", "Neg", ["x"], ["y"]), g.add_output("y", ["N", 2])
        >>> instance = ModelInstance(ModelConfig(name="m"), pyflame_rt.InferenceSession(g))
        >>> instance.infer({"x": np.ones((1, 2), np.float32)})["y"]
        array([[-1., -1.]], dtype=float32)
        >>> instance.close()
    """

    @names_arguments
    def __init__(
        self, config: ModelConfig, session: InferenceSession, source: str = "", *, owned: bool = False
    ) -> None:
        self.config = config
        self._owned = owned
        self.name, self.version, self.source = config.name, config.version, source
        self.session = session
        self.graph = session.graph()
        self._outputs = [info.name for info in self.graph.outputs]
        self.input_kinds, self.output_kinds = kinds_of(self.graph.inputs), kinds_of(self.graph.outputs)
        self.loaded_at = time.time()
        self.last_used = time.monotonic()
        self._lock = threading.Lock()
        self._users = 0
        self._retired = self._closed = False
        self._failures = 0
        # What takes long may depend on values only where these are counts, or steer loops.
        steady = all(kind.is_float for kind in self.input_kinds.values()) and not _has_branches(self.graph)
        self.quick = QuickRuns(session) if steady else None
        self._failed_seconds = 0.0
        self._observe = partial(MetricsRegistry.instance().batch_size, self.name)
        self.unbatched = ""  # why requests run one by one
        self.tokenizer = _tokenizer(config.tokenizer, config.model_path)
        self.text_problem = ""  # why it does not generate text
        self.text = self._make_text()
        self.batcher = self._make_batcher()
        layout = self.batcher.layout
        axes = () if layout.problem else layout.inputs.items()
        self._row = next(((name, axis) for name, axis in axes if axis is not None), None)  # where rows are counted
        self.batcher.start()

    def _make_text(self) -> TextModel | None:
        """What generates text, for a decoder with a tokenizer."""
        if self.tokenizer is None:
            return None
        session = self.session
        try:
            session = open_text_session(self.config, session)
            return TextModel(session, self.tokenizer, self.config.queue_capacity, owned=session is not self.session)
        except (InputError, UnsupportedFormatError) as error:
            self.text_problem = str(error)
            return None

    def _make_batcher(self) -> DynamicBatcher:
        settings = self.config.batch_config()
        try:
            return DynamicBatcher(self.session, settings, on_run=self._observe)
        except InputError as error:
            if settings.max_batch_size == 1:
                raise
            self.unbatched = str(error)
            log.info("model %s:%s runs requests one by one: %s", self.name, self.version, error)
        settings.max_batch_size = 1
        return DynamicBatcher(self.session, settings, on_run=self._observe)

    # ------------------------------------------------------------------ answering

    def submit(
        self,
        inputs: Mapping[str, Any],
        output_names: Sequence[str] | None = None,
        *,
        timeout_ms: float | None = None,
        caller: Hashable = None,
    ) -> BatchFuture:
        """Ask for a run; see DynamicBatcher.submit."""
        return self.batcher.submit(inputs, output_names=output_names, timeout_ms=timeout_ms, caller=caller)

    def run_quickly(
        self, inputs: Mapping[str, Any], output_names: Sequence[str] | None
    ) -> tuple[dict[str, Any], int, float] | None:
        """Run in the calling thread what is known to be quick: outputs, rows and seconds; None for what is not.

        Raises:
            PyFlameRTError: The run failed, or there is no such output.
        """
        found = None if self.quick is None else self.quick.run(inputs)
        if found is None:
            return None
        results, seconds, now = found
        outputs = dict(zip(self._outputs, results, strict=True))
        if output_names:
            outputs = {name: outputs[name] for name in self.batcher.checked_names(output_names)}
        row = self._row
        rows = inputs[row[0]].shape[row[1]] if row is not None and row[0] in inputs else 1
        self.batcher.count(rows, seconds, now)
        return outputs, rows, seconds

    def saw(self, inputs: Mapping[str, Any]) -> None:
        """Note a request that the batcher has run: its like may turn out to be quick."""
        if self.quick is not None:
            self.quick.saw(inputs)

    def infer(
        self, inputs: Mapping[str, Any], output_names: Sequence[str] | None = None, *, timeout_ms: float | None = None
    ) -> dict[str, Any]:
        """Ask for a run and wait for it: outputs by name."""
        return self.batcher.infer(inputs, output_names=output_names, timeout_ms=timeout_ms)

    def infer_async(self, inputs: Mapping[str, Any], output_names: Sequence[str] | None = None) -> BatchFuture:
        """The same as :meth:`submit`."""
        return self.submit(inputs, output_names)

    def count(self, rows: int, begun: float) -> None:
        """Count a request that the batcher has not run, such as one for text; ``begun`` is of ``perf_counter``."""
        now = time.perf_counter()
        self.batcher.count(rows, now - begun, now)

    def failed(self, seconds: float) -> None:
        """Count a request that got no answer."""
        with self._lock:
            self._failures += 1
            self._failed_seconds += seconds

    def warm_up(self) -> None:
        """Run with made-up inputs; inputs that the model refuses are no reason not to serve it."""
        count = self.config.warmup_requests
        if not count or self.text is not None:  # a decoder is prepared by its first prompt
            return
        try:
            feed = random_feed(self.graph.required_inputs)
            for _ in range(count):
                self.session.run(None, feed)
        except PyFlameRTError as error:
            log.warning("model %s:%s was not warmed up: %s", self.name, self.version, error)

    # ------------------------------------------------------------------ who uses it

    def acquire(self) -> bool:
        """Take a place; False when it is going."""
        with self._lock:
            if self._retired:
                return False
            self._users += 1
        self.last_used = time.monotonic()
        return True

    def release(self) -> None:
        """Give the place back; the last one out closes what was retired."""
        with self._lock:
            self._users -= 1
            last = self._retired and not self._users
        if last:
            threading.Thread(target=self.close, name="pyflame-rt-retire", daemon=True).start()

    @property
    def in_use(self) -> bool:
        """Whether anybody has a place."""
        return self._users > 0

    def retire(self) -> None:
        """Take no more requests; it is closed when those under way are answered."""
        with self._lock:
            if self._retired:
                return
            self._retired = True
            last = not self._users
        if last:
            self.close()

    def close(self) -> None:
        """Answer what was taken, and let go of the model."""
        with self._lock:
            self._retired = True
            if self._closed:
                return
            self._closed = True
        if self.text is not None:
            self.text.close()
        self.batcher.stop()
        if self._owned:
            self.session.close()

    def __enter__(self) -> ModelInstance:
        if not self.acquire():
            raise SessionClosedError(f"model {self.name}:{self.version} was unloaded")
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    # ------------------------------------------------------------------ what is known of it

    def is_ready(self) -> bool:
        """Whether it takes requests."""
        return not self._retired

    def input_names(self) -> list[str]:
        """Names of the inputs that a request must have."""
        return [info.name for info in self.graph.required_inputs]

    def output_names(self) -> list[str]:
        """Names of the outputs."""
        return [info.name for info in self.graph.outputs]

    @property
    def weight_bytes(self) -> int:
        """Bytes of the weights."""
        return sum(tensor.size_bytes for tensor in self.graph.initializers.values())

    def get_serving_metadata(self) -> dict[str, Any]:
        """What clients are told."""
        return {
            "name": self.name,
            "version": self.version,
            "platform": "pyflame_rt",
            "inputs": [describe(info) for info in self.graph.required_inputs],
            "outputs": [describe(info) for info in self.graph.outputs],
            "max_batch_size": self.batcher.config.max_batch_size,
            "batching": not self.unbatched and self.batcher.config.max_batch_size > 1,
            "weight_bytes": self.weight_bytes,
            "generates_text": self.text is not None,
        }

    def get_stats(self) -> dict[str, Any]:
        """What was done so far."""
        stats = self.batcher.get_stats()
        with self._lock:
            failures, seconds = self._failures, self._failed_seconds
        return {
            "name": self.name,
            "version": self.version,
            "total_requests": stats.total_requests,
            "completed_requests": stats.completed_requests,
            "failed_requests": failures,
            "failed_seconds": seconds,
            "rejected_requests": stats.dropped_requests,
            "timed_out_requests": stats.timed_out_requests,
            "cancelled_requests": stats.cancelled_requests,
            "total_batches": stats.total_batches,
            "total_rows": stats.total_rows,
            "batch_sizes": {str(size): count for size, count in stats.batch_sizes.items()},
            "avg_batch_size": stats.avg_batch_size,
            "avg_latency_us": stats.avg_latency_us,
            "avg_queue_time_us": stats.avg_queue_time_us,
            "p50_latency_us": stats.latency_us(0.5),
            "p99_latency_us": stats.latency_us(0.99),
            "throughput_rps": stats.throughput_rps,
            "queue_depth": stats.queue_depth,
            "loaded_at": self.loaded_at,
        }


def _tokenizer(given: str, model_path: str) -> Tokenizer | None:
    """The tokenizer that is named, else one beside the model, or in its folder; None where there is none."""
    path = Path(model_path)
    place = Path(given) if given else None if not model_path else path if path.is_dir() else path.parent
    if place is None or not (given or (place / "tokenizer.json").is_file()):
        return None
    return load_tokenizer(place)


def _has_branches(graph: Graph) -> bool:
    return any(node.op_type in (If.name, Loop.name, Scan.name, SequenceMap.name) for node in graph.nodes)


def kinds_of(infos: Any) -> dict[str, DType]:
    """Element types by name."""
    return {info.name: info.type.dtype for info in infos if isinstance(info.type, TensorType)}


def describe(info: TensorInfo) -> dict[str, Any]:
    """An input or output: name, both names of its element type, and its shape with -1 for sizes that vary."""
    kind = info.type
    if not isinstance(kind, TensorType):
        return {"name": info.name, "dtype": str(kind), "datatype": str(kind), "shape": []}
    shape = [-1] if kind.shape is None else [int(d) if isinstance(d, int | np.integer) else -1 for d in kind.shape]
    return {"name": info.name, "dtype": kind.dtype.label, "datatype": v2_name(kind.dtype), "shape": shape}
