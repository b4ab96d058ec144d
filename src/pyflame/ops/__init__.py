"""Functions on tensors, by family; ``pyflame`` offers them all, and tensors have them as methods."""

__all__: list[str] = []
