"""Twin critics, a squashed Gaussian actor, a learned temperature, Polyak averages."""

import torch
from torch import nn

from tests.programs.same import fill, numbers


def mlp(cin, cout):
    return nn.Sequential(nn.Linear(cin, 8), nn.ReLU(), nn.Linear(8, cout))


def main():
    nets = nn.ModuleDict({"q1": mlp(5, 1), "q2": mlp(5, 1), "t1": mlp(5, 1), "t2": mlp(5, 1), "pi": mlp(3, 4)})
    fill(torch, nets.double())
    for a, b in (("t1", "q1"), ("t2", "q2")):
        nets[a].load_state_dict(nets[b].state_dict())
    log_alpha = torch.zeros(1, dtype=torch.float64, requires_grad=True)
    q_opt = torch.optim.Adam(list(nets["q1"].parameters()) + list(nets["q2"].parameters()), lr=1e-3)
    pi_opt, a_opt = torch.optim.Adam(nets["pi"].parameters(), lr=1e-3), torch.optim.Adam([log_alpha], lr=1e-3)

    def act(s, eps):
        mean, log_std = nets["pi"](s).chunk(2, dim=-1)
        log_std = -5 + 0.5 * 7 * (torch.tanh(log_std) + 1)
        u = mean + log_std.exp() * eps
        a = torch.tanh(u)
        log_prob = torch.distributions.Normal(mean, log_std.exp()).log_prob(u) - torch.log(1 - a.pow(2) + 1e-6)
        return a, log_prob.sum(1, keepdim=True)

    losses = []
    for i in range(20):
        s, s2 = torch.from_numpy(numbers(6, 3, seed=i)).double(), torch.from_numpy(numbers(6, 3, seed=i + 1)).double()
        a, r = (
            torch.tanh(torch.from_numpy(numbers(6, 2, seed=i)).double()),
            torch.from_numpy(numbers(6, 1, seed=i)).double(),
        )
        eps, alpha = torch.from_numpy(numbers(6, 2, seed=i + 9)).double(), log_alpha.exp().item()
        with torch.no_grad():
            a2, lp2 = act(s2, eps)
            both = torch.cat([s2, a2], 1)
            goal = r + 0.9 * (torch.min(nets["t1"](both), nets["t2"](both)) - alpha * lp2)
        x = torch.cat([s, a], 1)
        q_loss = nn.functional.mse_loss(nets["q1"](x), goal) + nn.functional.mse_loss(nets["q2"](x), goal)
        q_opt.zero_grad()
        q_loss.backward()
        q_opt.step()
        new, lp = act(s, eps)
        x = torch.cat([s, new], 1)
        pi_loss = (alpha * lp - torch.min(nets["q1"](x), nets["q2"](x))).mean()
        pi_opt.zero_grad()
        pi_loss.backward()
        pi_opt.step()
        alpha_loss = (-log_alpha.exp() * (lp.detach() - 2)).mean()
        a_opt.zero_grad()
        alpha_loss.backward()
        a_opt.step()
        for slow, fast in (("t1", "q1"), ("t2", "q2")):
            for target, param in zip(nets[slow].parameters(), nets[fast].parameters(), strict=True):
                target.data.copy_(0.05 * param.data + 0.95 * target.data)
        losses.append(q_loss.item() + pi_loss.item() + alpha_loss.item())
    return losses
