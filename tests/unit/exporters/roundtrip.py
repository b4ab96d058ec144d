"""Import a case of the ONNX suite, export it, and compare what ONNX Runtime makes of both.

``python -m tests.unit.exporters.roundtrip [jobs]`` does the whole suite.
"""

from __future__ import annotations

import ctypes
import sys
import warnings
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import numpy_helper
from onnx.backend.test.runner import Runner

from pyflame_rt.exporters import onnx_model
from pyflame_rt.graph.errors import UnsupportedOperatorError
from pyflame_rt.importers.onnx_importer import graph_from_proto
from tests.conformance.suite import load_cases

KINDS = ("node", "simple", "pytorch-converted", "pytorch-operator")
onnxruntime.set_default_logger_severity(4)
# Random values differ from run to run whatever we do.
_RANDOM = {
    "RandomNormal",
    "RandomNormalLike",
    "RandomUniform",
    "RandomUniformLike",
    "Bernoulli",
    "Multinomial",
    "Dropout",
}


@cache
def cases() -> dict[str, Any]:
    """Every case, by name."""
    return {case.name: case for kind in KINDS for case in load_cases(kind)}


def load_case(name: str) -> tuple[onnx.ModelProto, list[tuple[list[Any], list[Any]]]]:
    """Model, and sets of inputs and outputs, of a case."""
    case = cases()[name]
    if case.model is not None:
        sets = [([_plain(v) for v in given], [_plain(v) for v in wanted]) for given, wanted in case.data_sets]
        return case.model, sets
    folder = Path(case.model_dir)
    model = onnx.load(folder / "model.onnx")
    sets = []
    for data in sorted(folder.glob("test_data_set*")):
        sets.append((_values(data, "input", model.graph.input), _values(data, "output", model.graph.output)))
    return model, sets


def _values(folder: Path, kind: str, infos: Any) -> list[Any]:
    values: list[Any] = []
    for i in range(len(list(folder.glob(f"{kind}_*.pb")))):
        Runner._load_proto(None, str(folder / f"{kind}_{i}.pb"), values, infos[i].type)  # type: ignore[arg-type]
    return values


def _plain(item: Any) -> Any:
    if isinstance(item, onnx.TensorProto):
        return numpy_helper.to_array(item)
    return np.asarray(item) if isinstance(item, np.generic) else item


def run_ort(model: onnx.ModelProto, inputs: list[Any]) -> list[Any]:
    """Outputs of ONNX Runtime; element types NumPy lacks go in and out as their bytes."""
    session = onnxruntime.InferenceSession(model.SerializeToString(), _options(), providers=["CPUExecutionProvider"])
    defaults = {tensor.name for tensor in model.graph.initializer}
    required = [info for info in model.graph.input if info.name not in defaults]
    declared = required if len(inputs) <= len(required) else list(model.graph.input)
    feeds = {info.name: _feed(value, info.type) for info, value in zip(declared, inputs, strict=False)}
    names = [output.name for output in session.get_outputs()]
    if all(_has_numpy(info.type) for info in model.graph.output):
        return list(session.run(names, feeds))
    values = session.run_with_ort_values(
        names,
        {k: v if hasattr(v, "data_ptr") else onnxruntime.OrtValue.ortvalue_from_numpy(v) for k, v in feeds.items()},
    )
    return [_bytes_of(value) for value in values]


def _options() -> onnxruntime.SessionOptions:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return options


def _has_numpy(kind: onnx.TypeProto) -> bool:
    return not kind.HasField("tensor_type") or kind.tensor_type.elem_type in _NUMPY


_NUMPY = {*range(1, 14)}
_PACKED = {21, 22, 23, 25, 26}


def _feed(value: Any, kind: onnx.TypeProto) -> Any:
    if _has_numpy(kind) or not isinstance(value, np.ndarray):
        return np.ascontiguousarray(value).reshape(value.shape) if isinstance(value, np.ndarray) else value
    if kind.tensor_type.elem_type in _PACKED:
        raise ValueError("ONNX Runtime's Python has no way in for types below a byte")
    return onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(
        np.ascontiguousarray(value).view(np.uint16 if value.dtype.itemsize == 2 else np.uint8),
        kind.tensor_type.elem_type,
    )


def _bytes_of(value: onnxruntime.OrtValue) -> Any:
    data = ctypes.string_at(value.data_ptr(), value.tensor_size_in_bytes())
    return (value.data_type(), tuple(value.shape()), data)


def same(a: Any, b: Any) -> bool:
    """Equal types, shapes and values, lists and None included."""
    if isinstance(a, (list, tuple)):
        return isinstance(b, type(a)) and len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, np.ndarray):
        if not isinstance(b, np.ndarray) or a.dtype != b.dtype or a.shape != b.shape:
            return False
        # ONNX Runtime keeps another kernel for each version of AveragePool: the last bits differ.
        return np.allclose(a, b, 1e-5, 1e-6, equal_nan=True) if a.dtype.kind in "fc" else np.array_equal(a, b)
    return bool(a == b)


def check_case(name: str) -> str:
    """Raise unless the export of a case runs as the original does; says what was special about it."""
    model, sets = load_case(name)
    graph = graph_from_proto(model)
    try:
        exported = onnx_model(graph)
    except UnsupportedOperatorError as error:
        if "cannot be exported to ONNX" in str(error):
            return "refused by name"
        raise
    _check_proto(model, exported)
    again = graph_from_proto(exported)
    inlined = any(node.domain == "pyflame" for node in graph.nodes)
    assert inlined or again.fingerprint(weights=True) == graph.fingerprint(weights=True)
    kind = "inlined, " if inlined else ""
    random = any(node.op_type in _RANDOM for node in exported.graph.node)
    try:
        wanted = [run_ort(model, inputs) for inputs, _ in sets]
    except Exception:  # noqa: BLE001 - whatever ONNX Runtime lacks
        return kind + ("random" if random else _check_against_suite(exported, sets))
    if random:
        return kind + "random"
    for (inputs, _), want in zip(sets, wanted, strict=True):
        got = run_ort(exported, inputs)
        assert same(want, got), f"{want} became {got}"
    return kind + "equal"


def _check_against_suite(exported: onnx.ModelProto, sets: list[Any]) -> str:
    """ONNX Runtime refuses the original: perhaps not the export; the suite's own results judge then."""
    try:
        results = [run_ort(exported, inputs) for inputs, _ in sets]
    except Exception:  # noqa: BLE001 - refused as well
        return "not run by ONNX Runtime"
    for (_, wanted), got in zip(sets, results, strict=True):
        for want, value in zip(wanted, got, strict=True):
            if isinstance(value, np.ndarray) and value.dtype.kind in "fc":
                np.testing.assert_allclose(value, want, rtol=2e-3, atol=1e-3)
    return "only the export runs"


def _check_proto(original: onnx.ModelProto, exported: onnx.ModelProto) -> None:
    for full in (False, True):
        try:
            onnx.checker.check_model(original, full_check=full)
        except Exception:  # noqa: BLE001 - whatever the checker says of the original
            continue
        onnx.checker.check_model(exported, full_check=full)


def _outcome(name: str) -> tuple[str, str, str]:
    warnings.simplefilter("ignore")
    try:
        return name, check_case(name), ""
    except Exception as error:  # noqa: BLE001 - counted and printed
        return name, "FAILED", f"{type(error).__name__}: {error}"


def main(jobs: int) -> int:
    """The whole suite; prints failures and counts."""
    counts: Counter[str] = Counter()
    with ProcessPoolExecutor(jobs) as pool:
        for name, kind, message in pool.map(_outcome, sorted(cases()), chunksize=16):
            counts[kind] += 1
            if kind == "FAILED" or "-v" in sys.argv:
                sys.stdout.write(f"{name} {kind} {message[:400]!r}\n")
    sys.stdout.write(f"{dict(counts)}\n")
    return 1 if counts["FAILED"] else 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 2))
