"""Quantization-aware training: models learn with the rounding that int8 will bring.

>>> import pyflame as pf
>>> model = pf.quantization.prepare_qat(pf.nn.Sequential(pf.nn.Linear(4, 2)))
"""

from pyflame.quantization.fake import FakeQuantize, fake_quantize
from pyflame.quantization.training import QATConv, QATLinear, convert, prepare_qat

__all__ = ["FakeQuantize", "QATConv", "QATLinear", "convert", "fake_quantize", "prepare_qat"]
