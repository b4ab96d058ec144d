"""Functions have torch's defaults."""

import inspect

import pytest

import pyflame as pf

torch = pytest.importorskip("torch")


def _shared():
    for name in pf.nn.functional.__all__:
        try:
            theirs = inspect.signature(getattr(torch.nn.functional, name)).parameters
        except (AttributeError, TypeError, ValueError):  # torch has no such function, or none with a signature
            continue
        ours = inspect.signature(getattr(pf.nn.functional, name)).parameters
        for parameter in ours.keys() & theirs.keys():
            pair = ours[parameter].default, theirs[parameter].default
            if inspect.Parameter.empty not in pair:
                yield f"{name}.{parameter}", *pair


def test_defaults_are_torch_s():
    different = {name: (ours, theirs) for name, ours, theirs in _shared() if ours != theirs}
    meant_alike = {"affine_grid.align_corners": (False, None), "grid_sample.align_corners": (False, None)}
    assert different == meant_alike
