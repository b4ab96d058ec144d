"""Data: datasets of both kinds, samplers, collation of ragged rows, splits, weighted and batch samplers."""

import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import (
    BatchSampler,
    ConcatDataset,
    DataLoader,
    Dataset,
    IterableDataset,
    SequentialSampler,
    Subset,
    TensorDataset,
    WeightedRandomSampler,
    default_collate,
    get_worker_info,
    random_split,
)

from tests.programs.same import classes, fill, numbers


class Ragged(Dataset):
    def __init__(self, count):
        self.lengths = classes(5, count) + 1
        self.rows = [numbers(n, 3, seed=i) for i, n in enumerate(self.lengths)]

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return {"x": torch.from_numpy(self.rows[i].copy()), "y": float(self.rows[i].sum()), "name": f"row {i}"}


class Stream(IterableDataset):
    def __iter__(self):
        info = get_worker_info()
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        for i in range(first, 8, step):
            yield torch.full((3,), float(i)), i


def collate(rows):
    x = pad_sequence([r["x"] for r in rows], batch_first=True, padding_value=0.0)
    lengths = torch.tensor([len(r["x"]) for r in rows])
    mask = torch.arange(x.size(1))[None, :] < lengths[:, None]
    return x, mask, torch.tensor([r["y"] for r in rows]), [r["name"] for r in rows]


def main():
    model = fill(torch, nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 1)))
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.05, lr_decay=0.01)
    data, losses = Ragged(24), []
    train, rest = random_split(data, [0.75, 0.25], generator=torch.Generator().manual_seed(0))
    assert len(train) == 18
    assert len(rest) == 6
    assert sorted(train.indices + rest.indices) == list(range(24))
    loader = DataLoader(Subset(data, range(18)), batch_size=4, collate_fn=collate, drop_last=True)
    for _epoch in range(5):
        for x, mask, y, names in loader:
            out = (model(x).squeeze(-1) * mask).sum(1)
            loss = nn.functional.smooth_l1_loss(out, y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            assert len(names) == 4
            assert names[0].startswith("row")
    tensors = TensorDataset(torch.from_numpy(numbers(10, 3)), torch.arange(10))
    both = ConcatDataset([tensors, tensors])
    sampler = BatchSampler(SequentialSampler(both), batch_size=6, drop_last=False)
    for x, y in DataLoader(both, batch_sampler=sampler):
        losses += [x.sum().item(), y.float().mean().item()]
    weights = [0.0] * 9 + [1.0]
    drawn = [y for _, y in DataLoader(tensors, batch_size=5, sampler=WeightedRandomSampler(weights, 10))]
    assert torch.cat(drawn).tolist() == [9] * 10
    seen = torch.cat([i for _, i in DataLoader(Stream(), batch_size=2)])
    assert sorted(seen.tolist()) == list(range(8))
    collated = default_collate([{"a": 1, "b": (2.0, "x")}, {"a": 3, "b": (4.0, "y")}])
    assert collated["a"].tolist() == [1, 3]
    assert list(collated["b"][1]) == ["x", "y"]
    torch.manual_seed(1)
    shuffled = [i for (i,) in DataLoader(TensorDataset(torch.arange(6)), shuffle=True, batch_size=1)]
    assert sorted(int(i) for i in shuffled) == list(range(6))
    return losses
