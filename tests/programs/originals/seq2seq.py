"""An encoder and a decoder with attention, teacher forcing, ignored padding."""

import torch
from torch import nn

from tests.programs.same import classes, fill


class Seq2Seq(nn.Module):
    def __init__(self, vocab=9, width=6):
        super().__init__()
        self.embed = nn.Embedding(vocab, width, padding_idx=0)
        self.enc, self.dec = nn.GRU(width, width), nn.GRUCell(2 * width, width)
        self.out = nn.Linear(2 * width, vocab)

    def forward(self, src, tgt):
        memory, h = self.enc(self.embed(src))
        h, steps = h.squeeze(0), []
        for token in self.embed(tgt):
            weights = torch.bmm(memory.transpose(0, 1), h.unsqueeze(2)).squeeze(2).softmax(dim=1)
            context = torch.bmm(weights.unsqueeze(1), memory.transpose(0, 1)).squeeze(1)
            h = self.dec(torch.cat((token, context), dim=1), h)
            steps.append(self.out(torch.cat((h, context), dim=1)))
        return torch.stack(steps)


def main(compiled=lambda step: step):
    model = fill(torch, Seq2Seq())
    criterion = nn.CrossEntropyLoss(ignore_index=0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    src, tgt = torch.from_numpy(classes(9, 4, 3)), torch.from_numpy(classes(9, 5, 3, seed=1))

    def step(src, tgt):
        optimizer.zero_grad()
        output = model(src, tgt[:-1])
        loss = criterion(output.view(-1, output.size(-1)), tgt[1:].contiguous().view(-1))
        loss.backward()
        optimizer.step()
        return loss

    run = compiled(step)
    return [run(src, tgt).item() for _ in range(20)]
