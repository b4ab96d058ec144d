"""Classifiers of handwritten digits, trained here, for the tests that measure accuracy."""

import numpy as np

import pyflame as pf
import pyflame_rt
from pyflame import nn
from pyflame.exporting import _graph

DIGITS = pf.data.load_digits()
TRAIN = (DIGITS.train_images, DIGITS.train_labels)


class ConvNet(nn.Module):
    """Convolutions with batch normalisation and a residual connection."""

    def __init__(self, width=32):
        super().__init__()
        self.stem, self.norm = nn.Conv2d(1, width, 3, padding=1), nn.BatchNorm2d(width)
        self.block, self.norm2 = nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width)
        self.last, self.fc = nn.Conv2d(width, 2 * width, 3, padding=1), nn.Linear(8 * width, 10)

    def forward(self, x):
        x = pf.relu(self.norm(self.stem(x)))
        x = nn.functional.max_pool2d(x + pf.relu(self.norm2(self.block(x))), 2)
        return self.fc(nn.functional.max_pool2d(pf.relu(self.last(x)), 2).flatten(1))


class Transformer(nn.Module):
    """Rows of pixels as a sequence, one encoder layer of four heads."""

    def __init__(self, width=64):
        super().__init__()
        self.embed, self.places = nn.Linear(8, width), nn.Parameter(pf.randn([8, width]) * 0.1)
        self.layer = nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.0, batch_first=True)
        self.fc = nn.Linear(width, 10)

    def forward(self, x):
        return self.fc(self.layer(self.embed(x.reshape([-1, 8, 8])) + self.places).mean(dim=1))


def trained(kind, epochs, seed=0, width=None):
    """A graph for batches of any size, and the module."""
    pf.manual_seed(seed)
    model = kind() if width is None else kind(width)
    config = pf.training.TrainerConfig(max_epochs=epochs, progress=False, seed=seed)
    optimizer = pf.optim.Adam(model.parameters(), lr=2e-3)
    data = pf.data.DataLoader(pf.data.TensorDataset(*TRAIN), batch_size=64, shuffle=True)
    pf.training.Trainer(model, optimizer, nn.CrossEntropyLoss(), config).fit(data)
    return _graph(model, (pf.ones([2, 1, 8, 8]),), {"input": {0: "N"}}), model


def accuracy(graph):
    """The share of test images that are told right."""
    scores = pyflame_rt.InferenceSession(graph).run(None, {"input": DIGITS.test_images})[0]
    return float(np.mean(scores.argmax(axis=1) == DIGITS.test_labels))
