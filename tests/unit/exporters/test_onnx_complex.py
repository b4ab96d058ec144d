"""Complex numbers in files of ONNX: as pairs, through DFT, or refused by name."""

import numpy as np
import pytest

import pyflame as pf
import pyflame_rt
from pyflame_rt.graph.errors import UnsupportedOperatorError

RNG = np.random.default_rng(0)
X = RNG.standard_normal((2, 3, 6)).astype(np.float32)
WEIGHT = (RNG.standard_normal((3, 3, 4)) + 1j * RNG.standard_normal((3, 3, 4))).astype(np.complex64)


def spectral(x):
    low = pf.einsum("bix,iox->box", pf.fft.rfft(x), pf.tensor(WEIGHT))
    return pf.fft.irfft(low, 6)


def moves(x):
    z = pf.fft.fft2(x, norm="ortho").transpose(0, 2).reshape(6, 6)
    z = pf.cat([z, z.conj()], 1)[1:4, ::2].unsqueeze(1) * (1 + 2j) / (z[:3, :1].unsqueeze(1) + 3)
    z = pf.nn.functional.pad(z, (1, 2)) + z.mean() - z.exp().sum(0).sum()
    return pf.view_as_real(pf.where(pf.arange(9) > 3, z, -z)), z.abs()


def matrices(x):
    z = pf.complex(x, x + 1)
    return (z @ z.mH).real, pf.fft.ifft(z, norm="forward").imag, pf.fft.hfft(z, 5, norm="ortho")


def frames(x):
    return pf.stft(x.reshape(2, 18), 8, window=pf.hann_window(8), return_complex=True).abs()


@pytest.mark.parametrize("model", [spectral, moves, matrices, frames])
def test_files_hold_pairs(model, tmp_path):
    import onnxruntime

    wanted = model(pf.tensor(X))
    wanted = [w.numpy() for w in (wanted if isinstance(wanted, tuple) else (wanted,))]
    path = tmp_path / "model.onnx"
    pf.export(model, pf.tensor(X), path)
    feed = {"input": X}
    ours = pyflame_rt.InferenceSession(str(path)).run(None, feed)
    theirs = onnxruntime.InferenceSession(str(path)).run(None, feed)
    for found in (ours, theirs):
        for have, want in zip(found, wanted, strict=True):
            np.testing.assert_allclose(have, want, rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize(
    ("model", "named"),
    [
        (lambda x: pf.fft.fft(x), "output"),
        (lambda x: pf.fft.fft(x).log().abs(), "Log"),
        (lambda x: pf.fft.fft(x).cumsum(0).real, "CumSum"),
    ],
)
def test_what_has_no_form_is_refused_by_name(model, named, tmp_path):
    with pytest.raises(UnsupportedOperatorError, match=named):
        pf.export(model, pf.tensor(X), tmp_path / "model.onnx")
