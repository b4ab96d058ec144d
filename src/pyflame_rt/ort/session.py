"""InferenceSession to the letter of ONNX Runtime's."""

from __future__ import annotations

import functools
import warnings
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import numpy as np

from pyflame_rt.graph import AnyType, TensorInfo
from pyflame_rt.graph.errors import DTypeMismatchError, InputError, PyFlameRTError, ShapeMismatchError
from pyflame_rt.graph.records import dataclass
from pyflame_rt.iobinding import OrtValue, ort_type_text
from pyflame_rt.ort.capi.onnxruntime_pybind11_state import InvalidArgument, translate
from pyflame_rt.ort.options import ExecutionOrder, SessionOptions
from pyflame_rt.providers import DEFAULT_PROVIDER, get_all_providers, get_available_providers
from pyflame_rt.session import InferenceSession as _InferenceSession
from pyflame_rt.settings import warn_arguments, warn_unused

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Mapping, Sequence

    from pyflame_rt.options import ModelMetadata

__all__ = ["ORT_PROVIDERS", "InferenceSession", "NodeArg"]

ORT_PROVIDERS = [
    "NvTensorRTRTXExecutionProvider",
    "TensorrtExecutionProvider",
    "CUDAExecutionProvider",
    "MIGraphXExecutionProvider",
    "OpenVINOExecutionProvider",
    "DnnlExecutionProvider",
    "VitisAIExecutionProvider",
    "QNNExecutionProvider",
    "NnapiExecutionProvider",
    "VSINPUExecutionProvider",
    "JsExecutionProvider",
    "CoreMLExecutionProvider",
    "ACLExecutionProvider",
    "DmlExecutionProvider",
    "RknpuExecutionProvider",
    "WebNNExecutionProvider",
    "WebGpuExecutionProvider",
    "XnnpackExecutionProvider",
    "CANNExecutionProvider",
    "AzureExecutionProvider",
    "ROCMExecutionProvider",
]
"""Providers of ONNX Runtime that programs name and that are not here."""

_UNSET_VERSION = 2**63 - 1
P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class NodeArg:
    """Name, type and shape of an input or output; named sizes by name.

    Example:
        >>> NodeArg("x", "tensor(float)", ["N", 3])
        NodeArg(name='x', type='tensor(float)', shape=['N', 3])
    """

    name: str
    type: str
    shape: list[Any]

    @classmethod
    def of(cls, info: TensorInfo) -> NodeArg:
        """The description of one graph input or output."""
        shape = () if isinstance(info.type, AnyType) or info.shape is None else info.shape
        dims = [d if d is None or isinstance(d, int) else str(d) for d in shape]
        return cls(info.name, ort_type_text(info.type), dims)


def _translated(call: Callable[P, R]) -> Callable[P, R]:
    """Our errors leave as ONNX Runtime's."""

    @functools.wraps(call)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return call(*args, **kwargs)
        except PyFlameRTError as error:
            raise translate(error, loading=call.__name__ == "__init__") from error

    return wrapper


class InferenceSession(_InferenceSession):
    """A model, ready to run, as ONNX Runtime's class of that name.

    Providers that ONNX Runtime knows and that are not here are passed over with a warning, as it
    does; a name nobody knows is a ValueError.

    Example:
        >>> import pyflame_rt, pyflame_rt.ort as onnxruntime
        >>> g = pyflame_rt.Graph("g")
        >>> _ = g.add_input("x", ["N"]), g.add_node("n", "Neg", ["x"], ["y"]), g.add_output("y", ["N"])
        >>> onnxruntime.InferenceSession(g).get_inputs()
        [NodeArg(name='x', type='tensor(float)', shape=['N'])]
    """

    _reads_any_suffix = True
    _warning_depth = 5
    _profiled_from = 0

    @_translated
    def __init__(
        self,
        path_or_bytes: str | bytes | os.PathLike[str],
        sess_options: SessionOptions | None = None,
        providers: Sequence[str | tuple[str, dict[Any, Any]]] | None = None,
        provider_options: Sequence[dict[Any, Any]] | None = None,
        **kwargs: Any,
    ) -> None:
        self._sess_options = SessionOptions() if sess_options is None else sess_options
        native = self._sess_options.native() if isinstance(self._sess_options, SessionOptions) else sess_options
        if getattr(self._sess_options, "execution_order", ExecutionOrder.DEFAULT) is not ExecutionOrder.DEFAULT:
            warn_unused([f"execution_order={self._sess_options.execution_order} has no effect: plans fix the order"], 3)
        kwargs.pop("enable_fallback", None)  # ONNX Runtime's own default is True; see enable_fallback()
        disabled = kwargs.pop("disabled_optimizers", None)
        warn_arguments("InferenceSession", kwargs, 3)  # ONNX Runtime ignores what it does not know
        try:
            super().__init__(path_or_bytes, native, providers or (), provider_options, disabled_optimizers=disabled)
        except TypeError as error:
            raise TypeError(f"Unable to load from type '{type(path_or_bytes)}'") from error

    def _node_arg(self, info: Any) -> Any:
        return NodeArg.of(info)

    def _chosen(self, providers: Any, provider_options: Any) -> list[tuple[str, dict[str, Any]]]:
        try:
            return super()._chosen(_present(providers, provider_options), None)
        except InputError as error:
            raise ValueError(str(error)) from error

    def run(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Any],
        run_options: Any = None,
        *,
        taps: Sequence[str] | None = None,
    ) -> list[Any]:
        """Run the model; None or [] asks for all outputs."""
        if not hasattr(input_feed, "keys"):
            raise TypeError(f"input_feed maps input names to values. Received: {type(input_feed).__name__}")
        self._validate_input(list(input_feed))
        try:
            return super().run(output_names, input_feed, run_options, taps=taps)
        except PyFlameRTError as error:
            raise self._as_ort(error, output_names, input_feed) from error

    def _validate_input(self, feed_input_names: list[str]) -> None:
        missing = [
            arg.name for arg in self._inputs if arg.name not in feed_input_names and not arg.type.startswith("optional")
        ]
        if missing:
            raise ValueError(f"Required inputs ({missing}) are missing from input feed ({feed_input_names}).")

    def _as_ort(self, error: PyFlameRTError, names: Sequence[str] | None, feed: Mapping[str, Any]) -> Exception:
        """The error with the words ONNX Runtime uses, where programs look for them."""
        if str(error).startswith("node "):
            return translate(error)
        known = {arg.name: arg for arg in (*self._inputs, *self._overridable)}
        if isinstance(error, InputError):
            for name in feed:
                if name not in known:
                    return InvalidArgument.of(f"Invalid input name: {name}")
            for name in names or ():
                if name not in self._output_names:
                    return InvalidArgument.of(f"Invalid output name:{name}")
        text = _mismatch(error, known, feed)
        return translate(error) if text is None else InvalidArgument.of(text)

    def run_async(  # type: ignore[override]
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Any],
        callback: Callable[[list[Any], Any, str], None],
        user_data: Any,
        run_options: Any = None,
    ) -> None:
        """Run in the background and call ``callback(results, user_data, error_text)``."""
        self._validate_input(list(input_feed))
        super().run_async(output_names, input_feed, callback, user_data, run_options)

    def get_session_options(self) -> Any:
        """The options the session was made with."""
        return self._sess_options

    def get_modelmeta(self) -> ModelMetadata:
        """Who made the model, and what it says of itself."""
        meta = super().get_modelmeta()
        meta.version = meta.version or _UNSET_VERSION
        return meta

    def set_providers(self, providers: Any = None, provider_options: Any = None) -> None:
        """Compile again, for other providers."""
        _translated(super().set_providers)(providers, provider_options)

    def enable_fallback(self) -> None:
        """No effect: a run never changes provider."""

    def disable_fallback(self) -> None:
        """No effect: a run never changes provider."""

    def get_profiling_start_time_ns(self) -> int:
        """When profiling began, also after its end; 0 where it was never on."""
        return super().get_profiling_start_time_ns() or self._profiled_from

    def end_profiling(self) -> str:
        """Write the profile, a plain list of Chrome events; returns the file's name."""
        self._profiled_from = self.get_profiling_start_time_ns()
        with self._lock:
            profiler, self._profiler = self._profiler, None
        return "" if profiler is None else profiler.write(self._options.profile_file_prefix, plain_list=True)

    def __reduce__(self) -> tuple[Any, ...]:
        from pyflame_rt.custom.carried import pickled

        source = self._path if self._path is not None and self._path.is_file() else self._graph
        return pickled(type(self), source, self._sess_options, self._provider_options, self._graph)


def _present(providers: Any, provider_options: Any) -> list[Any]:
    """What is available of the providers asked for; the CPU when nothing is left."""
    given = [providers] if isinstance(providers, str) else list(providers or ())
    if provider_options is not None and len(provider_options) != len(given):
        raise ValueError("'providers' and 'provider_options' should be the same length if both are given.")
    if not given:
        return []
    available, kept = get_available_providers(), []
    for i, entry in enumerate(given):
        name = entry[0] if isinstance(entry, tuple) else entry
        if name in available:
            own: Any = entry[1] if isinstance(entry, tuple) else {}
            options: dict[str, Any] = dict(provider_options[i] if provider_options else own)
            if options and name == DEFAULT_PROVIDER:  # ONNX Runtime's takes any, and uses none
                warnings.warn(f"{name} takes no options; {options} has no effect", UserWarning, stacklevel=6)
                options = {}
            kept.append((name, options))
        elif name in ORT_PROVIDERS or name in get_all_providers():
            there = ", ".join(available)
            text = f"Specified provider '{name}' is not in available provider names.Available providers: '{there}'"
            warnings.warn(text, UserWarning, stacklevel=6)
        else:
            raise ValueError(f"Unknown Provider Type: {name}. Available: {', '.join(available)}")
    return kept or [DEFAULT_PROVIDER]


def _mismatch(error: PyFlameRTError, known: Mapping[str, NodeArg], feed: Mapping[str, Any]) -> str | None:
    for name, value in feed.items():
        if name not in known:
            continue
        if isinstance(error, ShapeMismatchError) and (text := _shape_text(known[name], _shape(value))):
            return text
        if isinstance(error, DTypeMismatchError) and isinstance(value, np.ndarray | OrtValue):
            actual = (OrtValue(value) if isinstance(value, np.ndarray) else value).data_type()
            if actual != known[name].type:
                return f"Unexpected input data type. Actual: ({actual}) , expected: ({known[name].type})"
    return None


def _shape(value: Any) -> tuple[int, ...]:
    return tuple(value.shape()) if isinstance(value, OrtValue) else np.shape(value)


def _shape_text(arg: NodeArg, shape: tuple[int, ...]) -> str | None:
    end = " Please fix either the inputs/outputs or the model."
    if not arg.shape:
        return None
    if len(shape) != len(arg.shape):
        return f"Invalid rank for input: {arg.name} Got: {len(shape)} Expected: {len(arg.shape)}{end}"
    wrong = [
        f" index: {i} Got: {got} Expected: {want}\n"
        for i, (got, want) in enumerate(zip(shape, arg.shape, strict=True))
        if isinstance(want, int) and want != got
    ]
    if not wrong:
        return None
    return f"Got invalid dimensions for input: {arg.name} for the following indices\n{''.join(wrong)}{end}"
