"""Load a damaged file as a user would: only typed errors may come out, soon, and in bounded memory."""

from __future__ import annotations

import logging
import os
import resource
import signal
import warnings
from typing import Any

import numpy as np

import pyflame_rt
from pyflame_rt import InferenceSession, RunOptions
from pyflame_rt.graph import AnyType, DType, OptionalType, SequenceType, TensorType, ValueType
from pyflame_rt.graph.errors import PyFlameRTError
from pyflame_rt.ops.core.inference import infer_types

SECONDS = 8
MORE_MEMORY = 1 << 28
_RUN_MS = 300
_MAX_ELEMENTS = 4096


class Hang(BaseException):
    """The time for one file is up; no handler for Exception may swallow it."""


def limit_process() -> None:
    """Bound the memory of this process, and keep it quiet."""
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    np.seterr(all="ignore")
    _warm_up()
    with open("/proc/self/statm") as file:
        now = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (now + MORE_MEMORY, now + MORE_MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGALRM, _alarm)


def _warm_up() -> None:
    """Load every library before memory is bounded: what they need is not the files' doing."""
    graph = pyflame_rt.Graph("warm")
    graph.add_input("x", [4])
    graph.add_node("n", "Relu", ["x"], ["y"])
    graph.add_output("y", [4])
    pyflame_rt.InferenceSession(graph).run(None, {"x": np.ones(4, np.float32)})


def _alarm(*_: Any) -> None:
    raise Hang


def check(data: bytes) -> str:
    """How far a file gets: the name of the typed error, or "ran". Anything else is raised."""
    signal.alarm(SECONDS)
    try:
        session = InferenceSession(data, providers=[os.environ.get("FUZZ_PROVIDER", "ReferenceExecutionProvider")])
        infer_types(session._graph.copy())
        feeds = {info.name: zeros_of(info.type) for info in session._graph.required_inputs}
        if any(value is None for value in feeds.values()):
            return "loaded"
        session.run(None, feeds, RunOptions(timeout_ms=_RUN_MS))
    except PyFlameRTError as error:
        return type(error).__name__
    finally:
        signal.alarm(0)
    return "ran"


def zeros_of(kind: ValueType) -> Any:
    """Zeros to feed; None where the input is large or of no plain kind."""
    match kind:
        case TensorType(dtype=dtype, shape=shape):
            dims = [d if isinstance(d, int) else 1 for d in shape or ()]
            if len(dims) > 32 or np.prod([float(max(d, 1)) for d in dims]) > _MAX_ELEMENTS:
                return None
            return np.full(dims, "", dtype=object) if dtype is DType.String else np.zeros(dims, dtype.numpy)
        case SequenceType(elem=elem):
            return [item] if (item := zeros_of(elem)) is not None else None
        case OptionalType(elem=elem):
            return zeros_of(elem)
        case AnyType() | _:
            return None
