"""torch's own database of modules, each run by torch and compiled for us: inference and a training step.

usage: python -m tests.unit.session.module_database [--samples 3] [--shard 0/2] [NAME ...]

A module is right where results, gradients and buffers of all its samples are torch's. What torch runs itself inside
them is counted by operator: those are no failures, and the list says what is not lowered.
"""

import argparse
import copy
import importlib
import warnings
from collections import Counter
from typing import Any, NamedTuple

from tests.tolerances import within
from tests.unit.importers.torchscript.saving import torch

backend = importlib.import_module("pyflame_rt.torch_backend")
database = importlib.import_module("torch.testing._internal.common_modules").module_db
NAMES = [info.name for info in database]
_BY_NAME = {info.name: info for info in database}


class Verdict(NamedTuple):
    """What came of a module: ``wrong`` has a line for each sample that differs, ``ran`` how many were compared."""

    name: str
    ran: int
    wrong: list[str]
    eager: dict[str, int]


def _tensors(value: Any) -> list[Any]:
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        value = value.values()
    elif not isinstance(value, (tuple, list)):
        return []
    return [t for part in value for t in _tensors(part)]


def _ran(module: Any, call: Any, args: Any, kwargs: Any, training: bool) -> list[Any]:
    """Results, gradients of arguments and of parameters, and buffers."""
    args, kwargs = copy.deepcopy((args, kwargs))
    given = _tensors((args, kwargs))
    torch.manual_seed(1)
    with torch.set_grad_enabled(training):
        out = _tensors(call(*args, **kwargs))
    slopes = [t for t in out if t.requires_grad]
    if training and slopes:
        sum((t * t).sum() for t in slopes).backward()
    grads = [t.grad for t in (*given, *module.parameters()) if t.grad is not None]
    return [*(t.detach() for t in out), *grads, *module.buffers()]


def _samples(info: Any, training: bool) -> list[Any]:
    return info.module_inputs_func(info, device="cpu", dtype=torch.float32, requires_grad=training, training=training)


def _compared(info: Any, sample: Any, training: bool) -> bool:
    """Whether torch itself runs the sample; an AssertionError or another says how ours differs."""
    torch.manual_seed(0)
    made, given = sample.constructor_input, sample.forward_input
    settings = {
        k: v.float() if isinstance(v, torch.Tensor) and v.is_floating_point() else v for k, v in made.kwargs.items()
    }
    module = info.module_cls(*made.args, **settings)
    module.train(training)
    mirror = copy.deepcopy(module)
    try:
        want = _ran(module, module, given.args, given.kwargs, training)
    except (RuntimeError, TypeError, ValueError):
        return False  # torch refuses this sample, on this device or in this mode
    torch._dynamo.reset()
    got = _ran(mirror, torch.compile(mirror, backend=backend.pyflame_backend), given.args, given.kwargs, training)
    torch.testing.assert_close(got, want, **within("rounded"), equal_nan=True)
    return True


def judged(name: str, samples: int | None = None) -> Verdict:
    """Run a module of the database, with its first samples or all of them."""
    info, ran = _BY_NAME[name], 0
    wrong: list[str] = []
    before = Counter(backend.fallbacks())
    for training in (False, True):
        torch.manual_seed(0)
        for i, sample in enumerate(_samples(info, training)[:samples]):
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    ran += _compared(info, sample, training)
            except Exception as error:  # noqa: BLE001  # any error is a wrong sample, and is named
                kind = "training" if training else "inference"
                lines = [line for line in str(error).splitlines() if line.strip()]
                wrong.append(f"{kind} sample {i}: {type(error).__name__}: {' '.join(lines[:3])[:200]}")
    return Verdict(name, ran, wrong, dict(Counter(backend.fallbacks()) - before))


def main() -> None:
    """Print a line for each module that is wrong, the share that is right, and what torch ran itself."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--samples", type=int, default=0, help="of each module and mode; 0 for all")
    parser.add_argument("--shard", default="0/1")
    asked = parser.parse_args()
    first, count = map(int, asked.shard.split("/"))
    right, eager, names = 0, Counter[str](), (asked.names or NAMES)[first::count]
    for name in names:
        verdict = judged(name, asked.samples or None)
        eager.update(verdict.eager)
        right += bool(verdict.ran) and not verdict.wrong
        for line in verdict.wrong if verdict.wrong or verdict.ran else ["torch runs none of its samples"]:
            print(f"{name}: {line}", flush=True)  # noqa: T201  # the report
    print(f"{right} of {len(names)} modules are right ({right / len(names):.0%})")  # noqa: T201  # the report
    print("run by torch:", ", ".join(f"{name} ({n})" for name, n in eager.most_common()) or "nothing")  # noqa: T201  # the report


if __name__ == "__main__":
    main()
