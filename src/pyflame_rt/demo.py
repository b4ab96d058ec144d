"""A small model end to end: ``python -m pyflame_rt.demo``."""

from __future__ import annotations

import time
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Console
from rich.table import Table

import pyflame_rt
from pyflame_rt.cli.render import summary_tables
from pyflame_rt.graph.errors import PyFlameRTError
from pyflame_rt.inspection import summarize
from pyflame_rt.providers import find_provider
from pyflame_rt.session import InferenceSession

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["main", "model_path", "test_set"]

_SHADES = " .:-=+*#%@"


def model_path() -> Path:
    """The classifier of handwritten digits that comes with the package.

    Example:
        >>> model_path().name
        'digits.onnx'
    """
    return Path(str(resources.files("pyflame_rt") / "data" / "digits.onnx"))


def test_set() -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Images (float32, 0 to 16) and labels that the model was not trained on.

    Example:
        >>> images, labels = test_set()
        >>> images.shape, labels.shape
        ((450, 1, 8, 8), (450,))
    """
    with np.load(model_path().with_name("digits_test.npz")) as file:
        return file["images"].astype(np.float32), file["labels"].astype(np.int64)


test_set.__test__ = False  # type: ignore[attr-defined] - pytest, this is no test


def main() -> None:
    """Load, look at, run, explain and compare the model."""
    console = Console()
    images, labels = test_set()
    with InferenceSession(model_path()) as session:
        console.rule("1. A model")
        console.print(*summary_tables(summarize(session.graph())), sep="\n")
        console.rule("2. One run")
        console.print(_picture(session, images[0], int(labels[0])), highlight=False)
        console.rule("3. Every provider, on images the model has never seen")
        console.print(_accuracy(images, labels))
        console.rule("4. Looking inside")
        for line in _inside(session, images):
            console.print(line, highlight=False)


def _picture(session: InferenceSession, image: np.ndarray[Any, Any], label: int) -> str:
    probabilities, digit = session.run(None, {"image": image[None]})
    shaded = (image[0] / 16 * (len(_SHADES) - 1)).astype(int)
    rows = ["".join(_SHADES[v] * 2 for v in row) for row in shaded]
    rows[3] += f"    found {digit[0]} with probability {probabilities[0, digit[0]]:.3f}"
    rows[4] += f"    it is {label}"
    return "\n".join(rows)


def _accuracy(images: np.ndarray[Any, Any], labels: np.ndarray[Any, Any]) -> Table:
    table = Table("provider", "correct", "accuracy", "one image", f"{len(images)} images")
    for name in _general():
        session = InferenceSession(model_path(), providers=[name])
        found = session.run(["digit"], {"image": images})[0]
        correct = int((found == labels).sum())
        times = [f"{_best(session, batch) * 1e3:.2f} ms" for batch in (images[:1], images)]
        table.add_row(name, f"{correct}/{len(labels)}", f"{correct / len(labels):.2%}", *times)
    return table


def _general() -> list[str]:
    """The providers that run any model at the speed of the machine."""
    return [name for name in pyflame_rt.get_available_providers() if find_provider(name).general]


def _best(session: InferenceSession, batch: np.ndarray[Any, Any], repeats: int = 3) -> float:
    times = []
    for _ in range(repeats):
        started = time.perf_counter()
        session.run(None, {"image": batch})
        times.append(time.perf_counter() - started)
    return min(times)


def _inside(session: InferenceSession, images: np.ndarray[Any, Any]) -> Iterator[str]:
    *_, hidden = session.run(None, {"image": images}, taps=["relu3_out"])
    yield f"taps: relu3_out is {hidden.dtype}{list(hidden.shape)}, {np.mean(hidden == 0):.0%} of it zero"
    explanation = session.explain()
    yield f"explain: {explanation.summary()[0]}"
    yield f"explain: {explanation.summary()[1]}"
    others = [n for n in _general() if n != "ReferenceExecutionProvider"]
    for name in others:
        result = pyflame_rt.diff(model_path(), "ReferenceExecutionProvider", name, {"image": images[:8]})
        yield f"diff with {name}: {result.verdict()}"
    broken = images[:1].copy()
    broken[0, 0, 3, 3] = np.nan
    yield f"find_first_nan: {session.find_first_nan({'image': broken})}"
    try:
        session.run(None, {"imgae": images})
    except PyFlameRTError as error:
        yield f"a typing error: {type(error).__name__}: {error}"


if __name__ == "__main__":
    main()
