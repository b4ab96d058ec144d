"""The conformance suite of the onnx package, one case at a time."""

from __future__ import annotations

import os
import tempfile
import warnings
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import onnx
import onnx.backend.test.loader as loader
from onnx import ModelProto
from onnx.backend.test.runner import Runner

import pyflame_rt

KINDS = ("node", "real", "simple", "pytorch-converted", "pytorch-operator")
PROVIDERS = (
    "CPUExecutionProvider",
    "ReferenceExecutionProvider",
    "TorchExecutionProvider",
    "MLXExecutionProvider",
)
EXPECTED = Path(__file__).with_name("expected_failures.txt")


@dataclass(frozen=True)
class Outcome:
    """What running a case showed: how many of its nodes left the library for NumPy."""

    host_steps: int


@cache
def expected_failures() -> dict[tuple[str, str], str]:
    """(case, provider) -> reason; a listed case that passes fails the suite."""
    rows = [line.split(maxsplit=2) for line in EXPECTED.read_text().splitlines() if line and line[0] != "#"]
    return {(name, p): reason for name, only, reason in rows for p in PROVIDERS if only in ("*", p)}


class _Session:
    """The backend the onnx runner drives: our session, remembering the last one it made."""

    def __init__(self, provider: str) -> None:
        self.provider = provider
        self.last: pyflame_rt.InferenceSession | None = None

    def supports_device(self, device: str) -> bool:
        return device == "CPU"

    def is_compatible(self, model: ModelProto, device: str = "CPU", **_: object) -> bool:
        return True

    def prepare(self, model: ModelProto, device: str = "CPU", **_: object) -> _Session:
        self.last = pyflame_rt.InferenceSession(model.SerializeToString(), providers=[self.provider])
        return self

    def run(self, inputs: list[object], **_: object) -> list[object]:
        assert self.last is not None
        names = [info.name for info in self.last.get_inputs()]
        return self.last.run(None, dict(zip(names, inputs, strict=False)))


@cache
def load_cases(kind: str) -> tuple[Any, ...]:
    """Cases of one kind; making them divides by zero and overflows on purpose, which is no news here."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return tuple(loader.load_model_tests(kind=kind))


@cache
def case_names() -> tuple[str, ...]:
    """Names of all cases."""
    return tuple(case.name for kind in KINDS for case in load_cases(kind))


CLASSES = ("float32/int64/bool node cases", "other node cases of numbers", "strings, sequences, optionals", "models")
_STRING = onnx.TensorProto.STRING
_PLAIN = {onnx.TensorProto.FLOAT, onnx.TensorProto.INT64, onnx.TensorProto.BOOL}


@cache
def case_class(name: str) -> str:
    """One of CLASSES: node cases by the types of all inputs and outputs of their graph; whole models apart."""
    case = next((c for c in load_cases("node") if c.name == name), None)
    if case is None:
        return CLASSES[3]
    kinds = [info.type for info in (*case.model.graph.input, *case.model.graph.output)]
    if any(k.WhichOneof("value") != "tensor_type" or k.tensor_type.elem_type == _STRING for k in kinds):
        return CLASSES[2]
    return CLASSES[0] if all(k.tensor_type.elem_type in _PLAIN for k in kinds) else CLASSES[1]


@cache
def _items(provider: str) -> tuple[_Session, dict[str, object]]:
    os.environ.setdefault("ONNX_HOME", str(Path(tempfile.gettempdir()) / "onnx_home"))
    session = _Session(provider)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        runner = Runner(session, "conformance")  # type: ignore[arg-type]
    items = {name: item for kind in runner._test_items.values() for name, item in kind.items()}
    return session, items


def run_case(name: str, provider: str) -> Outcome:
    """Run one case with onnx's own inputs, outputs and tolerances; raises where it fails."""
    session, items = _items(provider)
    items[f"{name}_cpu"].func(None)  # type: ignore[attr-defined]
    assert session.last is not None
    return Outcome(session.last.explain().host_step_count)
