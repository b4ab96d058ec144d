"""Small networks in the manner of well-known ones, and scripts with loops and branches."""

import math

import pytest

torch = pytest.importorskip("torch")
nn, F = torch.nn, torch.nn.functional


class Block(nn.Module):
    def __init__(self, inside, outside, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(inside, outside, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outside)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(outside, outside, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outside)
        plain = stride == 1 and inside == outside
        self.shortcut = (
            nn.Identity() if plain else nn.Sequential(nn.Conv2d(inside, outside, 1, stride), nn.BatchNorm2d(outside))
        )

    def forward(self, x):
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        out += self.shortcut(x)
        return self.relu(out)


class ResNet18(nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, width, 7, 2, 3), nn.BatchNorm2d(width), nn.ReLU(), nn.MaxPool2d(3, 2, 1))
        sizes = [width, width, 2 * width, 4 * width, 8 * width]
        blocks = []
        for i in range(4):
            blocks += [Block(sizes[i], sizes[i + 1], 1 if i == 0 else 2), Block(sizes[i + 1], sizes[i + 1], 1)]
        self.blocks = nn.Sequential(*blocks)
        self.pool = nn.AdaptiveAvgPool2d((1, 1))
        self.fc = nn.Linear(8 * width, 10)

    def forward(self, x):
        return self.fc(torch.flatten(self.pool(self.blocks(self.stem(x))), 1))


class BertLike(nn.Module):
    def __init__(self, width=16, heads=2, layers=2):
        super().__init__()
        self.words, self.places = nn.Embedding(50, width), nn.Embedding(32, width)
        self.norm = nn.LayerNorm(width)
        self.query = nn.ModuleList([nn.Linear(width, 3 * width) for _ in range(layers)])
        self.out = nn.ModuleList([nn.Linear(width, width) for _ in range(layers)])
        self.inner = nn.ModuleList([nn.Linear(width, 4 * width) for _ in range(layers)])
        self.outer = nn.ModuleList([nn.Linear(4 * width, width) for _ in range(layers)])
        self.norms = nn.ModuleList([nn.LayerNorm(width) for _ in range(2 * layers)])
        self.heads = heads

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        places = torch.arange(ids.size(1), device=ids.device).unsqueeze(0)
        x = self.norm(self.words(ids) + self.places(places))
        bias = (1.0 - mask[:, None, None, :].to(x.dtype)) * -10000.0
        for i, (query, out, inner, outer) in enumerate(
            zip(self.query, self.out, self.inner, self.outer)  # noqa: B905 - TorchScript knows no strict
        ):
            b, t, c = x.shape
            q, k, v = query(x).view(b, t, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4).unbind(0)
            weights = (q @ k.transpose(-2, -1) / math.sqrt(c // self.heads) + bias).softmax(-1)
            x = self.first(i, x + out((weights @ v).transpose(1, 2).reshape(b, t, c)))
            x = self.second(i, x + outer(F.gelu(inner(x))))
        return x, torch.tanh(x[:, 0])

    def first(self, i: int, x: torch.Tensor) -> torch.Tensor:
        return self.chosen(2 * i, x)

    def second(self, i: int, x: torch.Tensor) -> torch.Tensor:
        return self.chosen(2 * i + 1, x)

    def chosen(self, which: int, x: torch.Tensor) -> torch.Tensor:
        for i, norm in enumerate(self.norms):
            if i == which:
                x = norm(x)
        return x


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.register_buffer("seen", torch.tril(torch.ones(32, 32)).view(1, 1, 32, 32))

    def forward(self, x):
        b, t, c = x.size()
        q, k, v = self.qkv(x).split(c, dim=2)
        q = q.view(b, t, self.heads, c // self.heads).transpose(1, 2)
        k = k.view(b, t, self.heads, c // self.heads).transpose(1, 2)
        v = v.view(b, t, self.heads, c // self.heads).transpose(1, 2)
        scores = q @ k.transpose(-2, -1) * (1.0 / math.sqrt(k.size(-1)))
        scores = scores.masked_fill(self.seen[:, :, :t, :t] == 0, float("-inf"))
        return self.proj((F.softmax(scores, dim=-1) @ v).transpose(1, 2).contiguous().view(b, t, c))


class GptLike(nn.Module):
    def __init__(self, width=16, heads=2, layers=2):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(40, width), nn.Embedding(32, width)
        self.attention = nn.ModuleList([Attention(width, heads) for _ in range(layers)])
        self.mlp = nn.ModuleList(
            [
                nn.Sequential(nn.Linear(width, 4 * width), nn.GELU("tanh"), nn.Linear(4 * width, width))
                for _ in range(layers)
            ]
        )
        self.norm1 = nn.ModuleList([nn.LayerNorm(width) for _ in range(layers)])
        self.norm2 = nn.ModuleList([nn.LayerNorm(width) for _ in range(layers)])
        self.last = nn.LayerNorm(width)
        self.head = nn.Linear(width, 40, bias=False)
        self.head.weight = self.wte.weight

    def forward(self, ids):
        x = self.wte(ids) + self.wpe(torch.arange(0, ids.size(1), dtype=torch.long))
        for attention, mlp, norm1, norm2 in zip(self.attention, self.mlp, self.norm1, self.norm2):  # noqa: B905
            x = x + attention(norm1(x))
            x = x + mlp(norm2(x))
        return self.head(self.last(x))


class Tagger(nn.Module):
    """Embeddings, an LSTM over them, scores for each place."""

    def __init__(self):
        super().__init__()
        self.words, self.lstm, self.tags = nn.Embedding(30, 6), nn.LSTM(6, 5, 2, batch_first=True), nn.Linear(5, 4)

    def forward(self, ids):
        states, _ = self.lstm(self.words(ids))
        return F.log_softmax(self.tags(states), -1)


def overlap(box: torch.Tensor, boxes: torch.Tensor) -> torch.Tensor:
    low = torch.max(box[:2], boxes[:, :2])
    high = torch.min(box[2:], boxes[:, 2:])
    inside = (high - low).clamp(min=0).prod(1)
    sizes = (boxes[:, 2:] - boxes[:, :2]).prod(1)
    return inside / ((box[2:] - box[:2]).prod() + sizes - inside)


class Detector(nn.Module):
    """Boxes and scores from a picture, then greedy suppression of boxes that overlap."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), nn.ReLU(), nn.Conv2d(8, 5, 3, 2, 1))

    def forward(self, image: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        found = self.body(image)[0].flatten(1).t()
        scores = found[:, 4].sigmoid()
        centre, size = found[:, :2] * 4, found[:, 2:4].exp() * 2
        boxes = torch.cat([centre - size, centre + size], 1)
        order = scores.argsort(descending=True)
        boxes, scores = boxes[order], scores[order]
        alive = torch.ones(boxes.size(0), dtype=torch.bool)
        for i in range(boxes.size(0)):
            if bool(alive[i]):
                near = overlap(boxes[i], boxes) > 0.4
                near[: i + 1] = False
                alive = alive & ~near
        return boxes[alive], scores[alive]


class BeamSearch(nn.Module):
    """Decodes tokens with a few hypotheses, until all have ended or the limit is reached."""

    def __init__(self, beams: int = 3):
        super().__init__()
        self.words, self.cell, self.head = nn.Embedding(12, 8), nn.GRUCell(8, 8), nn.Linear(8, 12)
        self.beams = beams

    def forward(self, start: torch.Tensor, limit: int) -> tuple[torch.Tensor, torch.Tensor, int]:
        state = torch.tanh(start).expand(self.beams, -1).contiguous()
        tokens = torch.zeros(self.beams, 1, dtype=torch.long)
        scores = torch.zeros(self.beams)
        scores[1:] = -1e9
        ended = torch.zeros(self.beams, dtype=torch.bool)
        steps = 0
        while steps < limit and not bool(ended.all()):
            state = self.cell(self.words(tokens[:, -1]), state)
            step = F.log_softmax(self.head(state), -1)
            step = torch.where(ended.unsqueeze(1), torch.full_like(step, -1e9), step)
            step[:, 1] = torch.where(ended, torch.zeros_like(scores), step[:, 1])
            total = (scores.unsqueeze(1) + step).view(-1)
            scores, places = total.topk(self.beams)
            parents, chosen = places // 12, places % 12
            tokens = torch.cat([tokens[parents], chosen.unsqueeze(1)], 1)
            state = state[parents]
            ended = ended[parents] | (chosen == 1)
            steps += 1
        return tokens, scores, steps
