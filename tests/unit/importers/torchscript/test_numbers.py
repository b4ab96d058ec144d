"""Arithmetic whose rounding, axes or element types are easily taken for others."""

import pytest

from tests.unit.importers.torchscript.saving import check, save_traced, torch

X = torch.tensor([[0.5, -1.0, 2.0], [1.5, 0.25, -0.75], [1.0, 2.0, 3.0]])

COMPUTED = {
    "inner": lambda x: (x.inner(x), x[0].inner(x[1]), torch.inner(x, torch.ones(2, 4, 3).cumsum(0)), x.inner(x[0, 0])),
    "floor of floats": lambda x: (x // 0.3, x // -0.3, x // 0.0, (x * 1e10) // 3, x // x, x.double() // 0.1),
    "rounded down": lambda x: (torch.div(x, 0.3, rounding_mode="floor"), torch.div(-x, 0.1, rounding_mode="floor")),
    "half precision": lambda x: (x.half() * 3.3, x.half() / 3.3, x.half() // 0.3, x.half() + 3.3, 3.3 / x.half()),
    "parts": lambda x: (*x.tensor_split(2), *torch.tensor_split(x, [1, 2], 1), *x.tensor_split(5), *x.split(2)),
    "parts that overlap": lambda x: (*torch.tensor_split(x, [2, 1]), *torch.tensor_split(x, [-1, 9])),
    "softmax in another type": lambda x: (x.softmax(0, dtype=torch.float64), x.log_softmax(1, dtype=torch.float64)),
}


@pytest.mark.parametrize("name", COMPUTED)
def test_computed(name, tmp_path):
    save_traced(COMPUTED[name], (X.clone(),), tmp_path / "model.pt")
    check(tmp_path / "model.pt", COMPUTED[name], [X])
