"""Operators on the samples of torch's own database: what is traced and read from the file is what torch computes."""

import importlib
import itertools
import warnings

import numpy as np
import pytest

import pyflame_rt
from tests.unit.importers.torchscript.saving import close, leaves, save_traced, torch

pytestmark = pytest.mark.filterwarnings("ignore")

# Of complex numbers, too.
COMPLEX = """
fft.fft fft.fftn fft.ifft fft.ifft2 fft.irfft fft.irfftn fft.hfft fft.hfftn fft.fftshift real angle conj abs sgn
view_as_real imag cumsum
"""
NAMES = f"""
{COMPLEX} fft.fft2 fft.ifftn fft.rfft fft.rfft2 fft.rfftn fft.irfft2 fft.hfft2 fft.ihfft fft.ihfft2 fft.ihfftn
fft.ifftshift stft istft complex polar view_as_complex atan2 signbit quantile cummax cummin diff bincount median msort
nansum nanmean narrow narrow_copy take_along_dim gather float_power logaddexp linalg.norm linalg.matrix_norm
linalg.cholesky linalg.cholesky_ex linalg.eigvalsh linalg.svdvals linalg.solve linalg.slogdet linalg.inv_ex
linalg.cross linalg.pinv
trace index_reduce index_add index_copy index_fill nn.functional.cosine_similarity scatter_reduce unfold unique erfinv
fmax
nn.functional.cross_entropy nn.functional.poisson_nll_loss nn.functional.margin_ranking_loss
torch.ops.aten._safe_softmax.default nn.functional.dropout
""".split()
DATABASE = importlib.import_module("torch.testing._internal.common_methods_invocations").op_db
CASES = {
    f"{info.name} {info.variant_test_name} {str(kind).removeprefix('torch.')}": (info, kind)
    for info in DATABASE
    for kind in (torch.float32, torch.complex64)
    if info.name in (COMPLEX.split() if kind.is_complex else NAMES) and kind in info.dtypes
}
# Random, or refused by name.
SKIPPED = {
    "nn.functional.dropout": lambda sample: sample.kwargs.get("training", True),
    "linalg.pinv": lambda sample: sample.kwargs.get("hermitian", False),  # refused
}
SAMPLES = 3


class Call(torch.nn.Module):
    """A function with its tensors as inputs, and everything else as it is."""

    def __init__(self, function, sample):
        super().__init__()
        self.function, self.tensors = function, []
        self.form = self._apart((sample.input, list(sample.args), dict(sample.kwargs)))

    def _apart(self, value):
        if isinstance(value, torch.Tensor):
            self.tensors.append(value.detach())
            return len(self.tensors) - 1, Call
        if isinstance(value, (list, tuple)):
            return type(value)(self._apart(v) for v in value)
        return {k: self._apart(v) for k, v in value.items()} if isinstance(value, dict) else value

    def _whole(self, value, tensors):
        if isinstance(value, tuple) and len(value) == 2 and value[1] is Call:
            return tensors[value[0]]
        if isinstance(value, (list, tuple)):
            return type(value)(self._whole(v, tensors) for v in value)
        return {k: self._whole(v, tensors) for k, v in value.items()} if isinstance(value, dict) else value

    def forward(self, *tensors):
        first, args, kwargs = self._whole(self.form, tensors)
        return self.function(first, *args, **kwargs)


def _known(info, kind):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return list(itertools.islice(info.sample_inputs("cpu", kind), SAMPLES))


@pytest.mark.parametrize("name", CASES)
def test_operators(name, tmp_path):
    (info, kind), ran = CASES[name], 0
    torch.manual_seed(0)
    for sample in _known(info, kind):
        call, path = Call(info.op, sample), tmp_path / "model.pt"
        if not call.tensors or SKIPPED.get(info.name, lambda _: False)(sample):
            continue
        try:
            want = leaves(call(*[t.clone() for t in call.tensors]))
            save_traced(call, tuple(t.clone() for t in call.tensors), path)
        except Exception:  # noqa: BLE001  # torch traces not every sample
            continue
        session = pyflame_rt.InferenceSession(path)
        fed = [t.resolve_conj().resolve_neg().numpy() for t in call.tensors]
        got = session.run(None, {i.name: v for i, v in zip(session.get_inputs(), fed, strict=True)})
        assert len(got) == len(want)
        for g, w in zip(got, want, strict=True):
            close(np.asarray(g), w.resolve_conj().resolve_neg() if isinstance(w, torch.Tensor) else w, 1e-4)
        ran += 1
    assert ran or not _known(info, kind) or info.name in SKIPPED
