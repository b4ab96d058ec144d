"""Programs as people have them: heads of detectors, images, graphs, losses, writes into parts of tensors."""

import pytest

torch = pytest.importorskip("torch")
nn, F, Tensor = torch.nn, torch.nn.functional, torch.Tensor
r = torch.randn


class YoloHead(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(8, 3 * 7, 1)
        self.register_buffer("anchors", torch.tensor([[10.0, 13.0], [16.0, 30.0], [33.0, 23.0]]))

    def forward(self, x):
        b, _, h, w = x.shape
        p = self.conv(x).view(b, 3, 7, h, w).permute(0, 1, 3, 4, 2).contiguous()
        ys, xs = torch.meshgrid(torch.arange(h), torch.arange(w), indexing="ij")
        grid = torch.stack((xs, ys), 2).view(1, 1, h, w, 2).float()
        y = p.sigmoid()
        y[..., 0:2] = (y[..., 0:2] * 2.0 - 0.5 + grid) * 8
        y[..., 2:4] = (y[..., 2:4] * 2) ** 2 * self.anchors.view(1, 3, 1, 1, 2)
        return y.view(b, -1, 7)


class FcosDecode(nn.Module):
    def __init__(self):
        super().__init__()
        self.cls, self.reg = nn.Conv2d(4, 3, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)

    def forward(self, x):
        s = self.cls(x).sigmoid().flatten(2).transpose(1, 2)
        d = F.relu(self.reg(x)).flatten(2).transpose(1, 2)
        h, w = x.shape[-2:]
        shift_x = (torch.arange(0, w, dtype=torch.float32) + 0.5) * 4
        shift_y = (torch.arange(0, h, dtype=torch.float32) + 0.5) * 4
        yy, xx = torch.meshgrid(shift_y, shift_x, indexing="ij")
        c = torch.stack([xx.reshape(-1), yy.reshape(-1)], -1)
        boxes = torch.cat([c - d[..., :2], c + d[..., 2:]], -1)
        scores, labels = s.max(-1)
        top, idx = scores.topk(5, dim=1)
        boxes = torch.gather(boxes, 1, idx.unsqueeze(-1).expand(-1, -1, 4))
        return boxes.clamp(0, 24), top, labels.gather(1, idx)


class GreedyNms(nn.Module):
    def forward(self, boxes: Tensor, scores: Tensor) -> Tensor:
        keep: list[int] = []
        order = scores.argsort(descending=True)
        area = (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])
        while order.numel() > 0:
            i = int(order[0])
            keep.append(i)
            if order.numel() == 1:
                break
            rest = order[1:]
            lt = torch.maximum(boxes[i, :2], boxes[rest, :2])
            rb = torch.minimum(boxes[i, 2:], boxes[rest, 2:])
            wh = (rb - lt).clamp(min=0.0)
            inter = wh[:, 0] * wh[:, 1]
            iou = inter / (area[i] + area[rest] - inter)
            order = rest[iou <= 0.3]
        return torch.tensor(keep, dtype=torch.long)


class DeformSample(nn.Module):
    """grid_sample at learnt points."""

    def __init__(self):
        super().__init__()
        self.off = nn.Linear(6, 2)
        self.value = nn.Parameter(r(1, 3, 8, 8))

    def forward(self, q):
        loc = torch.tanh(self.off(q)).unsqueeze(2)
        v = self.value.expand(q.size(0), -1, -1, -1)
        return (
            F.grid_sample(v, loc, mode="bilinear", padding_mode="zeros", align_corners=False)
            .squeeze(-1)
            .transpose(1, 2)
        )


class Stn(nn.Module):
    def __init__(self):
        super().__init__()
        self.loc = nn.Sequential(nn.Conv2d(1, 4, 5), nn.MaxPool2d(2), nn.ReLU(True))
        self.fc = nn.Linear(64, 6)

    def forward(self, x):
        t = self.fc(self.loc(x).flatten(1)).view(-1, 2, 3)
        g = F.affine_grid(t, x.size(), align_corners=False)
        return F.grid_sample(x, g, align_corners=False, padding_mode="border")


class Patches(nn.Module):
    def __init__(self):
        super().__init__()
        self.l = nn.Linear(48, 10)
        self.pos = nn.Parameter(r(1, 7, 10))
        self.cls = nn.Parameter(r(1, 1, 10))

    def forward(self, x):
        b, c, h, w = x.shape
        x = x.reshape(b, c, h // 4, 4, w // 4, 4).permute(0, 2, 4, 3, 5, 1).reshape(b, (h // 4) * (w // 4), 16 * c)
        x = torch.cat([self.cls.expand(b, -1, -1), self.l(x)], 1)
        return x + self.pos[:, : x.shape[1]]


class SwinWindows(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Parameter(r(49, 2))
        c = torch.stack(torch.meshgrid(torch.arange(4), torch.arange(4), indexing="ij")).flatten(1)
        rel = (c[:, :, None] - c[:, None, :]).permute(1, 2, 0).contiguous()
        rel[:, :, 0] += 3
        rel[:, :, 1] += 3
        rel[:, :, 0] *= 7
        self.register_buffer("index", rel.sum(-1))
        self.qkv = nn.Linear(6, 18)

    def forward(self, x):
        b, h, w, c = x.shape
        x = torch.roll(x, (-2, -2), (1, 2))
        x = x.view(b, h // 4, 4, w // 4, 4, c).permute(0, 1, 3, 2, 4, 5).contiguous().view(-1, 16, c)
        q, k, v = self.qkv(x).reshape(-1, 16, 3, 2, c // 2).permute(2, 0, 3, 1, 4)
        bias = self.table[self.index.view(-1)].view(16, 16, -1).permute(2, 0, 1)
        a = q @ k.transpose(-2, -1) + bias.unsqueeze(0)
        mask = torch.zeros(h, w)
        mask[-4:-2] = 1
        mask[-2:] = 2
        m = mask.view(h // 4, 4, w // 4, 4).permute(0, 2, 1, 3).reshape(-1, 16)
        am = m.unsqueeze(1) - m.unsqueeze(2)
        am = am.masked_fill(am != 0, -100.0).masked_fill(am == 0, 0.0)
        a = a.view(b, -1, 2, 16, 16) + am.unsqueeze(1).unsqueeze(0)
        x = (a.view(-1, 2, 16, 16).softmax(-1) @ v).transpose(1, 2).reshape(-1, 16, c)
        x = x.view(b, h // 4, w // 4, 4, 4, c).permute(0, 1, 3, 2, 4, 5).contiguous().view(b, h, w, c)
        return torch.roll(x, shifts=(2, 2), dims=(1, 2))


class SliceWrites(nn.Module):
    def forward(self, x):
        x = x.clone()
        x[:, ::2] *= 2
        x[..., -1] = 0
        x[:, 1:3, 2:4].add_(1)
        a = x[:, 0]
        a.relu_()
        x.transpose(1, 2)[:, 0] = 3
        x[0].copy_(x[1])
        x.narrow(2, 1, 2).sub_(0.5)
        x.select(1, 2).zero_()
        return x


class EvalBuffer(nn.Module):
    """Writes a copy of its buffer only."""

    def __init__(self):
        super().__init__()
        self.register_buffer("cache", torch.zeros(2, 8, 4))

    def forward(self, x):
        c = self.cache.clone()
        c[:, 2:5] = x
        c[:, 5:].fill_(7)
        c[:, 0] += 1.5
        c[0, 1, :2] = x[0, 0, :2]
        return c


class PutIndex(nn.Module):
    def forward(self, x):
        y = x.clone()
        y[torch.tensor([0, 2]), torch.tensor([1, 2])] = 9.0
        y[[3, 4]] += 1
        y.index_fill_(0, torch.tensor([1]), -1.0)
        y.index_copy_(0, torch.tensor([4]), x[:1])
        z = y.index_put((torch.tensor([0, 0]),), torch.ones(2, 3), accumulate=True)
        return y, z, y.take(torch.tensor([0, 5])), torch.take_along_dim(x, x.argsort(1), 1)


class BoolPick(nn.Module):
    def forward(self, x, m):
        y = x.clone()
        y[m] = y[m] * 2 + 1
        z = torch.zeros_like(x)
        z[~m, 1:3] = 4.0
        n = x[m]
        return y, z, n, torch.nonzero(m), torch.where(m)[0]


class Fpn(nn.Module):
    def __init__(self):
        super().__init__()
        self.c = nn.Conv2d(3, 4, 3, 2, 1)
        self.u = nn.Conv2d(4, 3, 1)

    def forward(self, x):
        y = self.u(self.c(x))
        a = F.interpolate(y, size=x.shape[-2:], mode="nearest")
        b = F.interpolate(y, size=(x.shape[2] * 2, x.shape[3] * 2), mode="bilinear", align_corners=False)
        c = F.interpolate(x, scale_factor=0.5, mode="area")
        d = F.interpolate(x, scale_factor=(1.5, 2.0), mode="bilinear", align_corners=False)
        e = F.interpolate(x, size=(9, 9), mode="bicubic", align_corners=True)
        f = F.interpolate(x, scale_factor=0.6, mode="bilinear", antialias=True)
        return x + a, b, c, d, e, f


class NearestExact(nn.Module):
    def forward(self, x):
        return (
            F.interpolate(x, size=(4, 9), mode="nearest-exact"),
            F.pad(x, (1, 2, -1, 0), value=2.0),
            F.pad(x, (1, 1, 2, 2), "circular"),
            F.adaptive_avg_pool2d(x, (None, 3)),
        )


class GramStyle(nn.Module):
    def forward(self, x):
        b, c, h, w = x.size()
        f = x.view(b * c, h * w)
        g = torch.mm(f, f.t()).div(b * c * h * w)
        mean = x.mean((2, 3), keepdim=True)
        std = x.var((2, 3), keepdim=True, unbiased=False).add(1e-5).sqrt()
        k = torch.tensor([[1.0, 0.0, -1.0], [2.0, 0.0, -2.0], [1.0, 0.0, -1.0]]).view(1, 1, 3, 3).repeat(c, 1, 1, 1)
        e = F.conv2d(x, k, padding=1, groups=c)
        return (
            g,
            (x - mean) / std,
            e,
            F.unfold(x, 3, padding=1).view(b, c, 9, h, w).softmax(2),
            F.pixel_shuffle(x.repeat(1, 4, 1, 1), 2),
        )


class Preprocess(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.tensor([0.485, 0.456, 0.406]).view(1, 3, 1, 1))

    def forward(self, img):
        x = img.to(torch.float32).div_(255.0).sub_(self.mean)
        return (
            x,
            (x * 255).clamp_(0, 255).to(torch.uint8),
            img[:, [2, 1, 0]],
            img.float().mean(),
            (img >> 1) & 15,
            img.bitwise_xor(img.flip(1)),
        )


class Gat(nn.Module):
    def __init__(self):
        super().__init__()
        self.l, self.a = nn.Linear(4, 6), nn.Linear(12, 1)

    def forward(self, x, edges):
        h = self.l(x)
        src, dst = edges[0], edges[1]
        e = F.leaky_relu(self.a(torch.cat([h[src], h[dst]], 1)).squeeze(1), 0.2)
        e = (e - e.max()).exp()
        den = torch.zeros(x.size(0)).index_add_(0, dst, e)
        w = e / (den[dst] + 1e-9)
        out = torch.zeros_like(h)
        out.index_add_(0, dst, h[src] * w.unsqueeze(1))
        return F.elu(out)


class Scatters(nn.Module):
    def forward(self, x, idx):
        out = torch.zeros(3, 4).index_add(0, idx, x)
        out2 = torch.zeros(3, 4).scatter_add_(0, idx.unsqueeze(1).expand(-1, 4), x)
        mx = torch.full((3, 4), -1e9).scatter_reduce(0, idx.unsqueeze(1).expand(-1, 4), x, "amax", include_self=False)
        mean = torch.zeros(3, 4).scatter_reduce(0, idx.unsqueeze(1).expand(-1, 4), x, "mean", include_self=False)
        cnt = torch.bincount(idx, minlength=3)
        oh = F.one_hot(idx, 3)
        z = torch.zeros(5, 3).scatter_(1, idx.unsqueeze(1), 1.0)
        return out, out2, mx, mean, cnt, oh, z


class VqCode(nn.Module):
    def __init__(self):
        super().__init__()
        self.book = nn.Parameter(r(10, 8))

    def forward(self, z):
        d = torch.cdist(z, self.book)
        i = d.argmin(-1)
        q = F.embedding(i, self.book)
        return (
            z + (q - z).detach(),
            i,
            (z.pow(2).sum(1, keepdim=True) - 2 * z @ self.book.t() + self.book.pow(2).sum(1)).min(1).values,
        )


class Contrast(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(2.0))

    def forward(self, a, b):
        a, b = F.normalize(a, dim=-1), F.normalize(b, dim=-1)
        like = self.scale.exp().clamp(max=100) * a @ b.t()
        t = torch.arange(like.size(0))
        return (
            (F.cross_entropy(like, t) + F.cross_entropy(like.t(), t, label_smoothing=0.1)) / 2,
            F.cosine_similarity(a, b),
            F.triplet_margin_loss(a, b, b.roll(1, 0)),
            F.binary_cross_entropy_with_logits(like, torch.eye(3), pos_weight=torch.tensor([2.0, 1.0, 1.0])),
            F.smooth_l1_loss(a, b, beta=0.5),
            F.kl_div(a.log_softmax(1), b.log_softmax(1), log_target=True, reduction="batchmean"),
            F.gaussian_nll_loss(a, b, torch.ones_like(a)),
            F.poisson_nll_loss(a, b.abs()),
        )


class Linalg(nn.Module):
    def forward(self, x):
        a = x @ x.t() + 4 * torch.eye(4)
        return (
            torch.linalg.inv(a),
            torch.linalg.det(a),
            torch.linalg.cholesky(a),
            torch.linalg.solve(a, x),
            torch.linalg.norm(x),
            torch.linalg.vector_norm(x, dim=1),
            torch.trace(a),
            torch.diag(a),
            torch.linalg.cross(x[:, :3], x[:, 1:]),
            torch.outer(x[0], x[1]),
        )


PROGRAMS = {
    "YoloHead": (YoloHead, lambda: (r(2, 8, 6, 5),), "trace script export live"),
    "FcosDecode": (FcosDecode, lambda: (r(1, 4, 6, 6),), "trace script export live"),
    "GreedyNms": (GreedyNms, lambda: (r(6, 4).abs().cumsum(1), torch.rand(6)), "script"),
    "DeformSample": (DeformSample, lambda: (r(2, 20, 6),), "trace script live export"),
    "Stn": (Stn, lambda: (r(2, 1, 12, 12),), "trace script export live"),
    "Patches": (Patches, lambda: (r(2, 3, 8, 12),), "trace script export live"),
    "SwinWindows": (SwinWindows, lambda: (r(2, 8, 8, 6),), "trace export live"),
    "SliceWrites": (SliceWrites, lambda: (r(2, 5, 6),), "trace script export live"),
    "EvalBuffer": (EvalBuffer, lambda: (r(2, 3, 4),), "trace script export live"),
    "PutIndex": (PutIndex, lambda: (r(5, 3),), "trace script export live"),
    "BoolPick": (BoolPick, lambda: (r(3, 4), torch.tensor([True, False, True])), "script trace"),
    "Fpn": (Fpn, lambda: (r(2, 3, 5, 7),), "trace script export live"),
    "NearestExact": (NearestExact, lambda: (r(2, 3, 6, 6),), "trace export live"),
    "GramStyle": (GramStyle, lambda: (r(1, 3, 8, 8),), "trace script export live"),
    "Preprocess": (
        Preprocess,
        lambda: (torch.randint(0, 255, (2, 3, 4, 4), dtype=torch.uint8),),
        "trace script export live",
    ),
    "Gat": (Gat, lambda: (r(5, 4), torch.tensor([[0, 1, 2, 3, 4, 1], [1, 2, 0, 0, 2, 4]])), "trace script export live"),
    "Scatters": (Scatters, lambda: (r(5, 4), torch.tensor([0, 2, 2, 1, 0])), "trace script export live"),
    "VqCode": (VqCode, lambda: (r(3, 8),), "trace script export live"),
    "Contrast": (Contrast, lambda: (r(3, 4), r(3, 4)), "trace"),
    "Linalg": (Linalg, lambda: (r(4, 4),), "trace script export live"),
}
