"""LoRA: adapters put into a frozen transformer by walking its modules, merged afterwards; state of adapters only."""

import torch
from torch import nn

from tests.programs.same import classes, fill


class LoRALinear(nn.Module):
    def __init__(self, base, rank=2, alpha=4):
        super().__init__()
        self.base = base
        for p in self.base.parameters():
            p.requires_grad_(False)
        self.lora_a = nn.Parameter(base.weight.new_zeros(rank, base.in_features))
        self.lora_b = nn.Parameter(base.weight.new_zeros(base.out_features, rank))
        self.scaling = alpha / rank
        self.merged = False

    def forward(self, x):
        y = self.base(x)
        return y if self.merged else y + (x @ self.lora_a.T @ self.lora_b.T) * self.scaling

    @torch.no_grad()
    def merge(self):
        self.base.weight += self.lora_b @ self.lora_a * self.scaling
        self.merged = True


def inject(model, names=("linear1", "linear2")):
    found = [(n, m) for n, m in model.named_modules() if isinstance(m, nn.Linear) and n.split(".")[-1] in names]
    for name, module in found:
        parent, _, child = name.rpartition(".")
        setattr(model.get_submodule(parent), child, LoRALinear(module))
    return len(found)


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(9, 8, padding_idx=0)
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, activation="gelu", batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(8, 3)

    def forward(self, tokens):
        mask = tokens.eq(0)
        h = self.encoder(self.embed(tokens), src_key_padding_mask=mask)
        h = h.masked_fill(mask.unsqueeze(-1), 0.0).sum(1) / (~mask).sum(1, keepdim=True)
        return self.head(h)


def main(compiled=lambda step: step):
    model = fill(torch, Classifier())
    model.requires_grad_(False)
    assert inject(model) == 4
    for p in model.head.parameters():
        p.requires_grad = True
    fill(torch, nn.ParameterList([p for n, p in model.named_parameters() if "lora_" in n]))
    trained = [p for p in model.parameters() if p.requires_grad]
    sizes = (sum(p.numel() for p in trained), sum(p.numel() for p in model.parameters()))
    before = {k: v.clone() for k, v in model.state_dict().items()}
    optimizer = torch.optim.AdamW(trained, lr=1e-2)
    tokens, y = torch.from_numpy(classes(9, 6, 5)), torch.from_numpy(classes(3, 6))
    tokens[:, 0] = 1
    criterion = nn.CrossEntropyLoss()

    def step(tokens, y):
        optimizer.zero_grad()
        loss = criterion(model(tokens), y)
        loss.backward()
        optimizer.step()
        return loss.item() if compiled is None else loss

    run = compiled(step)
    losses = [run(tokens, y).item() for _ in range(20)]
    changed = [k for k, v in model.state_dict().items() if not torch.equal(v, before[k])]
    assert all("lora_" in k or "head" in k for k in changed), changed
    with torch.no_grad():
        apart = model(tokens)
        for module in model.modules():
            if isinstance(module, LoRALinear):
                module.merge()
        assert torch.allclose(apart, model(tokens), atol=1e-5)
    adapters = {k: v for k, v in model.state_dict().items() if "lora_" in k}
    missing, unexpected = model.load_state_dict(adapters, strict=False)
    assert not unexpected
    assert len(missing) == len(model.state_dict()) - len(adapters)
    return losses + [float(s) for s in sizes] + [float(len(changed)), apart.norm().item()]
