"""A Dataset, a DataLoader with a collate function of its own, random_split and Subset."""

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset, random_split

from tests.programs.same import classes, fill


class Sequences(Dataset):
    def __init__(self, count):
        self.rows = [(classes(7, 2 + i % 4, seed=i), i % 3) for i in range(count)]

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        tokens, label = self.rows[i]
        return torch.tensor(tokens, dtype=torch.long), label


def collate(batch):
    tokens, labels = zip(*batch, strict=True)
    return nn.utils.rnn.pad_sequence(tokens, batch_first=True), torch.tensor(labels)


def main():
    assert [len(p) for p in random_split(TensorDataset(torch.zeros(10, 2)), [7, 3])] == [7, 3]
    loader = DataLoader(Subset(Sequences(24), range(20)), batch_size=4, shuffle=False, collate_fn=collate)
    model = fill(torch, nn.Sequential(nn.Embedding(7, 5), nn.Linear(5, 3)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for _ in range(4):
        for tokens, labels in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(tokens).mean(dim=1), labels)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return losses
