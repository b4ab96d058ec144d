"""A linear-chain CRF over an LSTM: the forward algorithm in log space, and Viterbi decoding."""

import torch
from torch import nn

from tests.programs.same import classes, fill


class CRF(nn.Module):
    def __init__(self, tags):
        super().__init__()
        self.transitions = nn.Parameter(torch.empty(tags, tags))
        self.start = nn.Parameter(torch.zeros(tags))
        self.end = nn.Parameter(torch.zeros(tags))
        nn.init.uniform_(self.transitions, -0.1, 0.1)

    def log_likelihood(self, emissions, tags, mask):
        steps, batch, _ = emissions.shape
        rows = torch.arange(batch)
        score = self.start[tags[0]] + emissions[0, rows, tags[0]]
        alpha = self.start + emissions[0]
        for t in range(1, steps):
            gain = self.transitions[tags[t - 1], tags[t]] + emissions[t, rows, tags[t]]
            score = score + gain * mask[t]
            nxt = torch.logsumexp(alpha.unsqueeze(2) + self.transitions + emissions[t].unsqueeze(1), dim=1)
            alpha = torch.where(mask[t].bool().unsqueeze(1), nxt, alpha)
        last = mask.long().sum(0) - 1
        score = score + self.end[tags.gather(0, last.unsqueeze(0)).squeeze(0)]
        return score - torch.logsumexp(alpha + self.end, dim=1)

    @torch.no_grad()
    def decode(self, emissions):
        score, history = self.start + emissions[0], []
        for e in emissions[1:]:
            best, where = (score.unsqueeze(2) + self.transitions).max(dim=1)
            score = best + e
            history.append(where)
        tag = (score + self.end).argmax(dim=1)
        path = [tag]
        for where in reversed(history):
            tag = where.gather(1, tag.unsqueeze(1)).squeeze(1)
            path.append(tag)
        return torch.stack(path[::-1])


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(12, 6, padding_idx=0)
        self.lstm = nn.LSTM(6, 5, bidirectional=True)
        self.head = nn.Linear(10, 4)
        self.crf = CRF(4)

    def forward(self, tokens):
        return self.head(self.lstm(self.embed(tokens))[0])


def main():
    model = fill(torch, Tagger())
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-2)
    tokens, tags = torch.from_numpy(classes(12, 6, 3)), torch.from_numpy(classes(4, 6, 3, seed=2))
    mask = torch.ones(6, 3)
    mask[4:, 1] = 0
    mask[3:, 2] = 0
    losses = []
    for _ in range(20):
        optimizer.zero_grad()
        emissions = model(tokens)
        loss = -model.crf.log_likelihood(emissions, tags, mask).mean()
        loss.backward()
        nn.utils.clip_grad_value_(model.parameters(), 0.5)
        optimizer.step()
        right = (model.crf.decode(emissions) == tags).float().mean()
        losses.append(loss.item() + 0.1 * right.item())
    return losses
