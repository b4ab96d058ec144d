"""Autocast in bfloat16 with a scaler that is off, accumulation, EMA by AveragedModel, no_sync-like structure."""

import contextlib

import torch
import torch.nn.functional as F
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from tests.programs.same import classes, fill, numbers


def main():
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    device_type = "cuda" if "cuda" in str(device) else "cpu"
    ptdtype = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}["float32"]
    ctx = (
        contextlib.nullcontext()
        if ptdtype == torch.float32
        else torch.amp.autocast(device_type=device_type, dtype=ptdtype)
    )
    model = fill(torch, nn.Sequential(nn.Linear(6, 12), nn.GELU(), nn.Dropout(0.0), nn.Linear(12, 4))).to(device)
    averaged = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    scaler = torch.amp.GradScaler("cuda", enabled=(device_type == "cuda"))
    fused = {"fused": False} if device_type == "cpu" else {}
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, betas=(0.9, 0.95), **fused)
    x, y = torch.from_numpy(numbers(16, 6)).to(device), torch.from_numpy(classes(4, 16)).to(device, non_blocking=True)
    losses = []
    for _ in range(20):
        total = 0.0
        for xs, ys in zip(x.split(4), y.split(4), strict=True):
            with ctx:
                loss = F.cross_entropy(model(xs), ys) / 4
            scaler.scale(loss).backward()
            total += loss.detach()
        scaler.unscale_(optimizer)
        norm = torch.nn.utils.get_total_norm([p.grad for p in model.parameters()])
        torch.nn.utils.clip_grads_with_norm_(model.parameters(), 1.0, norm)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)
        averaged.update_parameters(model)
        losses += [total.item(), norm.item()]
    with torch.no_grad():
        losses.append(F.cross_entropy(averaged(x), y).item())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = model(x)
        assert out.dtype == torch.bfloat16
        assert F.cross_entropy(out, y).dtype == torch.float32
        assert (x[:, :4] + out).dtype == torch.float32
        with torch.autocast("cpu", enabled=False):
            assert model(x).dtype == torch.float32
    return losses
