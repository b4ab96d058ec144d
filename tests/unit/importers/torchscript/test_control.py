"""Branches, loops, lists, dictionaries and writes in place, where only running tells what happens."""

import typing

import numpy as np
import pytest

import pyflame_rt
from pyflame_rt.graph.errors import InputError, UnsupportedOperatorError
from tests.unit.importers.torchscript.saving import check, close, leaves, save_scripted, torch

nn, Tensor = torch.nn, torch.Tensor


class Branch(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        if x.sum() > 0:
            y = x * 2
        elif x.min() < -5:
            y = x - 1
        else:
            y = -x
        return y + 1


class WriteInBranch(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        y = x.clone()
        if x.sum() > 0:
            y[0] = 7.0
            y[:, 1:] += 1
        return y


class Repeat(nn.Module):
    def forward(self, x: Tensor, n: int) -> tuple[Tensor, int]:
        total, k = x, 0
        for i in range(n):
            total = total * 0.5 + i
            k += 2
        return total, k


class Until(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, int]:
        steps = 0
        while x.abs().max() > 1:
            x = x / 2
            steps += 1
        return x, steps


class Collect(nn.Module):
    def forward(self, x: Tensor, n: int) -> tuple[Tensor, list[Tensor]]:
        found: list[Tensor] = []
        for i in range(n):
            found.append(x + i)
            if i > 1:
                found.append(x * i)
        return torch.stack(found), found


class Grow(nn.Module):
    def forward(self, x: Tensor, n: int) -> Tensor:
        out = x
        while out.size(0) < n:
            out = torch.cat([out, out[-1:] * 2], 0)
        return out


class Break(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, int]:
        last = -1
        for i in range(x.size(0)):
            if x[i].sum() < 0:
                last = i
                break
            x = x + 0.25
        return x, last


class Nested(nn.Module):
    def forward(self, x: Tensor, n: int) -> Tensor:
        out = torch.zeros_like(x)
        for i in range(n):
            for j in range(x.size(1)):
                if x[0, j] > i:
                    out[:, j] += x[:, j] * i
        return out


class Dicts(nn.Module):
    def forward(self, x: Tensor) -> dict[str, Tensor]:
        made: dict[str, Tensor] = {"first": x}
        for i in range(2):
            made["k" + str(i)] = x * i
        made["sum"] = made["first"] + made["k1"]
        return made


class Pair(typing.NamedTuple):
    low: Tensor
    high: Tensor


class Named(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        pair = Pair(x.clamp(max=0), x.clamp(min=0))
        return pair.low * 2 + pair.high


class Views(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        y = x.clone()
        row, column = y[1], y.t()[0]
        row.mul_(3)
        column.add_(10)
        y.view(-1)[::2] = -1.0
        y[y > 11] = 0.5
        y.transpose(0, 1).unsqueeze(0).select(2, 1).fill_(4)
        return y, row, column


class Lists(nn.Module):
    def forward(self, x: Tensor, others: list[Tensor]) -> Tensor:
        total = x
        for other in range(len(others)):
            total = total + others[other]
        return torch.cat(others, 0).sum() + total


class Optional(nn.Module):
    def forward(self, x: Tensor, bias: typing.Optional[Tensor] = None) -> Tensor:  # noqa: UP045 - TorchScript's
        return x if bias is None else x + bias


class Checked(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        if x.sum() < 0:
            raise ValueError("the sum is negative")
        return x * 2


def _session(model, path):
    save_scripted(model.eval(), path)
    return pyflame_rt.InferenceSession(path)


POSITIVE, NEGATIVE = torch.tensor([[1.0, 2.0, 0.5], [0.2, -1, 4]]), torch.tensor([[-1.0, 2.0, -7.5], [0.2, -1, -4]])


@pytest.mark.parametrize("model", [Branch, WriteInBranch, Until, Break, Views, Named], ids=lambda m: m.__name__)
@pytest.mark.parametrize("x", [POSITIVE, NEGATIVE, NEGATIVE / 100], ids=["positive", "negative", "small"])
def test_both_ways(model, x, tmp_path):
    save_scripted(model(), tmp_path / "m.pt")
    check(tmp_path / "m.pt", model(), (x,))


@pytest.mark.parametrize("model", [Repeat, Collect, Grow, Nested], ids=lambda m: m.__name__)
@pytest.mark.parametrize("count", [1, 4])
def test_how_often_is_an_input(model, count, tmp_path):
    save_scripted(model(), tmp_path / "m.pt")
    check(tmp_path / "m.pt", model(), (POSITIVE, count))


def test_one_session_goes_both_ways(tmp_path):
    session = _session(Until(), tmp_path / "m.pt")
    for x in (NEGATIVE, NEGATIVE * 100, NEGATIVE / 100):
        got = session.run(None, {"x": x.numpy()})
        for g, w in zip(got, leaves(Until()(x)), strict=True):
            close(g, w)


def test_dictionaries_need_shapes(tmp_path):
    save_scripted(Dicts(), tmp_path / "m.pt")
    with pytest.raises(UnsupportedOperatorError, match="input_shapes"):
        pyflame_rt.InferenceSession(tmp_path / "m.pt")
    options = pyflame_rt.ImportOptions(input_shapes={"x": [None, 3]})
    result = pyflame_rt.import_module.TorchScriptImporter().import_model(tmp_path / "m.pt", options)
    want = Dicts()(POSITIVE)
    assert [info.name for info in result.unwrap().outputs] == list(want)
    got = pyflame_rt.InferenceSession(result.graph).run(None, {"x": POSITIVE.numpy()})
    for g, w in zip(got, want.values(), strict=True):
        close(g, w)


def test_lists_of_tensors_come_in(tmp_path):
    session = _session(Lists(), tmp_path / "m.pt")
    others = [POSITIVE, NEGATIVE]
    got = session.run(None, {"x": POSITIVE.numpy(), "others": [v.numpy() for v in others]})
    close(got[0], Lists()(POSITIVE, others))


def test_optional_inputs_may_be_left_out(tmp_path):
    session = _session(Optional(), tmp_path / "m.pt")
    close(session.run(None, {"x": POSITIVE.numpy()})[0], POSITIVE)
    close(session.run(None, {"x": POSITIVE.numpy(), "bias": NEGATIVE.numpy()})[0], POSITIVE + NEGATIVE)


def test_exceptions_of_the_model_are_raised(tmp_path):
    session = _session(Checked(), tmp_path / "m.pt")
    close(session.run(None, {"x": POSITIVE.numpy()})[0], POSITIVE * 2)
    with pytest.raises(InputError, match="the sum is negative"):
        session.run(None, {"x": NEGATIVE.numpy()})


def test_state_that_runs_would_change_is_refused(tmp_path):
    path = tmp_path / "m.pt"
    save_scripted(nn.BatchNorm1d(3).train(), path)
    session = pyflame_rt.InferenceSession(path)
    with pytest.raises(UnsupportedOperatorError, match=r"eval\(\)"):
        session.run(None, {"input": np.ones((2, 3), np.float32)})


def test_an_operator_that_is_not_lowered_is_named(tmp_path):
    class Odd(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.linalg.matrix_exp(x)

    session = _session(Odd(), tmp_path / "m.pt")
    with pytest.raises(UnsupportedOperatorError, match="linalg_matrix_exp"):
        session.run(None, {"x": np.ones((2, 2), np.float32)})


class WrittenCopy(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        moved = x.t().reshape(-1)
        moved.add_(1)
        return moved


class RowTwin(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        y = x.clone()
        y[0].reshape(-1, 1).add_(1)  # of what lies together a view
        return y


class WrittenTwin(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        y = x.clone()
        y[:, 0].reshape(-1, 1).add_(1)
        return y


class ReadTwin(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        y = x.clone()
        column = y[:, 0].reshape(-1, 1)
        y.add_(1)
        return column


def test_writes_that_strides_decide_are_refused_where_they_matter(tmp_path):
    save_scripted(WrittenCopy().eval(), tmp_path / "copy.pt")
    close(_answer(tmp_path / "copy.pt"), POSITIVE.t().reshape(-1) + 1)
    save_scripted(RowTwin().eval(), tmp_path / "row.pt")
    close(_answer(tmp_path / "row.pt"), RowTwin()(POSITIVE))
    for model in (WrittenTwin(), ReadTwin()):
        save_scripted(model.eval(), tmp_path / "twin.pt")
        with pytest.raises(UnsupportedOperatorError, match="depends on strides"):
            _answer(tmp_path / "twin.pt")


def _answer(path):
    session = pyflame_rt.InferenceSession(path)
    return session.run(None, {session.get_inputs()[0].name: POSITIVE.numpy()})[0]
