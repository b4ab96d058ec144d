"""A schedule changes the rate of a compiled step, not the step."""

import warnings

import numpy as np
import pytest

import pyflame as pf
from pyflame import nn
from pyflame.optim import CosineAnnealingLR


@pytest.mark.parametrize("clip", [None, 1.0])
def test_many_rates_make_one_trace_and_the_uncompiled_losses(clip):
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((32, 4)).astype(np.float32), rng.integers(0, 3, 32)
    losses = {}
    for compiled in (True, False):
        pf.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
        optimizer = pf.optim.Adam(model.parameters(), lr=0.05)
        schedule = CosineAnnealingLR(optimizer, T_max=12)
        config = pf.training.TrainerConfig(max_epochs=12, progress=False, compile=compiled, grad_clip_norm=clip)
        callbacks = [pf.training.LearningRateScheduler(schedule)]
        trainer = pf.training.Trainer(model, optimizer, nn.CrossEntropyLoss(), config, callbacks=callbacks)
        loader = pf.data.DataLoader(pf.data.TensorDataset(x, y), batch_size=16)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            trainer.fit(loader)
        losses[compiled] = trainer.history["loss"]
        if compiled:
            assert trainer._step._whole.trace_count == 1
    np.testing.assert_allclose(losses[True], losses[False], rtol=1e-5)
