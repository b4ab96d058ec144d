"""REINFORCE: log-probabilities of a Categorical collected in a list, returns normalised."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.distributions import Categorical

from tests.programs.same import classes, fill, numbers


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.affine1, self.affine2 = nn.Linear(4, 8), nn.Linear(8, 2)
        self.saved_log_probs, self.rewards = [], []

    def forward(self, x):
        return F.softmax(self.affine2(F.relu(self.affine1(x))), dim=1)


def main():
    policy = fill(torch, Policy())
    optimizer = torch.optim.Adam(policy.parameters(), lr=1e-2)
    losses = []
    for episode in range(20):
        states, actions = numbers(5, 4, seed=episode), classes(2, 5, seed=episode)
        for state, action in zip(states, actions, strict=True):
            m = Categorical(policy(torch.from_numpy(state).float().unsqueeze(0)))
            policy.saved_log_probs.append(m.log_prob(torch.tensor(action)))
            policy.rewards.append(float(state[action]))
        r, returns = 0, []
        for reward in policy.rewards[::-1]:
            r = reward + 0.99 * r
            returns.insert(0, r)
        returns = torch.tensor(returns)
        returns = (returns - returns.mean()) / (returns.std() + 1e-6)
        policy_loss = [-log_prob * ret for log_prob, ret in zip(policy.saved_log_probs, returns, strict=True)]
        optimizer.zero_grad()
        policy_loss = torch.cat(policy_loss).sum()
        policy_loss.backward()
        optimizer.step()
        del policy.rewards[:], policy.saved_log_probs[:]
        losses.append(policy_loss.item())
    return losses
