"""The reference backend: an interpreter over the operator definitions, on NumPy, torch or MLX."""

from pyflame_rt.backends.reference.executable import ReferenceBackend, ReferenceExecutable

__all__ = ["ReferenceBackend", "ReferenceExecutable"]
