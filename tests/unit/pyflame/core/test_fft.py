"""Fourier transforms against torch: values, types, shapes, gradients, errors; eager and compiled."""

import numpy as np
import pytest

import pyflame as pf
from tests.unit.pyflame.core.test_complex import A, R, both_widths, close, plain, same

torch = pytest.importorskip("torch")

OF_COMPLEX = [
    ("fft", {}), ("ifft", {}), ("fft", {"n": 7}), ("fft", {"n": 2, "dim": 0, "norm": "ortho"}),
    ("ifft", {"n": 3, "norm": "forward"}), ("fft", {"n": 1}), ("fft", {"norm": "forward", "dim": -2}), ("hfft", {}),
    ("hfft", {"n": 5, "norm": "ortho"}), ("hfft", {"n": 4, "dim": 0, "norm": "forward"}), ("irfft", {}),
    ("irfft", {"n": 7}), ("irfft", {"n": 3, "dim": 0, "norm": "forward"}), ("irfft", {"n": 12, "norm": "ortho"}),
    ("irfft", {"n": 1}), ("fftn", {}), ("fftn", {"dim": 0}), ("fftn", {"s": (-1, 6)}), ("fftn", {"s": (2,)}),
    ("ifftn", {"s": (5,), "norm": "ortho"}), ("fft2", {"s": (2, 7)}), ("ifft2", {"norm": "forward"}), ("irfft2", {}),
    ("irfft2", {"s": (3, 7), "norm": "ortho"}), ("irfftn", {"dim": (1, 0)}), ("irfftn", {"s": (2, -1)}),
    ("hfftn", {}), ("hfft2", {"s": (4, 5), "norm": "forward"}), ("fftshift", {}), ("ifftshift", {"dim": 1}),
]  # fmt: skip
OF_REAL = [
    ("rfft", {}), ("rfft", {"n": 7}), ("rfft", {"n": 2, "dim": 0, "norm": "ortho"}), ("rfft", {"norm": "forward"}),
    ("rfft", {"n": 1}), ("ihfft", {}), ("ihfft", {"n": 5, "norm": "ortho"}), ("rfftn", {}),
    ("rfft2", {"s": (4, 5), "norm": "forward"}), ("rfftn", {"dim": (1, 0), "norm": "ortho"}), ("ihfftn", {}),
    ("ihfft2", {"s": (2, 3)}), ("fft", {"n": 6}), ("irfft", {"n": 5}), ("ifft2", {"norm": "ortho"}), ("hfft", {}),
]  # fmt: skip


def named(cases):
    return [f"{name} {settings}" for name, settings in cases]


@pytest.mark.parametrize(("name", "settings"), OF_COMPLEX, ids=named(OF_COMPLEX))
def test_transforms_of_complex_numbers(name, settings):
    for arrays in both_widths(A):
        same(lambda L, x: getattr(L.fft, name)(x, **settings), *arrays)


@pytest.mark.parametrize(("name", "settings"), OF_REAL, ids=named(OF_REAL))
def test_transforms_of_real_numbers(name, settings):
    for arrays in both_widths(R):
        same(lambda L, x: getattr(L.fft, name)(x, **settings), *arrays)


def test_integers_and_other_shapes():
    for shape in ((1,), (5,), (2, 3, 4, 6)):
        x = np.arange(np.prod(shape), dtype=np.int64).reshape(shape)
        for name in ("fft", "rfft", "ihfft", "irfft"):
            if name == "irfft" and shape == (1,):
                continue
            close(getattr(pf.fft, name)(pf.tensor(x)), getattr(torch.fft, name)(torch.tensor(x)))
    assert [pf.fft.rfft(pf.zeros(0, 3)).shape, pf.fft.irfft2(pf.zeros(2, 0, 3, 3)).shape] == [[0, 2], [2, 0, 3, 4]]


def test_second_derivatives():
    def twice(L):
        x = L.tensor(R, requires_grad=True)
        (g,) = L.autograd.grad((L.fft.irfft2(L.fft.rfft2(x) ** 2, s=(3, 5)) ** 2).sum(), x, create_graph=True)
        (g**2).sum().backward()
        return plain(x.grad)

    np.testing.assert_allclose(twice(pf), twice(torch), rtol=1e-9)


def test_large_steps_in_native_plans():
    """Beyond the size up to which graphs run node by node: a step through spectra of complex weights."""
    rng = np.random.default_rng(5)
    field, wanted = (rng.standard_normal((4, 3, 48, 50)).astype(np.float32) for _ in range(2))
    weight = (rng.standard_normal((3, 3, 9, 9)) + 1j * rng.standard_normal((3, 3, 9, 9))).astype(np.complex64) / 9

    def losses(L, compiled):
        w = L.nn.Parameter(L.tensor(weight))
        optimizer = L.optim.Adam([w], lr=0.02)

        def step(x, y):
            optimizer.zero_grad()
            spectrum = L.fft.rfft2(x, norm="ortho")
            low = L.einsum("bixy,ioxy->boxy", spectrum[..., :9, :9], w)
            out = L.fft.irfft2(L.nn.functional.pad(low, (0, 17, 0, 39)), s=(48, 50), norm="ortho")
            loss = (out - y).abs().mean() + w.abs().pow(2).mean() + spectrum.conj().mul(spectrum).real.mean()
            loss.backward()
            optimizer.step()
            return loss

        run = compiled(step)
        return [run(L.tensor(field), L.tensor(wanted)).item() for _ in range(4)]

    theirs = losses(torch, lambda step: step)
    np.testing.assert_allclose(losses(pf, lambda step: step), theirs, rtol=2e-6)
    np.testing.assert_allclose(losses(pf, pf.compile), theirs, rtol=2e-6)


@pytest.mark.parametrize("n", [1, 4, 5])
@pytest.mark.parametrize("kind", ["float32", "float64"])
def test_frequencies(n, kind):
    for name in ("fftfreq", "rfftfreq"):
        ours, theirs = (getattr(L.fft, name)(n, d=0.3, dtype=getattr(L, kind)).numpy() for L in (pf, torch))
        np.testing.assert_array_equal(ours, theirs)
        assert ours.dtype == theirs.dtype


WRONG = {
    "rfft of complex": lambda L: L.fft.rfft(L.ones(3, dtype=L.complex64)),
    "ihfft of complex": lambda L: L.fft.ihfft(L.ones(3, dtype=L.complex64)),
    "norm": lambda L: L.fft.fft(L.ones(3), norm="both"),
    "no points": lambda L: L.fft.fft(L.ones(3), n=0),
    "empty": lambda L: L.fft.fft(L.ones(2, 0)),
    "one number": lambda L: L.fft.irfft(L.ones(1)),
    "no dimension": lambda L: L.fft.fft(L.tensor(1.0)),
    "far dimension": lambda L: L.fft.fft(L.ones(3), dim=1),
    "a dimension twice": lambda L: L.fft.fft2(L.ones(3, 3), dim=(0, 0)),
    "sizes": lambda L: L.fft.fftn(L.ones(3, 3), s=(2, 2), dim=(0,)),
    "more sizes": lambda L: L.fft.fftn(L.ones(3), s=(2, 2)),
    "halves": lambda L: L.fft.fft(L.ones(4, dtype=L.bfloat16)),
    "no dimensions": lambda L: L.fft.rfftn(L.ones(3), dim=()),
    "no frequencies": lambda L: L.fft.fftfreq(0) / L.fft.fftfreq(3, dtype=L.int64),
    "stft without return_complex": lambda L: L.stft(L.ones(8), 4),
    "stft of a number": lambda L: L.stft(L.tensor(1.0), 4, return_complex=True),
    "long frames": lambda L: L.stft(L.ones(3), 4, center=False, return_complex=True),
    "long window": lambda L: L.stft(L.ones(8), 4, win_length=5, return_complex=True),
    "another window": lambda L: L.stft(L.ones(8), 4, window=L.ones(3), return_complex=True),
    "no hop": lambda L: L.stft(L.ones(8), 4, hop_length=0, return_complex=True),
    "onesided complex": lambda L: L.stft(L.ones(8, dtype=L.complex64), 4, onesided=True),
    "istft of real": lambda L: L.istft(L.ones(3, 4), 4),
    "istft of frequencies": lambda L: L.istft(L.ones(4, 4, dtype=L.complex64), 5),
    "holes in windows": lambda L: L.istft(L.ones(5, 4, dtype=L.complex64), 8, hop_length=8, window=L.hann_window(8)),
    "istft of nothing": lambda L: L.istft(L.ones(0, 3, 2, dtype=L.complex64), 4),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_torch_refuses(name):
    for L in (torch, pf):
        with pytest.raises((RuntimeError, ValueError, IndexError, TypeError)):
            WRONG[name](L)


SIGNAL = np.random.default_rng(3).standard_normal((2, 50)).astype(np.float32)
FRAMES = [
    {}, {"hop_length": 3}, {"win_length": 5}, {"center": False}, {"normalized": True}, {"onesided": False},
    {"pad_mode": "constant"}, {"pad_mode": "circular", "hop_length": 1},
]  # fmt: skip


@pytest.mark.parametrize("settings", FRAMES, ids=str)
@pytest.mark.parametrize("signal", [SIGNAL, SIGNAL[0].astype(np.float64)], ids=["batch", "one"])
def test_short_time_transforms(settings, signal):
    size = settings.get("win_length", 8)
    same(lambda L, x: L.stft(x, 8, window=L.hann_window(size, dtype=x.dtype), return_complex=True, **settings), signal)
    same(lambda L, x: x.stft(8, return_complex=True, **settings), signal)
    back = {k: v for k, v in settings.items() if k != "pad_mode"}

    def there_and_back(L, x):
        window = L.hamming_window(size, dtype=x.dtype)
        spectra = L.stft(x, 8, window=window, return_complex=True, **settings)
        return (spectra * (1 + 0.5j)).istft(8, window=window, **back)

    same(there_and_back, signal)


@pytest.mark.filterwarnings("ignore")
def test_lengths_parts_and_complex_signals():
    same(lambda L, x: L.istft(L.stft(x, 8, return_complex=True), 8, length=45), SIGNAL)
    same(lambda L, x: L.istft(L.stft(x, 8, return_complex=True), 8, length=60), SIGNAL)
    same(lambda L, x: L.stft(x, 9, return_complex=False), SIGNAL)
    same(lambda L, x: L.istft(L.stft(x, 8), 8, return_complex=True), SIGNAL * np.complex64(1 + 1j))


def test_holes_in_windows_are_found_in_compiled_functions():
    window = pf.hann_window(8)

    @pf.compile
    def back(spectra):
        return pf.istft(spectra, 8, hop_length=8, window=window)

    with pytest.raises(Exception, match="overlap"):
        back(pf.ones(5, 4, dtype=pf.complex64)).numpy()
