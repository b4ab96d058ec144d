"""A bidirectional LSTM over packed sequences."""

import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from tests.programs.same import classes, fill


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(10, 5, padding_idx=0)
        self.lstm = nn.LSTM(5, 4, num_layers=2, bidirectional=True, batch_first=True)
        self.fc = nn.Linear(8, 3)

    def forward(self, x, lengths):
        packed = pack_padded_sequence(self.embed(x), lengths, batch_first=True, enforce_sorted=False)
        output, (h, _) = self.lstm(packed)
        output, _ = pad_packed_sequence(output, batch_first=True)
        return self.fc(torch.cat((h[-2], h[-1]), dim=1) + output.mean(1))


def main():
    model = fill(torch, Classifier())
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    x, y, losses = torch.from_numpy(classes(9, 4, 6) + 1), torch.from_numpy(classes(3, 4)), []
    lengths = torch.tensor([6, 3, 5, 2])
    for _ in range(20):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x, lengths), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses
