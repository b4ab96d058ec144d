"""Absurd attributes and sizes: every operator of ONNX's own cases with one value that nobody means.

Each model is run on its case's inputs with default options, as a user would run a file from elsewhere: an answer or a
typed error may come out, within 10 s of CPU time and 2 GB of memory. ``python -m tests.fuzz.absurd`` runs all of them.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import resource
import signal
import sys
import time
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
from onnx import AttributeProto, defs, helper, numpy_helper

from tests.conformance.suite import load_cases
from tests.fuzz.structures import structures

if TYPE_CHECKING:
    from collections.abc import Iterator

CPU_SECONDS = 10
MOST_BYTES = 2 * 10**9
INTS = (-1, -(2**31), 0, 7, 10**9, 2**31, 2**62, -(2**63))
FLOATS = (float("nan"), float("inf"), -1.0, 0.0, 1e30)
STRINGS = (b"", b"nonsense", b"(a*)*b" * 40, b"\xff\xfe")
SMALL = 32  # elements of an integer input that is made absurd

Case = tuple[str, bytes, list[Any]]  # name, model, inputs


def _lists(values: tuple[Any, ...], count: int) -> Iterator[list[Any]]:
    yield []
    for value in values:
        yield [value] * max(count, 1)
    yield [values[3]] * (count + 1)


def _attributes(name: str, kind: int, given: AttributeProto | None) -> Iterator[AttributeProto]:
    """Absurd values of one attribute."""
    count = 0 if given is None else max(len(given.ints), len(given.floats), len(given.strings))
    values: dict[int, Any] = {
        AttributeProto.INT: INTS,
        AttributeProto.FLOAT: FLOATS,
        AttributeProto.STRING: STRINGS,
        AttributeProto.INTS: list(_lists(INTS, count)),
        AttributeProto.FLOATS: list(_lists(FLOATS, count)),
        AttributeProto.STRINGS: [[], [b""], [b"nonsense"] * 3],
    }
    for value in values.get(kind, ()):
        yield helper.make_attribute(name, value, attr_type=kind)


def _schema(node: onnx.NodeProto) -> Any:
    try:
        return defs.get_schema(node.op_type, domain=node.domain)
    except defs.SchemaError:
        return None


def _changed(model: onnx.ModelProto) -> Iterator[tuple[str, onnx.ModelProto]]:
    """The model with one attribute of its last node changed, added or taken away."""
    node = model.graph.node[-1]
    schema = _schema(node)
    given = {a.name: a for a in node.attribute}
    kinds = {n: int(a.type.value) for n, a in schema.attributes.items()} if schema is not None else {}
    kinds |= {n: a.type for n, a in given.items()}
    for name, kind in sorted(kinds.items()):
        for i, attribute in enumerate(_attributes(name, kind, given.get(name))):
            twin = onnx.ModelProto()
            twin.CopyFrom(model)
            target = twin.graph.node[-1]
            kept = [a for a in target.attribute if a.name != name]
            del target.attribute[:]
            target.attribute.extend([*kept, attribute])
            yield f"{name}#{i}", twin


def _inputs_changed(inputs: list[Any]) -> Iterator[tuple[str, list[Any]]]:
    """The inputs with the small integer ones, which are often sizes, made absurd."""
    for i, array in enumerate(inputs):
        if isinstance(array, np.ndarray) and array.dtype == np.int64 and 0 < array.size <= SMALL:
            for k, value in enumerate(INTS):
                yield f"input{i}#{k}", [*inputs[:i], np.full_like(array, value), *inputs[i + 1 :]]


def _loaded(case: Any) -> tuple[onnx.ModelProto, list[Any]] | None:
    """Model and inputs of a case."""
    model, data = case.model, case.data_sets
    if model is None:
        model = onnx.load(str(Path(case.model_dir) / "model.onnx"))
    if data is None:
        files = sorted(Path(case.model_dir, "test_data_set_0").glob("input_*.pb"), key=lambda p: int(p.stem[6:]))
        try:
            inputs = [numpy_helper.to_array(onnx.load_tensor(str(f))) for f in files]
        except (ValueError, TypeError, onnx.checker.ValidationError):
            return None
    else:
        inputs = list(data[0][0])
    return model, inputs


@cache
def absurd_cases() -> tuple[Case, ...]:
    """One case of ONNX's suite for each operator and set of attributes, changed in every way."""
    seen: set[Any] = set()
    made: list[Case] = []
    for case in load_cases("node"):
        found = _loaded(case)
        if found is None or len(found[0].graph.node) != 1:
            continue
        model, inputs = found
        node = model.graph.node[-1]
        form = (node.domain, node.op_type)
        if form in seen or node.op_type in ("If", "Loop", "Scan", "SequenceMap"):
            continue
        seen.add(form)
        name = f"{node.domain or 'ai.onnx'}:{node.op_type}"
        made += [(f"{name}.{what}", twin.SerializeToString(), inputs) for what, twin in _changed(model)]
        made += [(f"{name}.{what}", model.SerializeToString(), fed) for what, fed in _inputs_changed(inputs)]
    return tuple(made)


@cache
def all_cases() -> tuple[Case, ...]:
    """Absurd attributes, then structures."""
    return (*absurd_cases(), *((name, data, []) for name, data in structures()))


def run_case(data: bytes, inputs: list[Any]) -> str:
    """The name of the typed error, or "ran"; anything else is raised."""
    import pyflame_rt
    from tests.fuzz.check import zeros_of

    try:
        session = pyflame_rt.InferenceSession(data)
        args = session.get_inputs()
        feed = dict(zip([arg.name for arg in args], inputs, strict=False))
        for info in session.graph().required_inputs:
            if info.name not in feed:
                feed[info.name] = zeros_of(info.type)
        session.run(None, feed)
    except pyflame_rt.PyFlameRTError as error:
        return type(error).__name__
    return "ran"


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _work(numbers: list[int], results: Any) -> None:
    import logging
    import warnings

    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    np.seterr(all="ignore")
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    inherited = _peak()
    for number in numbers:
        _, data, inputs = all_cases()[number]
        results.send((number, "begin", "", 0.0, 0))
        begun = time.process_time()
        resource.setrlimit(resource.RLIMIT_CPU, (int(begun) + CPU_SECONDS + 2, resource.RLIM_INFINITY))
        try:
            outcome, message = run_case(data, inputs), ""
        except Exception as error:  # noqa: BLE001 - every untyped error is a finding
            outcome, message = "UNTYPED", f"{type(error).__name__}: {str(error)[:200]}"
        peak = _peak() - inherited
        results.send((number, outcome, message, time.process_time() - begun, peak))
        if peak > MOST_BYTES:
            break  # the high-water mark of the process stays: another one goes on
    results.close()


def sweep(numbers: list[int]) -> Iterator[tuple[str, str, str]]:
    """(name, outcome, finding) of each case; a finding is empty where all is well."""
    context = multiprocessing.get_context("fork")
    all_cases()
    pending = list(numbers)
    while pending:
        receiver, sender = multiprocessing.Pipe(duplex=False)
        process = context.Process(target=_work, args=(pending, sender), daemon=True)
        process.start()
        sender.close()
        current = -1
        while True:
            try:
                number, outcome, message, seconds, peak = receiver.recv()
            except EOFError:
                break
            current = number
            if outcome == "begin":
                continue
            pending.remove(number)
            current = -1
            name = all_cases()[number][0]
            if message:
                yield name, outcome, message
            elif seconds > CPU_SECONDS:
                yield name, "SLOW", f"{seconds:.1f} s of CPU time"
            elif peak > MOST_BYTES:
                yield name, "LARGE", f"{peak / 1e9:.1f} GB"
            else:
                yield name, outcome, ""
        process.join()
        if current >= 0:
            pending.remove(current)
            code = process.exitcode
            slow = code in (-signal.SIGXCPU, -signal.SIGKILL)
            yield all_cases()[current][0], "SLOW" if slow else "CRASH", f"exit code {code}"


def main(arguments: list[str] | None = None) -> int:
    """Run all cases, print findings and counts; 1 when there are findings."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--every", type=int, default=1, help="only every so many-th case")
    parser.add_argument("--only", default="", help="only cases whose name has this in it")
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    parser.add_argument("--count", type=int, help="how many from there on")
    given = parser.parse_args(arguments)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    cases = all_cases()
    numbers = [i for i, case in enumerate(cases) if given.only in case[0]]
    numbers = numbers[given.first :][: given.count][:: given.every]
    counts: dict[str, int] = {}
    findings = 0
    for name, outcome, finding in sweep(numbers):
        counts[outcome] = counts.get(outcome, 0) + 1
        if finding:
            findings += 1
            sys.stdout.write(f"{name}: {outcome} {finding}\n")
            sys.stdout.flush()
    sys.stdout.write(f"{len(numbers)} cases, {findings} findings: {dict(sorted(counts.items()))}\n")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
