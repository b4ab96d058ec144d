"""Programs of torch.export to graphs: .pt2 files without torch, live modules with it."""
