"""Errors of layers say which layer of the model it is, with which sizes, and what it was given."""

import pytest

import pyflame as pf
from pyflame import nn
from pyflame_rt.graph.errors import ShapeMismatchError


class Tower(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8))
        self.head = nn.ModuleDict({"classes": nn.Linear(9, 2)})

    def forward(self, x):
        return self.head["classes"](self.body(x).mean((2, 3)))


def test_the_layer_of_a_sequence():
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(), nn.Linear(32, 4))
    with pytest.raises(ShapeMismatchError, match=r"^model\.3: Linear\(32, 4\) got \[2, 16\]: "):
        model(pf.ones(2, 8))


def test_a_layer_alone():
    with pytest.raises(ShapeMismatchError, match=r"^LayerNorm\(\(5,\)\) got \[2, 4\]: "):
        nn.LayerNorm(5)(pf.ones(2, 4))


@pytest.mark.parametrize(
    ("shape", "place"),
    [((1, 4, 8, 8), r"model\.body\.0: Conv2d\(3, 8, \(3, 3\)\)"), ((1, 3, 8, 8), r"model\.head\.classes")],
)
def test_layers_of_layers(shape, place):
    with pytest.raises(ShapeMismatchError, match=place):
        Tower()(pf.ones(*shape))


@pytest.mark.parametrize("compiled", [False, True])
def test_the_path_is_that_of_the_outermost_model(compiled):
    model = nn.Sequential(nn.Identity(), Tower())
    with pytest.raises(ShapeMismatchError, match=r"model\.1\.head\.classes: Linear\(9, 2\) got \[1, 8\]"):
        (pf.compile(model) if compiled else model)(pf.ones(1, 3, 8, 8))


def test_values_that_name_nothing():
    with pytest.raises(IndexError, match=r"^model\.0: Embedding\(5, 2\) got \[1\]: embedding: input is 7 at \[0\]"):
        nn.Sequential(nn.Embedding(5, 2))(pf.tensor([7]))


def test_errors_of_people_stay_theirs():
    class Own(nn.Module):
        def forward(self, x):
            raise ValueError("nothing today")

    with pytest.raises(ValueError, match=r"^nothing today$"):
        nn.Sequential(Own())(pf.ones(1))
