"""The lazy, PyTorch-like framework: tensors with mesh layouts, gradients, layers, optimizers, training."""

__all__: list[str] = []
