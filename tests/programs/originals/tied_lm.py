"""A language model with an LSTM, tied weights and truncated backpropagation."""

import torch
import torch.nn.functional as F
from torch import nn

from tests.programs.same import classes, fill


class RNNModel(nn.Module):
    def __init__(self, vocab, width):
        super().__init__()
        self.encoder = nn.Embedding(vocab, width)
        self.rnn = nn.LSTM(width, width, 1)
        self.decoder = nn.Linear(width, vocab)
        self.decoder.weight = self.encoder.weight

    def forward(self, x, hidden):
        output, hidden = self.rnn(self.encoder(x), hidden)
        return F.log_softmax(self.decoder(output).view(-1, self.decoder.out_features), dim=1), hidden


def repackage_hidden(h):
    return h.detach() if isinstance(h, torch.Tensor) else tuple(repackage_hidden(v) for v in h)


def main():
    model = fill(torch, RNNModel(9, 6))
    assert sum(p.numel() for p in model.parameters()) == 9 * 6 + 2 * 24 * 6 + 2 * 24 + 9
    weight = next(model.parameters())
    hidden = (weight.new_zeros(1, 3, 6), weight.new_zeros(1, 3, 6))
    data, losses = torch.from_numpy(classes(9, 81, 3)), []
    for i in range(0, 80, 4):
        x, target = data[i : i + 4], data[i + 1 : i + 5].view(-1)
        model.zero_grad()
        hidden = repackage_hidden(hidden)
        output, hidden = model(x, hidden)
        loss = F.nll_loss(output, target)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.25)
        with torch.no_grad():
            for p in model.parameters():
                p.add_(p.grad, alpha=-0.5)
        losses.append(loss.item())
    return losses
