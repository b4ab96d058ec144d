"""What importers share: options, results, and everything that happens after reading."""

from __future__ import annotations

import os
import time
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyflame_rt.graph import Graph, Shape, TensorInfo, TensorType
from pyflame_rt.graph.errors import (
    InputError,
    InvalidModelError,
    ModelNotFoundError,
    PyFlameRTError,
    UnsupportedOperatorError,
    ValidationError,
)
from pyflame_rt.graph.records import dataclass
from pyflame_rt.ops.core.inference import infer_types
from pyflame_rt.ops.core.registry import find_op, unknown_operator_message

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

__all__ = ["ImportOptions", "ImportResult", "ImportStats", "Importer"]

# Smaller constants steer shape inference and stay when weights are left out.
MAX_KEPT = 1024


@dataclass(slots=True)
class ImportOptions:
    """How a model is imported.

    Attributes:
        validate: check the structure of the graph; problems are errors.
        infer_shapes: fill in the type of every value; nodes that do not fit are warnings.
        optimize: fold constants and drop dead nodes.
        strict: every warning is an error, and the source format's own checker must agree.
        input_shapes: shapes for inputs, in place of the declared ones.
        load_initializers: False leaves out the weights: they become inputs.
        opset_version: read the model as of this opset, whatever it declares.
        allow_unsupported: import operators nobody declared, too.

    Example:
        >>> ImportOptions(strict=True).validate
        True
    """

    validate: bool = True
    infer_shapes: bool = True
    optimize: bool = False
    strict: bool = False
    input_shapes: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    load_initializers: bool = True
    opset_version: int | None = None
    allow_unsupported: bool = False


@dataclass(slots=True)
class ImportStats:
    """What an import met.

    Example:
        >>> ImportStats().node_count
        0
    """

    node_count: int = 0
    initializer_count: int = 0
    parameter_count: int = 0
    import_time_ms: float = 0.0
    warnings: list[str] = field(default_factory=list)


@dataclass(slots=True)
class ImportResult:
    """A graph, or why there is none.

    Attributes:
        success: True when there is a graph; the result itself is true then, too.
        graph: the imported graph.
        error: what went wrong, "" after success.
        stats: counts and warnings.
        exception: the error as it was raised.

    Example:
        >>> result = ImportResult(False, error="no such file")
        >>> bool(result), result.error
        (False, 'no such file')
    """

    success: bool
    graph: Any = None
    error: str = ""
    stats: ImportStats = field(default_factory=ImportStats)
    exception: PyFlameRTError | None = None

    def __bool__(self) -> bool:
        return self.success

    def unwrap(self) -> Graph:
        """The graph; raises the error when there is none."""
        if self.exception is not None:
            raise self.exception
        return self.graph


class Importer:
    """Base of the importers: subclasses read a file, the rest is common.

    Attributes:
        name: under which the importer is registered.
        suffixes: of the files it reads.
        kinds: of content it reads (:mod:`pyflame_rt.importers.detection`), whatever the suffix.
        makes_graphs: False when the files hold no graph, so that a session cannot open them.
    """

    name = ""
    suffixes: tuple[str, ...] = ()
    kinds: tuple[str, ...] = ()
    makes_graphs = True

    def read(self, source: Any, options: ImportOptions) -> Graph:
        """The graph as the file has it."""
        raise NotImplementedError

    def locate(self, source: Any) -> Any:
        """What is to be read, which must be there: a file, unless it is no path."""
        if isinstance(source, (str, os.PathLike)) and not Path(source).is_file():
            raise ModelNotFoundError(f"there is no file {str(source)!r}")
        return source

    def check_source(self, source: Any) -> list[str]:
        """Messages of the format's own checker; asked only when strict."""
        del source
        return []

    def can_import(self, path: str | os.PathLike[str]) -> bool:
        """True when the file looks like one of this importer's."""
        return Path(path).suffix.lower() in self.suffixes

    def load(self, source: Any, options: ImportOptions | None = None) -> Graph:
        """Read a model for a session, which checks it itself; raises typed errors."""
        return self.read(self.locate(source), ImportOptions() if options is None else options)

    def import_model(self, source: Any, options: ImportOptions | None = None) -> ImportResult:
        """Import a model; failures are reported in the result, not raised."""
        chosen = ImportOptions() if options is None else options
        return self._reported(source, chosen, ImportStats(), lambda: self.read(self.locate(source), chosen))

    def _reported(
        self, source: Any, chosen: ImportOptions, stats: ImportStats, read: Callable[[], Graph]
    ) -> ImportResult:
        started = time.perf_counter()
        try:
            graph = read()
            if chosen.strict:
                stats.warnings += self.check_source(source)
            finish(graph, chosen, stats)
        except PyFlameRTError as error:
            stats.import_time_ms = (time.perf_counter() - started) * 1e3
            return ImportResult(False, None, str(error), stats, error)
        stats.import_time_ms = (time.perf_counter() - started) * 1e3
        return ImportResult(True, graph, "", stats)

    import_file = import_model


def finish(graph: Graph, options: ImportOptions, stats: ImportStats) -> None:
    """What the options ask for after reading; fills in the statistics."""
    for name, shape in options.input_shapes.items():
        _set_shape(graph, name, shape)
    if not options.allow_unsupported:
        _refuse_unknown(graph)
    if options.validate and (errors := graph.validate()):
        raise ValidationError(f"graph {graph.name!r} is not valid", errors)
    if options.infer_shapes:
        stats.warnings += infer_types(graph, strict=options.strict)
    if options.optimize:
        _optimize(graph, stats)
    stats.node_count = len(graph.nodes)
    stats.initializer_count = len(graph.initializers)
    stats.parameter_count = sum(t.num_elements for t in graph.initializers.values())
    if not options.load_initializers:
        _leave_out_weights(graph)
    if options.strict and stats.warnings:
        raise InvalidModelError(f"graph {graph.name!r}: " + "; ".join(stats.warnings))


def _set_shape(graph: Graph, name: str, shape: Sequence[Any]) -> None:
    for i, info in enumerate(graph.inputs):
        if info.name == name:
            graph.inputs[i] = TensorInfo(name, type=TensorType(info.dtype, Shape(shape)))
            # What was declared further down may no longer hold.
            graph.types.clear()
            return
    known = ", ".join(repr(info.name) for info in graph.inputs)
    raise InputError(f"input_shapes names {name!r}, which is no input. Inputs: {known}")


def _refuse_unknown(graph: Graph) -> None:
    pending = [graph]
    while pending:
        current = pending.pop()
        pending.extend(current.subgraphs())
        for node in current.nodes:
            if find_op(node.op_type, node.domain) is None:
                message = unknown_operator_message(node.op_type, node.domain)
                raise UnsupportedOperatorError(f"node {node.name!r} of model {graph.name!r}: {message}")


def _optimize(graph: Graph, stats: ImportStats) -> None:
    from pyflame_rt.opt import OptLevel, optimize

    stats.warnings += optimize(graph, OptLevel.BASIC).warnings


def _leave_out_weights(graph: Graph) -> None:
    known = {info.name for info in graph.inputs}
    for name, tensor in list(graph.initializers.items()):
        if tensor.num_elements > MAX_KEPT:
            del graph.initializers[name]
            if name not in known:
                graph.inputs.append(TensorInfo(name, type=TensorType(tensor.dtype, tensor.shape)))
