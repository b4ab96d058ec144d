"""Writes through every kind of view reach the tensor it was taken from, as in torch, or are refused."""

import pytest

from pyflame_rt import UnsupportedOperatorError
from pyflame_rt.importers.aten.table import list_lowerings
from pyflame_rt.importers.torchscript.views import ALIASES, PARTS, VIEWS
from tests.unit.importers.torchscript.saving import check, jit, save_traced, torch

X = torch.tensor([[0.5, -1.0, 2.0], [1.5, 0.25, -0.75], [1.0, 2.0, 3.0]])

TAKEN = {
    "movedim": lambda y: y.movedim(0, 1),
    "moveaxis": lambda y: y.moveaxis(0, -1),
    "swapdims": lambda y: y.swapdims(0, 1),
    "H": lambda y: y.H,
    "mH": lambda y: y.mH,
    "adjoint": lambda y: y.adjoint(),
    "split": lambda y: y.split(2)[0],
    "split, short part": lambda y: y.split(2, 1)[1],
    "split by sizes": lambda y: y.split([1, 2], -1)[1],
    "tensor_split": lambda y: y.tensor_split(2, 1)[1],
    "tensor_split at places": lambda y: torch.tensor_split(y, [1, -1], 1)[1],
    "chunk": lambda y: y.chunk(2)[1],
    "unbind": lambda y: y.unbind(1)[2],
    "unbind of a view": lambda y: y.t().unbind(1)[2],
    "diagonal": lambda y: y.diagonal(),
    "diagonal above": lambda y: y.diagonal(1),
    "diagonal below": lambda y: y[None].diagonal(-1, 1, 2)[0],
    "linalg.diagonal": lambda y: torch.linalg.diagonal(y),
    "windows apart": lambda y: y.unfold(0, 1, 2)[1, 1],
    "expand_as": lambda y: y.expand_as(X),
    "broadcast_to": lambda y: torch.broadcast_to(y, (3, 3)),
    "atleast_2d": lambda y: torch.atleast_2d(y[0]),
    "view, then reshape": lambda y: y.view(-1).reshape(3, 3)[1],
    "ravel": lambda y: y.ravel(),
    "contiguous": lambda y: y.contiguous(),
    "a copy": lambda y: y.to(torch.float32, copy=True),
    "a copy for a device": lambda y: y.to("cpu", copy=True),
    "no copy": lambda y: y.to(torch.float32),
    "broadcast_tensors": lambda y: torch.broadcast_tensors(y, X)[0],
    "cat of one": lambda y: torch.cat([y]),
}


class Written(torch.nn.Module):
    def __init__(self, take):
        super().__init__()
        self.take = take

    def forward(self, x):
        y = x.clone()
        z = self.take(y)
        z[0] = 55
        y += 1
        z *= 2
        return y, z


@pytest.mark.parametrize("name", TAKEN)
def test_what_is_written_to_a_view(name, tmp_path):
    model = Written(TAKEN[name])
    save_traced(model, (X.clone(),), tmp_path / "model.pt")
    check(tmp_path / "model.pt", model, [X])


def test_views_that_are_read_after_their_tensor_changed(tmp_path):
    def forward(x):
        y = x.clone()
        parts = [*y.split(1), *y.unbind(1), y.expand(2, 3, 3), y.unfold(0, 2, 1), y.movedim(0, 1)]
        y[0] = 7
        y.mul_(2)
        return tuple(parts)

    save_traced(forward, (X.clone(),), tmp_path / "model.pt")
    check(tmp_path / "model.pt", forward, [X])


# Whether these are copies depends on where torch has the elements: in another order than that of the axes.
MOVED = {
    "contiguous of a view": lambda x: (y := x.clone(), y.t().contiguous()),
    "ravel of a view": lambda x: (y := x.clone(), y.t().ravel()),
    "reshape of a sum": lambda x: (y := x.t() + 1, y.reshape(-1)),
    "flatten of what an activation gave": lambda x: (y := x.t().relu(), y.flatten()),
    "reshape of a clone": lambda x: (y := x.t().clone(), y.reshape(-1)),
    "reshape of zeros": lambda x: (y := torch.zeros_like(x.t()), y.reshape(-1)),
    "reshape in another type": lambda x: (y := x.t().double(), y.reshape(-1)),
    "reshape of places": lambda x: (y := (x > 0).nonzero(), y.reshape(-1)),
}


@pytest.mark.parametrize("name", MOVED)
def test_what_may_be_a_copy_is_refused(name, tmp_path):
    def forward(x):
        y, z = MOVED[name](x)
        z[0] = 55
        return y, z

    save_traced(forward, (X.clone(),), tmp_path / "model.pt")
    with pytest.raises(UnsupportedOperatorError, match="share memory"):
        check(tmp_path / "model.pt", forward, [X])


def test_windows_that_overlap_are_not_written(tmp_path):
    def forward(x):
        y = x.clone()
        y.unfold(0, 2, 1)[0] = 55
        return y

    save_traced(forward, (X.clone(),), tmp_path / "model.pt")
    with pytest.raises(UnsupportedOperatorError, match="windows that overlap"):
        check(tmp_path / "model.pt", forward, [X])


def test_parts_of_complex_numbers_are_written(tmp_path):
    def forward(x):
        y = torch.view_as_complex(torch.stack([x, x + 1], -1))
        y.real.mul_(2)
        y.imag[0] = 7
        torch.view_as_real(y)[..., 0].add_(1)
        z = torch.stack([x, x * 3], -1)
        torch.view_as_complex(z).mul_(1j)
        y[1].conj().add_(2j)
        return y, z

    save_traced(forward, (X.clone(),), tmp_path / "model.pt")
    check(tmp_path / "model.pt", forward, [X])


def test_every_operator_that_gives_views_is_known():
    """Torch's schemas say which results share memory with the first argument."""
    inner = {"_reshape_alias"}  # only in graphs that are functional already
    giving = set()
    for schema in torch._C._jit_get_all_schemas():
        name = schema.name.removeprefix("aten::")
        first = schema.arguments[0].alias_info if schema.arguments else None
        shared = any(r.alias_info is not None and not r.alias_info.is_write for r in schema.returns)
        if shared and first is not None and not first.is_write and not schema.name.startswith("prim::"):
            giving.add(name)
    assert giving & {"split", "diagonal", "expand"}
    assert giving & set(list_lowerings()) - inner <= {*ALIASES, *VIEWS, *PARTS}


def test_results_written_to_a_tensor(tmp_path):
    def forward(x):
        y, z, empty = torch.zeros(3, 3), torch.zeros(3, 3), torch.empty(0)
        torch.add(x, 1, out=y)
        torch.mul(x[0], 2, out=z.view(3, 3)[1])
        torch.matmul(x, x, out=empty)
        empty += 1
        return y, z, empty, torch.sum(x, 0, out=torch.empty(3))

    save_traced(forward, (X.clone(),), tmp_path / "model.pt")
    check(tmp_path / "model.pt", forward, [X])


def test_numbers_of_a_trace_promote_as_numbers(tmp_path):
    def forward(x):
        whole = x.long()
        return whole / 2.0, whole * 1.5, whole + 1.5, whole * torch.tensor(1.5, dtype=torch.float64), x.half() * 3.3

    traced = save_traced(forward, (X.clone(),), tmp_path / "model.pt")
    check(tmp_path / "model.pt", jit(torch.jit.load, str(tmp_path / "model.pt")), [X])
    assert [v.dtype for v in traced(X)][:3] == [torch.float32] * 3
