"""Settings of libraries for GPUs under torch's names: kept as set, without effect where there is no GPU."""

from pyflame.backends import cuda, cudnn, mps

__all__ = ["cuda", "cudnn", "mps"]
