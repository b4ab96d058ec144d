"""InferenceSession: a model, ready to run."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyflame_rt.aliasing import AliasGuard
from pyflame_rt.cache.answers import RUN_FOLLOWS, answering
from pyflame_rt.cache.models import keep_model
from pyflame_rt.cache.store import use_store
from pyflame_rt.compiler import Compiled, compile, peaks_of, placed, quantize  # noqa: A004 - the design's word
from pyflame_rt.executable import RunHooks
from pyflame_rt.explain import Explanation
from pyflame_rt.feeds import FeedReader
from pyflame_rt.graph import Graph, NodeArg, Tensor
from pyflame_rt.graph.dim import SIZE_BOUNDS
from pyflame_rt.graph.errors import InputError, PyFlameRTError, RunCancelledError, SessionClosedError
from pyflame_rt.graph.graph import Origin
from pyflame_rt.graph.locks import new_rlock
from pyflame_rt.graph.names import closest
from pyflame_rt.graph.pages import immutable_files
from pyflame_rt.hooks import Limits, chain_checks, chain_observers
from pyflame_rt.inspection import NaNFound, first_bad, nan_watcher
from pyflame_rt.iobinding import IOBinding, OrtValue
from pyflame_rt.loading import check_cancelled, load_graph, metadata_of, prepare_graph, write_model
from pyflame_rt.logs import SessionLog
from pyflame_rt.options import OptLevel
from pyflame_rt.profiling import Profiler
from pyflame_rt.providers import DEFAULT_PROVIDER, expect_model, find_provider, normalize_providers
from pyflame_rt.settings import check_arguments, settled_options, warn_unused

if TYPE_CHECKING:
    from types import TracebackType

    from pyflame_rt.executable import Executable
    from pyflame_rt.futures import RunFuture, RunThreads
    from pyflame_rt.options import ModelMetadata, RunOptions, SessionOptions

__all__ = ["InferenceSession"]

_DEVICE_PROVIDERS = {"wse": "WSEExecutionProvider", "wse2": "WSEExecutionProvider", "wse3": "WSEExecutionProvider"}
_QUANTIZED_OPS = ("QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear")


class InferenceSession:
    """A model that was loaded, checked and compiled.

    Args:
        model: a path to a .onnx or .pfm file, the bytes of one, a Graph or an onnx.ModelProto.
        options: a SessionOptions; ``sess_options`` is the same under ONNX Runtime's name.
        providers: names in order of preference; the default is CPUExecutionProvider. A name that
            is unknown or not available is an error.
        provider_options: one dict for each provider; of the built-in ones only WSEExecutionProvider has options:
            ``target`` ("wse2" or "wse3"), ``rows`` and ``cols`` of its grid, ``memory_budget`` and ``optimize``.
        kwargs: ONNX Runtime's ``enable_fallback`` (must be False: a run never changes provider) and
            ``disabled_optimizers``, which is ``SessionOptions.disabled_optimizers``.

    Raises:
        ModelNotFoundError: There is no such file.
        UnsupportedFormatError: The file's suffix is not known.
        InvalidModelError: It is no model, or a broken one.
        ValidationError: The graph breaks invariants; ``.errors`` lists them.
        UnsupportedOperatorError: An operator is not known.

    A session may be used from several threads at once, pickled (by path where it has one), and
    used as a context manager; after :meth:`close` every call raises SessionClosedError.

    Example:
        >>> g = Graph("tiny")
        >>> _ = g.add_input("x", ["N", 2]), g.add_output("y", ["N", 2])
        >>> _ = g.add_node("act", "Relu", ["x"], ["y"])
        >>> with InferenceSession(g) as session:
        ...     session.run(None, {"x": [[-1, 2]]})
        [array([[0., 2.]], dtype=float32)]
    """

    _reads_any_suffix = False
    _warning_depth = 3  # calls from a user's line to the one that warns

    def __init__(
        self,
        model: Any = None,
        options: SessionOptions | None = None,
        providers: Any = (),
        provider_options: Sequence[Mapping[str, Any]] | None = None,
        *,
        sess_options: SessionOptions | None = None,
        **kwargs: Any,
    ) -> None:
        model = kwargs.pop("path_or_bytes", model)
        disabled = check_arguments(kwargs)
        self._options = settled_options(options, sess_options)
        self._options.disabled_optimizers = (*self._options.disabled_optimizers, *disabled)
        self._log = SessionLog(self._options.log_level, self._options.logid)
        self._lock = new_rlock()
        self._closed = threading.Event()
        self._pool: RunThreads | None = None
        started = time.perf_counter()
        chosen = self._chosen(providers, provider_options)
        with use_store(self._options.cache), immutable_files(self._options.immutable_model), answering(RUN_FOLLOWS):
            expect_model([name for name, _ in chosen], self._options)
            kept = not (self._options._free_dimensions or self._options._initializers)  # which change the graph
            self._graph, self._path = load_graph(model, any_suffix=self._reads_any_suffix, deferred=kept)
            prepare_graph(self._graph, self._options)
            self._seconds = {"load": time.perf_counter() - started}
            self._source, self._quantization = quantize(self._graph, self._options)
            self._read_interface()
            check_cancelled(self._options)
            self._use(chosen)
            check_cancelled(self._options)
            keep_model(self._graph)

    # ------------------------------------------------------------------ construction

    def _read_interface(self) -> None:
        graph = self._graph
        required = graph.required_inputs
        names = {info.name for info in required}
        defaults = [info for info in graph.inputs if info.name not in names]
        self._inputs = [self._node_arg(info) for info in required]
        self._overridable = [self._node_arg(info) for info in defaults]
        self._outputs = [self._node_arg(info) for info in graph.outputs]
        self._default_names = frozenset(info.name for info in defaults)
        self._output_names = [info.name for info in graph.outputs]
        self._reader = FeedReader(required, defaults, graph.metadata.get(SIZE_BOUNDS))
        self._guard: AliasGuard | None = None

    def _node_arg(self, info: Any) -> Any:
        return NodeArg.of(info)

    def _chosen(self, providers: Any, provider_options: Any) -> list[tuple[str, dict[str, Any]]]:
        device = _DEVICE_PROVIDERS.get(self._options.device)
        wanted = normalize_providers(providers, provider_options) or self._options._providers
        if not wanted:
            return [(device or DEFAULT_PROVIDER, {})]
        for name, settings in wanted:
            find_provider(name).check_settings(settings)
        return wanted

    def _use(self, providers: list[tuple[str, dict[str, Any]]]) -> None:
        """Compile for the given providers."""
        self._plain: Executable | None = None  # what ran last without options: it may have a fast path
        self._provider_options = dict(providers)
        self._compiled: dict[tuple[bool, bool], Compiled] = {}
        first = self._compile(overrides=False)
        warn_unused(first.unused, self._warning_depth)
        native = first.executable.times_steps
        self._limited = bool(self._options.memory_limit) and not native  # native plans are limited when made
        self._profiler = (
            Profiler(first.provider.name, partial(peaks_of, first)) if self._options.enable_profiling else None
        )
        if self._options.optimized_model_filepath:
            write_model(first.graph, Path(self._options.optimized_model_filepath))
        self._log.info("model %r runs on %s", self._graph.name, first.provider.name)

    def _compile(self, *, overrides: bool, as_loaded: bool = False) -> Compiled:
        """The compiled model, with the defaults of inputs frozen in or left open; ``as_loaded`` without passes."""
        found = self._compiled.get((overrides, as_loaded))
        if found is not None:
            return found
        with self._lock:
            self._open()
            found = self._compiled.get((overrides, as_loaded))
            if found is None:
                graph = self._source
                if self._default_names and not overrides:
                    origin, graph = graph.origin, graph.copy()
                    graph.inputs = graph.required_inputs
                    graph.origin = None if origin is None else Origin(f"{origin.key} frozen", origin.checked)
                options = self._options if not as_loaded else self._options.copy()
                if as_loaded:
                    options.optimization_level = OptLevel.NONE
                found = compile(graph, list(self._provider_options), options, self._provider_options)
                self._compiled[overrides, as_loaded] = found
            return found

    def _open(self) -> None:
        if self._closed.is_set():
            raise SessionClosedError(f"the session of model {self._graph.name!r} was closed")

    # ------------------------------------------------------------------ running

    def run(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Any],
        run_options: RunOptions | None = None,
        *,
        taps: Sequence[str] | None = None,
    ) -> list[Any]:
        """Run the model.

        Args:
            output_names: outputs to return; None or an empty list for all.
            input_feed: a value for each required input. Arrays must have the declared type;
                Python numbers and lists take it.
            run_options: timeout, tag and so on.
            taps: names of intermediate values to return after the outputs.

        Returns:
            One NumPy array for each name (a list for a sequence, None for an empty optional),
            the caller's own to keep and change.

        Raises:
            InputError: An unknown or missing name.
            DTypeMismatchError: An array of another element type.
            ShapeMismatchError: A rank or size the model does not declare.
            BackendError: A node failed; RunTimeoutError when time was up.
        """
        listed = type(output_names) is list and (not output_names or output_names == self._output_names)
        if (output_names is None or listed) and run_options is None and not taps:
            fast = None if self._plain is None else self._plain.fast_path
            results = None if fast is None else fast(input_feed)
            if results is not None:
                return results
        self._open()
        names, tapped = self._names(output_names), self._taps(taps)
        feeds = self._reader.read(input_feed)
        return self._execute(names, feeds, run_options, RunHooks(taps=tapped))

    def _names(self, output_names: Sequence[str] | None) -> Sequence[str]:
        if output_names is None:
            return self._output_names
        if isinstance(output_names, str):
            raise InputError(f"output_names is a list of names; write [{output_names!r}]")
        if not isinstance(output_names, Iterable):
            raise TypeError(f"output_names is a list of names, got {output_names!r}")
        names = list(output_names)  # what is only to be read once is read once
        for name in names:
            if name not in self._output_names:
                self._refuse_output(name)
        return names or self._output_names

    def _refuse_output(self, name: str) -> None:
        close = closest(name, self._output_names)
        hint = f" Did you mean {close[0]!r}?" if close else ""
        if name in self._value_names():
            hint = f" It is an intermediate value: ask for it with taps=[{name!r}]."
        raise InputError(f"the model has no output {name!r}.{hint} Outputs: {self._output_names}")

    def _value_names(self) -> set[str]:
        return _values_of(self._source) | _values_of(self._compile(overrides=False).graph)

    def _taps(self, taps: Sequence[str] | None) -> Sequence[str]:
        if not taps:
            return ()
        if isinstance(taps, str):
            raise InputError(f"taps is a list of names; write [{taps!r}]")
        known = self._value_names()
        for name in taps:
            if name not in known:
                close = closest(name, known, 3)
                hint = f" Did you mean {' or '.join(map(repr, close))}?" if close else ""
                raise InputError(f"the model has no value {name!r} to tap.{hint}")
        return taps

    def _execute(
        self,
        names: Sequence[str],
        feeds: dict[str, Any],
        options: RunOptions | None,
        hooks: RunHooks,
        stop: threading.Event | None = None,
    ) -> list[Any]:
        overrides = not self._default_names.isdisjoint(feeds)
        compiled = self._compile(overrides=overrides)
        if hooks.observe is not None or (hooks.taps and not set(hooks.taps) <= _values_of(compiled.graph)):
            compiled = self._compile(overrides=overrides, as_loaded=True)  # every node of the model is to be seen
        plain = options is None and stop is None and self._profiler is None and not self._limited
        if plain and not self._log.enabled(logging.DEBUG):
            hooks.check = self._check_closed
            results = compiled.executable.run(feeds, names, hooks)
            self._plain = compiled.executable
            return results if compiled.executable.fresh_outputs else self._own(results, feeds)
        return self._own(self._execute_watched(compiled, names, feeds, options, hooks, stop), feeds)

    def _check_closed(self) -> None:
        if self._closed.is_set():
            raise RunCancelledError("the session was closed while it ran")

    def _execute_watched(
        self,
        compiled: Compiled,
        names: Sequence[str],
        feeds: dict[str, Any],
        options: RunOptions | None,
        hooks: RunHooks,
        stop: threading.Event | None,
    ) -> list[Any]:
        """Run with limits, a profile or a log."""
        limits = Limits(self._check_closed, options, stop)
        profiler, log = self._profiler, self._run_log(options)
        profile = None if profiler is None else profiler.begin_run(limits.tag)
        hooks.urgent = options is not None or stop is not None
        hooks.only_needed = options is not None and options.only_execute_path_to_fetches
        hooks.check = chain_checks(limits.check, None if profile is None else profile.check)
        if compiled.executable.times_steps:  # it looks after both itself, whole steps at a time
            hooks.check, hooks.timeline = limits.check, profile
        else:
            hooks.observe = chain_observers(
                hooks.observe,
                None if profile is None else profile.observe,
                limits.memory_observer(self._options.memory_limit),
            )
        started = time.perf_counter()
        results = compiled.executable.run(feeds, names, hooks)
        if log is not None:
            log.debug("run %s took %.3f ms", limits.tag, (time.perf_counter() - started) * 1e3)
        if profile is not None:
            profile.finish()
        return results

    def _run_log(self, options: RunOptions | None) -> SessionLog | None:
        if options is None or options.log_level is None:
            return self._log if self._log.enabled(logging.DEBUG) else None
        return SessionLog(options.log_level, options.logid)

    def _own(self, results: list[Any], feeds: dict[str, Any]) -> list[Any]:
        if self._guard is None:
            graphs = [self._source, *(c.graph for c in self._compiled.values())]
            self._guard = AliasGuard(t.raw() for graph in graphs for t in graph.initializers.values())
        return self._guard.own(results, feeds.values())

    def run_async(
        self,
        inputs: Mapping[str, Any] | Sequence[str] | None,
        output_names: Mapping[str, Any] | Sequence[str] | None = None,
        callback: Callable[[list[Any], Any, str], None] | None = None,
        user_data: Any = None,
        run_options: RunOptions | None = None,
    ) -> RunFuture | None:
        """Run in the background.

        ``await session.run_async(feed)`` and ``session.run_async(feed).result()`` give the
        outputs; ``run_async(output_names, feed, callback, user_data)`` is ONNX Runtime's form,
        which calls ``callback(results, user_data, error_text)`` and returns None. The feed and
        the names may come in either order.

        Example:
            >>> import asyncio
            >>> g = Graph("g")
            >>> _ = g.add_input("x", [1]), g.add_node("n", "Neg", ["x"], ["y"]), g.add_output("y", [1])
            >>> async def main():
            ...     return await InferenceSession(g).run_async({"x": [1]})
            >>> asyncio.run(main())
            [array([-1.], dtype=float32)]
        """
        self._open()
        feed, names = (inputs, output_names) if isinstance(inputs, Mapping) else (output_names, inputs)
        if not isinstance(feed, Mapping):
            raise InputError("run_async needs a feed: run_async({name: value})")
        from pyflame_rt.futures import RunFuture, RunThreads

        future = RunFuture()
        with self._lock:
            self._open()  # still, now that nobody can close it
            self._pool = RunThreads.alive(self._pool)
            self._pool.begin(future, partial(self._fill, future, names, feed, run_options))
        if callback is None:
            return future
        future.add_done_callback(lambda done: _call_back(done, callback, user_data))
        return None

    def _fill(self, future: RunFuture, names: Any, feed: Mapping[str, Any], options: RunOptions | None) -> None:
        if not future.set_running_or_notify_cancel():
            return
        try:
            feeds = self._reader.read(feed)
            result = self._execute(self._names(names), feeds, options, RunHooks(), future.stop)
        except BaseException as error:  # noqa: BLE001 - whoever waits gets it
            future.set_exception(error)
        else:
            future.set_result(result)

    # ------------------------------------------------------------------ bindings

    def io_binding(self) -> IOBinding:
        """A new binding of inputs and outputs to memory."""
        self._open()
        return IOBinding(self)

    def run_with_iobinding(self, iobinding: IOBinding, run_options: RunOptions | None = None) -> None:
        """Run on what is bound."""
        self._open()
        if not isinstance(iobinding, IOBinding):
            raise TypeError(f"run_with_iobinding takes an IOBinding, got {type(iobinding).__name__}")
        iobinding.run(run_options)

    def _run_into(self, output_names: Sequence[str], input_feed: Mapping[str, Any], outputs: list[Any]) -> bool:
        """Run straight into arrays; False when that is not possible, and nothing was done."""
        if self._plain is None or list(output_names) != self._output_names:
            return False
        fast = self._plain.fast_path
        return fast is not None and fast(input_feed, outputs) is not None

    def run_with_ort_values(
        self,
        output_names: Sequence[str] | None,
        input_dict_ort_values: Mapping[str, OrtValue],
        run_options: RunOptions | None = None,
    ) -> list[OrtValue]:
        """Run with OrtValues in and out."""
        return [OrtValue(result) for result in self.run(output_names, input_dict_ort_values, run_options)]

    # ------------------------------------------------------------------ about the model

    def get_inputs(self) -> list[NodeArg]:
        """Inputs that must be fed."""
        self._open()
        return list(self._inputs)

    def get_outputs(self) -> list[NodeArg]:
        """Outputs."""
        self._open()
        return list(self._outputs)

    def get_overridable_initializers(self) -> list[NodeArg]:
        """Inputs that have a default and may be fed."""
        self._open()
        return list(self._overridable)

    def get_modelmeta(self) -> ModelMetadata:
        """Who made the model, and what it says of itself."""
        self._open()
        return metadata_of(self._graph)

    def graph(self) -> Graph:
        """The model as it was loaded; a copy that shares the weights."""
        self._open()
        return self._graph.copy()

    def optimized_graph(self) -> Graph:
        """The model as it runs; a copy that shares the weights."""
        self._open()
        return self._compile(overrides=False).graph.copy()

    def get_initializer(self, name: str) -> Tensor:
        """A weight of the model as it was loaded."""
        self._open()
        return self._graph.get_initializer(name)

    def is_quantized(self) -> bool:
        """True when the session quantized the model, or the model was quantized before."""
        self._open()
        if self._quantization is not None and self._quantization.nodes_quantized:
            return True
        return any(
            n.op_type in _QUANTIZED_OPS or n.op_type.startswith(("QLinear", "Quantized")) for n in self._graph.nodes
        )

    def quantization_report(self) -> Any:
        """What quantization did; None when ``SessionOptions.quantization`` was not set."""
        self._open()
        return self._quantization

    # ------------------------------------------------------------------ about the session

    def get_session_options(self) -> SessionOptions:
        """A copy of the options in use."""
        self._open()
        return self._options.copy()

    def get_providers(self) -> list[str]:
        """Names of the providers in use, the one that runs the model first."""
        self._open()
        active = self._compile(overrides=False).provider.name
        return [active, *(name for name in self._provider_options if name != active)]

    def get_provider_options(self) -> dict[str, dict[str, Any]]:
        """Options of each provider."""
        self._open()
        return {name: dict(options) for name, options in self._provider_options.items()}

    def set_providers(self, providers: Any = None, provider_options: Any = None) -> None:
        """Compile again, for other providers."""
        self._open()
        chosen = self._chosen(providers or (), provider_options)
        for name, _ in chosen:
            find_provider(name)
        with self._lock:
            self._use(chosen)

    def explain(self) -> Explanation:
        """Which node runs where, and why; print it, or show it in a notebook."""
        self._open()
        compiled = self._compile(overrides=False)
        return Explanation(
            compiled.provider.name,
            compiled.provider.note,
            placed(compiled),
            list(compiled.notes),
            dict(compiled.executable.host_steps()),
            {**self._seconds, **compiled.seconds},
        )

    def find_first_nan(self, input_feed: Mapping[str, Any], *, infinities: bool = False) -> NaNFound | None:
        """Where the first NaN of a run appears; None when there is none.

        Args:
            input_feed: as for :meth:`run`; a NaN in it is reported as well.
            infinities: look for infinities, too.
        """
        self._open()
        feeds = self._reader.read(input_feed)
        for name, value in feeds.items():
            place = first_bad(value, infinities)
            if place is not None:
                return NaNFound(name, "", "", *place)
        observe, stop = nan_watcher(infinities)
        try:
            self._execute(self._output_names, feeds, None, RunHooks(observe=observe))
        except stop as found:
            return found.found
        return None

    def memory_stats(self) -> dict[str, int]:
        """Bytes of the weights, how many lie in the contents of their files, and what compiled forms hold."""
        self._open()
        arrays = [t.stored() for t in self._graph.initializers.values()]
        mapped = sum(a.nbytes for a in arrays if not a.flags.owndata and not a.flags.writeable)
        held: dict[str, int] = {}
        for compiled in list(self._compiled.values()):
            for name, size in compiled.executable.memory().items():
                held[name] = held.get(name, 0) + size
        weights = sum(t.size_bytes for t in self._graph.initializers.values())
        return {"weight_bytes": weights, "mapped_bytes": mapped, "initializers": len(arrays), **held}

    def get_profiling_start_time_ns(self) -> int:
        """When profiling began, by ``time.perf_counter_ns``; 0 when it is off."""
        self._open()
        return 0 if self._profiler is None else self._profiler.start_ns

    def end_profiling(self) -> str:
        """Write the profile and stop recording; returns the file's name, "" when it was off."""
        self._open()
        with self._lock:
            profiler, self._profiler = self._profiler, None
        if profiler is None:
            return ""
        return profiler.write(self._options.profile_file_prefix)

    def close(self) -> None:
        """Stop runs under way at their next node and give memory back; may be called again."""
        self._closed.set()
        self._plain = None
        with self._lock:
            if self._pool is not None:
                self._pool.shutdown(wait=False, cancel_futures=True)
                self._pool = None
            for compiled in self._compiled.values():
                compiled.executable.close()
            self._compiled = {}
            self._source = self._graph = Graph(self._graph.name)
            self._guard = None

    def __enter__(self) -> InferenceSession:
        self._open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        from pyflame_rt.custom.carried import pickled

        self._open()
        source = self._path if self._path is not None and self._path.is_file() else self._graph
        return pickled(type(self), source, self._options, self._provider_options, self._graph)

    def __repr__(self) -> str:
        state = "closed" if self._closed.is_set() else ", ".join(self.get_providers())
        return f"InferenceSession({self._graph.name!r}, {state})"


def _call_back(done: Any, callback: Callable[..., None], user_data: Any) -> None:
    error = None if done.cancelled() else done.exception()
    if error is not None and not isinstance(error, PyFlameRTError):
        raise error
    text = "cancelled" if done.cancelled() else "" if error is None else str(error)
    callback([] if text else done.result(), user_data, text)


def _values_of(graph: Graph) -> set[str]:
    made = {name for node in graph.nodes for name in node.outputs if name}
    return made | set(graph.initializers) | {info.name for info in graph.inputs}
