"""A GAN: two networks, two optimizers, detached fakes."""

import torch
from torch import nn

from tests.programs.same import fill, numbers


def main(compiled=lambda step: step):
    netG = fill(torch, nn.Sequential(nn.Linear(3, 8), nn.LeakyReLU(0.2), nn.Linear(8, 5), nn.Tanh()))
    netD = fill(torch, nn.Sequential(nn.Linear(5, 8), nn.LeakyReLU(0.2, inplace=True), nn.Linear(8, 1), nn.Sigmoid()))
    optD = torch.optim.Adam(netD.parameters(), lr=1e-3, betas=(0.5, 0.999))
    optG = torch.optim.Adam(netG.parameters(), lr=1e-3, betas=(0.5, 0.999))
    criterion = nn.BCELoss()
    real = torch.from_numpy(numbers(6, 5))

    def step(real, noise):
        ones, zeros = torch.ones(real.size(0), 1), torch.zeros(real.size(0), 1)
        netD.zero_grad()
        errD_real = criterion(netD(real), ones)
        errD_real.backward()
        fake = netG(noise)
        errD_fake = criterion(netD(fake.detach()), zeros)
        errD_fake.backward()
        optD.step()
        netG.zero_grad()
        errG = criterion(netD(fake), ones)
        errG.backward()
        optG.step()
        return errD_real + errD_fake + errG

    run = compiled(step)
    return [run(real, torch.from_numpy(numbers(6, 3, seed=i))).item() for i in range(20)]
