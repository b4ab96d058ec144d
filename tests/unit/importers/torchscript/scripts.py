"""Modules for torch.jit.script whose values go through ifs and loops in ways that are easy to get wrong."""

import enum
import typing

import torch
from torch import nn


class WrittenUnderTwoNames(nn.Module):
    def forward(self, x, n: int):
        y = x.clone()
        a = y
        for _i in range(n):
            a += 1
        return y, a


class ViewWrittenInLoop(nn.Module):
    def forward(self, x, n: int):
        y = x.clone()
        row = y[1]
        for i in range(n):
            row += i
            y[0] += row
        return y, row


class AddedToOther(nn.Module):
    def forward(self, x, n: int):
        a = x.clone()
        b = a
        for _i in range(n):
            b = b + 1
            b.mul_(2)
            a.add_(b)
        return a, b


class ReturnsFromLoop(nn.Module):
    def forward(self, x, n: int):
        for i in range(n):
            x = x * 1.5
            if x.abs().max() > 3.0:
                return x, i
        return x, -1


class ListChanged(nn.Module):
    def forward(self, x, n: int):
        out: list[torch.Tensor] = [x]
        for i in range(n):
            out.append(out[-1] * 0.5 + i)
        out[0] = out[0] + 10
        out[-1] = out[-1] - 10
        out.insert(1, x * 3)
        last = out.pop()
        del out[0]
        return out, last, len(out)


class Bits(nn.Module):
    def forward(self, x, n: int):
        return n & 3, n | 8, n ^ 5, bool(n > 2) ^ (n < 9), 6 ^ 3, x


class Repeated(nn.Module):
    def forward(self, x, n: int):
        return x.repeat_interleave(n, 0), divmod(7, n + 1)


class KeptNone(nn.Module):
    def forward(self, x, n: int):
        last: torch.Tensor | None = None
        total = torch.zeros(1)
        for i in range(n):
            if last is not None:
                total = total + last.sum()
            last = x * i
        if last is None:
            return total, x
        return total, last


class KeptBest(nn.Module):
    def forward(self, x, n: int):
        best: torch.Tensor | None = None
        score = -1.0
        for i in range(n):
            s = float((x * i).sum())
            if s > score:
                score = s
                best = x * i
        if best is not None:
            return best, score
        return x, score


class GivesMaybe(nn.Module):
    def forward(self, x):
        y: torch.Tensor | None = None
        if x.sum() > 0:
            y = x * 2
        return y


class NoneOnOnePath(nn.Module):
    def forward(self, x):
        y: torch.Tensor | None = None
        if x.sum() > 0:
            y = x * 2
        if y is None:
            return x
        return y + 1


class Total:
    def __init__(self, x: torch.Tensor):
        self.sum = x
        self.count = 0

    def add(self, x: torch.Tensor):
        self.sum = self.sum + x
        self.count += 1


class ObjectChanged(nn.Module):
    def forward(self, x):
        total = Total(torch.zeros(1))
        if x.sum() > 0:
            total.add(x.sum())
        return total.sum, total.count


class Pair(typing.NamedTuple):
    low: torch.Tensor
    high: torch.Tensor


class GivesNamedTuple(nn.Module):
    def forward(self, x) -> Pair:
        pair = Pair(x, x + 1)
        if x.sum() > 0:
            pair = Pair(pair.high, pair.low * 2)
        return pair


class TurnedInPlace(nn.Module):
    def forward(self, x):
        y = x + 1
        y.t_()
        row = y[0]
        row.unsqueeze_(0)
        row.mul_(3)
        return y, row


class ListGrownUnderTwoNames(nn.Module):
    def forward(self, x):
        a = [x]
        b = a
        b += [x + 1]
        return len(a), a[-1]


class Kept(nn.Module):
    def forward(self, x):
        sizes = [3, 1, 2, 1]
        sizes.remove(1)
        found = {"a": x}
        first = found.setdefault("a", x + 1)
        second = found.setdefault("b", x + 2)
        second.add_(1)
        return sizes, first, found["b"], len(found)


class Mode(enum.Enum):
    SUM = "sum"
    MEAN = "mean"


class Reduction(nn.Module):
    def __init__(self):
        super().__init__()
        self.mode = Mode.MEAN

    def chosen(self, x, mode: Mode):
        if mode == Mode.SUM:
            return x.sum()
        return x.mean()

    def forward(self, x):
        total = self.chosen(x, Mode.SUM)
        for mode in Mode:
            total = total + self.chosen(x, mode) * len(mode.value) * len(mode.name)
        return total, self.chosen(x, self.mode), self.mode != Mode.SUM


class TensorOfTwo(nn.Module):
    def forward(self, x):
        y, z = x.clone(), x * 2
        a = y
        if x.sum() > 0:
            a = z
        a.add_(100)
        return y, z


class ListOfTwo(nn.Module):
    def forward(self, x):
        a, b = [x], [x * 2]
        c = a
        if x.sum() > 0:
            c = b
        c.append(x + 1)
        return len(a), len(b)


class CollectedThenWritten(nn.Module):
    def forward(self, x, n: int):
        found: list[torch.Tensor] = []
        h = x.clone()
        for _i in range(n):
            h += 1
            found.append(h)
        return found


class TurnedWithView(nn.Module):
    def forward(self, x):
        y = x.clone()
        row = y[0]
        y.t_()
        return y, row


class TextOfSize(nn.Module):
    def forward(self, x, n: int):
        if f"{n}" == "3":
            return x + 1
        return x


class ListOfModule(nn.Module):
    def __init__(self):
        super().__init__()
        self.sizes = [1, 2]

    def forward(self, x):
        self.sizes.append(x.size(0))
        return x * self.sizes[-1]
