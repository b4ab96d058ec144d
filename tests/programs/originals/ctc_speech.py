"""Speech to text: strided convolutions, a bidirectional GRU over packed sequences, CTC, greedy decoding."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence, pad_sequence

from tests.programs.same import classes, fill, numbers


class Recognizer(nn.Module):
    def __init__(self, classes=5):
        super().__init__()
        self.conv = nn.Sequential(nn.Conv1d(4, 8, 3, stride=2, padding=1), nn.BatchNorm1d(8), nn.Hardtanh(0, 20))
        self.rnn = nn.GRU(8, 6, num_layers=2, bidirectional=True, batch_first=True)
        self.head = nn.Linear(12, classes)

    def forward(self, x, lengths):
        x = self.conv(x.transpose(1, 2)).transpose(1, 2)
        lengths = torch.div(lengths + 1, 2, rounding_mode="trunc")
        packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        out, _ = pad_packed_sequence(self.rnn(packed)[0], batch_first=True)
        return F.log_softmax(self.head(out), dim=-1), lengths


def greedy(log_probs, lengths, blank=0):
    texts = []
    for row, length in zip(log_probs.argmax(-1), lengths.tolist(), strict=False):
        tokens = torch.unique_consecutive(row[:length])
        texts.append(tokens[tokens != blank].tolist())
    return texts


def main():
    torch.manual_seed(0)
    model = fill(torch, Recognizer())
    speech = [torch.from_numpy(numbers(t, 4)) for t in (20, 17, 12)]
    lengths = torch.tensor([len(s) for s in speech])
    x = pad_sequence(speech, batch_first=True)
    targets = [torch.from_numpy(1 + classes(4, n)) for n in (4, 3, 2)]
    target_lengths = torch.tensor([t.numel() for t in targets])
    joined = torch.cat(targets)
    loss_of = nn.CTCLoss(blank=0, zero_infinity=True)
    optimizer = torch.optim.RMSprop(model.parameters(), lr=0.003, momentum=0.5)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.003, total_steps=20, anneal_strategy="linear")
    losses = []
    for _ in range(20):
        log_probs, out_lengths = model(x, lengths)
        loss = loss_of(log_probs.permute(1, 0, 2), joined, out_lengths, target_lengths)
        optimizer.zero_grad()
        loss.backward()
        total = nn.utils.clip_grad_norm_(model.parameters(), 2.0, norm_type=2.0)
        optimizer.step()
        scheduler.step()
        losses += [loss.item(), float(total), scheduler.get_last_lr()[0]]
    model.eval()
    with torch.no_grad():
        texts = greedy(*model(x, lengths))
    return [*losses, float(sum(map(len, texts)))]
