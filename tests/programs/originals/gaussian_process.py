"""A Gaussian process: a kernel with a length for each input, Cholesky factors, predictions with their variance."""

import math

import torch
from torch import nn
from torch.distributions import Independent, MultivariateNormal, Normal, kl_divergence

from tests.programs.same import numbers


class GP(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.log_l = nn.Parameter(torch.zeros(2))
        self.log_s = nn.Parameter(torch.tensor(0.0))
        self.log_n = nn.Parameter(torch.tensor(-1.0))
        self.register_buffer("jitter", torch.eye(n) * 1e-4)

    def kernel(self, a, b):
        a = a / self.log_l.exp()
        b = b / self.log_l.exp()
        d = torch.cdist(a.unsqueeze(0), b.unsqueeze(0)).squeeze(0) ** 2
        d2 = (a[:, None] - b[None]).pow(2).sum(-1)
        return self.log_s.exp() * torch.exp(-0.5 * d2) + 0 * d.detach()

    def nll(self, x, y):
        K = self.kernel(x, x) + self.jitter + torch.eye(len(x)) * self.log_n.exp()
        L = torch.linalg.cholesky(K)
        alpha = torch.cholesky_solve(y.unsqueeze(-1), L)
        a = 0.5 * (y.unsqueeze(-1) * alpha).sum() + L.diagonal().log().sum() + 0.5 * len(x) * math.log(2 * math.pi)
        b = -MultivariateNormal(torch.zeros(len(x)), covariance_matrix=K).log_prob(y)
        return (a + b) / 2, L, alpha

    def predict(self, x, y, xs):
        _, L, alpha = self.nll(x, y)
        Ks = self.kernel(x, xs)
        mu = Ks.T @ alpha
        v = torch.linalg.solve_triangular(L, Ks, upper=False)
        var = self.kernel(xs, xs).diagonal() - (v**2).sum(dim=0)
        return mu.squeeze(-1), var


def main(compiled=lambda f: f):
    x, y = torch.from_numpy(numbers(12, 2)), torch.from_numpy(numbers(12))
    xs = torch.from_numpy(numbers(5, 2, seed=3))
    gp = GP(12)
    opt = torch.optim.Rprop(gp.parameters(), lr=0.02)
    out = []
    for _ in range(20):
        opt.zero_grad()
        loss, _, _ = gp.nll(x, y)
        loss.backward()
        opt.step()
        with torch.no_grad():
            mu, var = gp.predict(x, y, xs)
            q = Independent(Normal(mu, var.clamp_min(1e-6).sqrt()), 1)
            p = Independent(Normal(torch.zeros(5), torch.ones(5)), 1)
            out.append(loss.item() + kl_divergence(q, p).item() + q.entropy().item())
    return out
