"""Graphs to files of other formats."""

from pyflame_rt.exporters.onnx import export_onnx, onnx_model

__all__ = ["export_onnx", "onnx_model"]
