"""Train, export and serve a model of handwritten digits, then run it on the wafer: ``python -m pyflame.demo``."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import numpy as np
from rich.console import Console

import pyflame as pf
from pyflame_rt.graph.errors import MissingExtra
from pyflame_rt.session import InferenceSession

__all__ = ["digit_model", "main", "run_on_wafer", "serve", "train_digits"]

SERVED_IMAGES = 32
WAFER_IMAGES = 10


def digit_model() -> pf.nn.Module:
    """Two convolutions and two linear layers.

    Example:
        >>> import pyflame as pf
        >>> digit_model()(pf.zeros([2, 1, 8, 8])).shape
        [2, 10]
    """
    nn = pf.nn
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(512, 64), nn.ReLU(), nn.Linear(64, 10),
    )  # fmt: skip


def train_digits(epochs: int = 12, *, progress: bool = True, folder: Path | None = None) -> pf.training.Trainer:
    """A trainer that has trained the model on the digits."""
    pf.manual_seed(0)
    digits = pf.data.load_digits()
    train = pf.data.DataLoader(
        pf.data.TensorDataset(digits.train_images, digits.train_labels), batch_size=64, shuffle=True, drop_last=True
    )
    test = pf.data.DataLoader(pf.data.TensorDataset(digits.test_images, digits.test_labels), batch_size=450)
    model = digit_model()
    optimizer = pf.optim.Adam(model.parameters(), lr=2e-3)
    schedule = pf.optim.CosineAnnealingLR(optimizer, epochs)
    trainer = pf.training.Trainer(
        model,
        optimizer,
        pf.nn.CrossEntropyLoss(),
        pf.training.TrainerConfig(max_epochs=epochs, progress=progress, checkpoint_dir=folder),
        callbacks=[pf.training.LearningRateScheduler(schedule)],
        metrics=[pf.metrics.Accuracy()],
    )
    trainer.fit(train, test)
    return trainer


def serve(model: pf.nn.Module, console: Console) -> int:
    """Serve the model over HTTP on this machine and ask for some images; how many answers are the model's."""
    images = pf.data.load_digits().test_images[:SERVED_IMAGES]
    with pf.serving.ModelServer(model, pf.serving.ServerConfig(port=0)) as server:
        with pf.serving.ModelClient(server.url) as client:
            begun = time.perf_counter()
            scores = client.predict(images)
            seconds = time.perf_counter() - begun
            stats = client.get_stats()
        same = int(np.sum(scores.argmax(axis=1) == model(pf.from_numpy(images)).numpy().argmax(axis=1)))
        console.print(
            f"{server.url}/v1/predict answered {stats['total_requests']} request in {seconds * 1e3:.0f} ms: "
            f"{same} of {len(images)} answers are the trainer's"
        )
    return same


def run_on_wafer(model: pf.nn.Module, folder: Path, console: Console) -> int:
    """Compile the model to CSL for a few images, run that in the simulator; how many answers are the model's."""
    images = pf.data.load_digits().test_images[:WAFER_IMAGES]
    result = pf.compile_to_csl(model(pf.from_numpy(images)), folder / "csl")
    grid, memory = result.manifest["grid"], result.manifest["memory"]
    console.print(
        f"{len(result.sources)} files of a program for {grid['rows']} x {grid['cols']} processing elements; "
        f"each uses {memory['total_bytes']:,} of its 49,152 bytes"
    )
    pf.export(model, pf.from_numpy(images), folder / "few.onnx")
    begun = time.perf_counter()
    with InferenceSession(folder / "few.onnx", providers=["WSEExecutionProvider"]) as session:
        (scores,) = session.run(None, {session.get_inputs()[0].name: images})
    same = int(np.sum(scores.argmax(axis=1) == model(pf.from_numpy(images)).numpy().argmax(axis=1)))
    console.print(
        f"simulated in {time.perf_counter() - begun:.1f} s: {same} of {len(images)} answers are the trainer's"
    )
    return same


def main() -> None:
    """Train, measure, export, run the exported model in the runtime, serve it, run it on the wafer."""
    console = Console()
    console.rule("Training on 1,347 handwritten digits")
    begun = time.perf_counter()
    with tempfile.TemporaryDirectory() as name:
        trainer = train_digits(folder=Path(name))
        seconds = time.perf_counter() - begun
        accuracy = trainer.history["val_accuracy"][-1]
        console.print(f"{seconds:.1f} s; {accuracy:.1%} of the 450 test images are right")
        curve = (Path(name) / "loss_curve.svg").stat().st_size
        console.print(f"loss_curve.svg of {curve:,} bytes and checkpoints were written beside it")
        console.rule("The trained model in the runtime")
        images = pf.data.load_digits().test_images
        model = trainer.model.eval()
        pf.export(model, pf.from_numpy(images), Path(name) / "digits.onnx")
        with InferenceSession(Path(name) / "digits.onnx") as session:
            (scores,) = session.run(None, {session.get_inputs()[0].name: images})
        same = scores.argmax(axis=1) == model(pf.from_numpy(images)).numpy().argmax(axis=1)
        console.print(f"exported to ONNX, loaded, run: {int(np.sum(same))} of {len(same)} answers are the trainer's")
        console.rule("The trained model behind HTTP")
        try:
            serve(model, console)
        except MissingExtra as error:
            console.print(f"left out: {error}", markup=False)
        console.rule("The trained model on the wafer")
        run_on_wafer(model, Path(name), console)


if __name__ == "__main__":
    main()
