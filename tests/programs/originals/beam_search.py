"""A small decoder trained with teacher forcing, then beam search with top-k, masks and finished beams."""

import torch
import torch.nn.functional as F
from torch import nn

from tests.programs.same import classes, fill


class Decoder(nn.Module):
    def __init__(self, words=9, size=8):
        super().__init__()
        self.embed = nn.Embedding(words, size)
        self.cell = nn.GRUCell(size, size)
        self.out = nn.Linear(size, words, bias=False)
        self.out.weight = self.embed.weight

    def step(self, token, hidden):
        hidden = self.cell(self.embed(token), hidden)
        return F.log_softmax(self.out(hidden), dim=-1), hidden


@torch.inference_mode()
def beam_search(model, width=3, length=5, end=1):
    scores = torch.tensor([0.0] + [float("-inf")] * (width - 1))
    tokens = torch.zeros(width, 1, dtype=torch.long)
    hidden = torch.zeros(width, 8)
    done = torch.zeros(width, dtype=torch.bool)
    for _ in range(length):
        logp, hidden = model.step(tokens[:, -1], hidden)
        logp = logp.masked_fill(done.unsqueeze(1), float("-inf"))
        logp[done, end] = 0.0
        total = (scores.unsqueeze(1) + logp).view(-1)
        scores, flat = torch.topk(total, width)
        beam, word = torch.div(flat, logp.size(1), rounding_mode="floor"), flat % logp.size(1)
        tokens = torch.cat([tokens[beam], word.unsqueeze(1)], dim=1)
        hidden, done = hidden.index_select(0, beam), done[beam] | (word == end)
        if done.all():
            break
    return tokens[0].tolist(), scores[0].item()


def main():
    model = fill(torch, Decoder())
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    target = torch.from_numpy(classes(9, 4, 6))
    losses = []
    for _ in range(20):
        optimizer.zero_grad()
        hidden, loss = torch.zeros(4, 8), 0.0
        for t in range(5):
            logp, hidden = model.step(target[:, t], hidden)
            loss = loss + F.nll_loss(logp, target[:, t + 1])
        (loss / 5).backward()
        optimizer.step()
        words, score = beam_search(model)
        losses.append(loss.item() + 0.1 * score + 0.01 * sum(words))
    return losses
