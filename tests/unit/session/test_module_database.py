"""A sample of torch's own database of modules, compiled for us; all of them: make torch-modules."""

import pytest

from tests.unit.session.module_database import NAMES, judged
from tests.unit.session.module_database import backend as backend_module

SAMPLE = ["nn.BatchNorm2d", "nn.CTCLoss", "nn.FractionalMaxPool2d", "nn.GRU", "nn.HuberLoss", "nn.MultiheadAttention"]


@pytest.mark.parametrize("name", SAMPLE)
def test_modules_of_the_database(name):
    verdict = judged(name, samples=1)
    assert verdict.ran
    assert not verdict.wrong


def test_a_wrong_answer_is_seen(monkeypatch):
    tensor = backend_module._tensor
    monkeypatch.setattr(backend_module, "_tensor", lambda array: tensor(array) + 1)
    assert judged("nn.Tanh", samples=1).wrong


def test_what_torch_runs_is_counted():
    assert "nn.Bilinear" in NAMES
    assert "aten._trilinear" in judged("nn.Bilinear", samples=1).eager
