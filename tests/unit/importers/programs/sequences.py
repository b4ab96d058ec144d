"""Programs as people have them: sound, text, decoders, complex numbers, experts, statistics."""

import math
from typing import NamedTuple

import pytest

torch = pytest.importorskip("torch")
nn, F, Tensor = torch.nn, torch.nn.functional, torch.Tensor
r = torch.randn


class Out(NamedTuple):
    logits: Tensor
    hidden: Tensor


class MelSpec(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("window", torch.hann_window(128))
        self.register_buffer("mel", torch.rand(65, 20))

    def forward(self, wave):
        s = torch.stft(wave, 128, hop_length=64, win_length=128, window=self.window, center=True, return_complex=True)
        p = s.abs() ** 2
        m = p.transpose(1, 2) @ self.mel
        loud = torch.clamp(m, min=1e-10).log10()
        loud = torch.maximum(loud, loud.max() - 8.0)
        return (loud + 4.0) / 4.0


class FftFilter(nn.Module):
    def __init__(self):
        super().__init__()
        self.gain = nn.Parameter(torch.rand(129))

    def forward(self, x):
        f = torch.fft.rfft(x, dim=-1)
        f = f * self.gain
        mag, ph = torch.abs(f), torch.angle(f)
        back = torch.polar(mag * 0.5, ph)
        return torch.fft.irfft(back, n=x.shape[-1], dim=-1), torch.view_as_real(f)


class Frames(nn.Module):
    def forward(self, x):
        f = x.unfold(-1, 20, 10)
        pre = torch.cat([f[..., :1], f[..., 1:] - 0.97 * f[..., :-1]], -1)
        e = pre.pow(2).sum(-1, keepdim=True).add(1e-6).log()
        return torch.cat([e, pre - pre.mean(-1, keepdim=True)], -1), torch.diff(x, dim=-1)


class Istft(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("w", torch.hann_window(32))
        self.lin = nn.Linear(4, 34)

    def forward(self, x):
        h = self.lin(x.transpose(1, 2)).transpose(1, 2)
        mag, ph = h.chunk(2, 1)
        s = torch.complex(mag.exp() * ph.cos(), mag.exp() * ph.sin())
        return torch.istft(s, 32, 8, 32, self.w)


class RotaryComplex(nn.Module):
    def __init__(self):
        super().__init__()
        t = torch.outer(torch.arange(16).float(), 1.0 / 100 ** (torch.arange(0, 8, 2).float() / 8))
        self.register_buffer("freqs", torch.polar(torch.ones_like(t), t))

    def forward(self, x):
        xc = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
        f = self.freqs[: x.shape[2]].view(1, 1, x.shape[2], -1)
        return torch.view_as_real(xc * f).flatten(3).type_as(x)


class FourierUnit(nn.Module):
    def __init__(self):
        super().__init__()
        self.c = nn.Conv2d(2, 2, 1)

    def forward(self, x):
        b, _, h, w = x.shape
        f = torch.fft.rfftn(x, dim=(-2, -1), norm="ortho")
        s = torch.stack((f.real, f.imag), dim=-1).permute(0, 1, 4, 2, 3).contiguous().view(b, -1, h, w // 2 + 1)
        s = F.relu(self.c(s)).view(b, -1, 2, h, w // 2 + 1).permute(0, 1, 3, 4, 2).contiguous()
        return torch.fft.irfftn(torch.complex(s[..., 0], s[..., 1]), s=(h, w), dim=(-2, -1), norm="ortho")


class AttnDecoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb, self.cell, self.out = nn.Embedding(10, 8), nn.LSTMCell(16, 8), nn.Linear(8, 10)

    def forward(self, enc):
        b = enc.size(0)
        h, c = enc.mean(1), enc.new_zeros(b, 8)
        tok = torch.zeros(b, dtype=torch.long)
        outs: list[Tensor] = []
        for _ in range(4):
            a = torch.softmax(torch.bmm(enc, h.unsqueeze(2)).squeeze(2), 1)
            ctx = torch.bmm(a.unsqueeze(1), enc).squeeze(1)
            h, c = self.cell(torch.cat([self.emb(tok), ctx], 1), (h, c))
            logit = self.out(h)
            tok = logit.argmax(1)
            outs.append(logit)
        return torch.stack(outs, 1)


class CtcGreedy(nn.Module):
    def forward(self, x):
        p = x.log_softmax(-1)
        s, i = p.max(-1)
        keep = torch.ones_like(i, dtype=torch.bool)
        keep[:, 1:] = i[:, 1:] != i[:, :-1]
        keep = keep & i.ne(0)
        return i.masked_fill(~keep, -1), (s * keep).sum(-1).exp()


class Einsums(nn.Module):
    def forward(self, q, k):
        s = torch.einsum("bid,bjd->bij", q, k)
        o = torch.einsum("bij,bjd->bid", s.softmax(-1), k)
        t = torch.einsum("bii->bi", s[:, :, :3])
        return o, t, torch.einsum("...d,...d->...", q, q), torch.tensordot(q, k, dims=([2], [2]))


class T5Bias(nn.Module):
    def __init__(self):
        super().__init__()
        self.e = nn.Embedding(8, 2)

    def forward(self, ids):
        n = ids.shape[1]
        rel = torch.arange(n)[None, :] - torch.arange(n)[:, None]
        ret = (rel > 0).to(torch.long) * 4
        k = rel.abs()
        small = k < 2
        big = 2 + (torch.log(k.float() / 2) / math.log(16 / 2) * 2).to(torch.long)
        big = torch.min(big, torch.full_like(big, 3))
        ret = ret + torch.where(small, k, big)
        return (
            self.e(ret).permute(2, 0, 1).unsqueeze(0),
            torch.tril(torch.ones(n, n, dtype=torch.bool)),
            torch.triu(torch.full((n, n), float("-inf")), 1),
        )


class Alibi(nn.Module):
    def forward(self, x):
        b, t, _ = x.size()
        slopes = torch.pow(2.0, -torch.arange(1, 3).float())
        pos = torch.arange(t).view(1, 1, -1)
        bias = slopes.view(2, 1, 1) * pos
        q = x.view(b, t, 2, 4).transpose(1, 2)
        o = F.scaled_dot_product_attention(q, q, q, attn_mask=bias.unsqueeze(0).expand(b, -1, t, -1))
        o2 = F.scaled_dot_product_attention(q, q, q, is_causal=True, scale=0.3)
        return o.transpose(1, 2).flatten(2), o2


class MoE(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(6, 3)
        self.experts = nn.ModuleList([nn.Linear(6, 6) for _ in range(3)])

    def forward(self, x):
        w, sel = self.gate(x).softmax(-1).topk(2, dim=-1)
        w = w / w.sum(-1, keepdim=True)
        out = torch.zeros_like(x)
        for i, e in enumerate(self.experts):
            out += e(x) * (w * (sel == i)).sum(-1, keepdim=True)
        return out


class MoESparse(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(6, 3)
        self.experts = nn.ModuleList([nn.Linear(6, 6) for _ in range(3)])

    def forward(self, x):
        w, sel = self.gate(x).softmax(-1).topk(2, dim=-1)
        out = torch.zeros_like(x)
        for i, e in enumerate(self.experts):
            rows, which = torch.where(sel == i)
            out.index_add_(0, rows, e(x[rows]) * w[rows, which].unsqueeze(-1))
        return out


class Lengths(nn.Module):
    def forward(self, x, n):
        m = torch.arange(x.size(1))[None] < n[:, None]
        x = x * m.unsqueeze(-1)
        last = x[torch.arange(x.size(0)), n - 1]
        flip = torch.flip(x, [1])
        return (
            x.sum(1) / n.unsqueeze(1).to(x.dtype),
            last,
            flip,
            torch.repeat_interleave(x, 2, dim=1),
            x.repeat(1, 2, 1),
            x.tile((2,)),
            torch.rot90(x, 1, (1, 2)),
        )


class CrfViterbi(nn.Module):
    def __init__(self):
        super().__init__()
        self.trans = nn.Parameter(r(3, 3))
        self.start = nn.Parameter(r(3))

    def forward(self, em: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        b, t, n = em.shape
        score = self.start + em[:, 0]
        hist: list[Tensor] = []
        for i in range(1, t):
            nxt = score.unsqueeze(2) + self.trans.unsqueeze(0) + em[:, i].unsqueeze(1)
            best, idx = nxt.max(1)
            active = (i < lengths).unsqueeze(1)
            score = torch.where(active, best, score)
            hist.append(torch.where(active, idx, torch.arange(n).unsqueeze(0).expand(b, n)))
        last = score.argmax(1)
        path = [last]
        for h in hist[::-1]:
            last = h.gather(1, last.unsqueeze(1)).squeeze(1)
            path.append(last)
        path.reverse()
        return torch.stack(path, 1), score.max(1)[0]


class Sampler(nn.Module):
    """Top-k, top-p filtering."""

    def forward(self, logits: Tensor) -> Tensor:
        last = logits[:, -1] / 0.7
        v, _ = torch.topk(last, min(3, last.size(-1)))
        last = last.masked_fill(last < v[:, [-1]], -float("inf"))
        s, i = torch.sort(last, descending=True)
        c = torch.cumsum(F.softmax(s, -1), -1)
        rem = c > 0.9
        rem[..., 1:] = rem[..., :-1].clone()
        rem[..., 0] = False
        rem = rem.scatter(1, i, rem)
        return F.softmax(last.masked_fill(rem, -float("inf")), -1)


class Hydra(nn.Module):
    """Selective scan, sequentially."""

    def __init__(self):
        super().__init__()
        self.A = nn.Parameter(-torch.rand(4, 3))
        self.p = nn.Linear(4, 7)

    def forward(self, u):
        B, C, dt = self.p(u).split([3, 3, 1], -1)
        dt = F.softplus(dt)
        h = torch.zeros(u.size(0), 4, 3)
        ys: list[Tensor] = []
        for t in range(6):
            h = h * torch.exp(dt[:, t].unsqueeze(-1) * self.A) + (dt[:, t] * u[:, t]).unsqueeze(-1) * B[:, t].unsqueeze(
                1
            )
            ys.append((h * C[:, t].unsqueeze(1)).sum(-1))
        return torch.stack(ys, 1)


class Tcn(nn.Module):
    def __init__(self):
        super().__init__()
        self.c = nn.utils.parametrizations.weight_norm(nn.Conv1d(8, 8, 3, dilation=2))
        self.n = nn.utils.parametrizations.spectral_norm(nn.Linear(4, 4))

    def forward(self, x):
        return self.c(F.pad(x, (4, 0))) + self.n(x)


class OptMask(nn.Module):
    def __init__(self):
        super().__init__()
        self.q = nn.Linear(4, 4)

    def forward(self, x, mask: Tensor | None = None, scale: float = 0.5):
        s = self.q(x) @ x.transpose(1, 2) * scale
        if mask is not None:
            s = s.masked_fill(~mask[:, None, :], float("-inf"))
        p = F.softmax(s, dim=-1)
        y = p @ x
        if mask is not None:
            y = y.masked_fill(mask.logical_not().unsqueeze(-1), 0.0)
            n = mask.sum(1, keepdim=True).clamp(min=1)
            return (y.sum(1) / n), p
        return y.mean(1), p


class NamedOut(nn.Module):
    def forward(self, x) -> Out:
        return Out(x * 2, x.sum(1))


class Stats(nn.Module):
    def forward(self, x):
        v, m = torch.var_mean(x, dim=1, unbiased=True)
        s = x.std(dim=-1)
        return (
            v,
            m,
            s,
            x.median(dim=1)[0],
            torch.logsumexp(x, 1),
            x.norm(dim=1),
            x.sort(1, descending=True)[1],
            torch.quantile(x, 0.3, dim=1),
            x.cumsum(1),
            x.cumprod(1),
            x.kthvalue(3, dim=1)[0],
            x.argmax(),
            x.aminmax()[0],
            torch.cummax(x, 1)[0],
            x.prod(1),
            x.any(1),
            x.all(),
        )


PROGRAMS = {
    "MelSpec": (MelSpec, lambda: (r(2, 800),), "trace script export live"),
    "FftFilter": (FftFilter, lambda: (r(2, 256),), "trace script export live"),
    "Frames": (Frames, lambda: (r(2, 100),), "trace script export live"),
    "Istft": (Istft, lambda: (r(2, 4, 9),), "trace script export live"),
    "RotaryComplex": (RotaryComplex, lambda: (r(2, 4, 6, 8),), "trace export live"),
    "FourierUnit": (FourierUnit, lambda: (r(2, 1, 8, 8),), "trace script export live"),
    "AttnDecoder": (AttnDecoder, lambda: (r(3, 5, 8),), "trace script export live"),
    "CtcGreedy": (CtcGreedy, lambda: (r(2, 9, 12),), "trace script export live"),
    "Einsums": (Einsums, lambda: (r(2, 3, 4), r(2, 5, 4)), "trace script export live"),
    "T5Bias": (T5Bias, lambda: (torch.randint(0, 12, (2, 6)),), "trace script export live"),
    "Alibi": (Alibi, lambda: (r(2, 5, 8),), "trace script export live"),
    "MoE": (MoE, lambda: (r(4, 6),), "trace script export live"),
    "MoESparse": (MoESparse, lambda: (r(4, 6),), "script trace"),
    "Lengths": (Lengths, lambda: (r(2, 3, 4), torch.tensor([3, 1])), "trace script export live"),
    "CrfViterbi": (CrfViterbi, lambda: (r(4, 6, 3), torch.tensor([6, 4, 2, 1])), "script"),
    "Sampler": (Sampler, lambda: (r(1, 5, 4),), "script"),
    "Hydra": (Hydra, lambda: (r(2, 6, 4),), "trace script export live"),
    "Tcn": (Tcn, lambda: (r(2, 8, 4),), "trace export live"),
    "OptMask": (OptMask, lambda: (r(2, 3, 4), torch.tensor([[1, 1, 0], [1, 0, 0]]).bool()), "script export live trace"),
    "NamedOut": (NamedOut, lambda: (r(2, 3),), "trace script live"),
    "Stats": (Stats, lambda: (r(3, 8),), "trace export live"),
}
