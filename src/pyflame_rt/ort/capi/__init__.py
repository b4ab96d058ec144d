"""Where ONNX Runtime keeps its exceptions; programs import them from here."""

from pyflame_rt.ort.capi import onnxruntime_pybind11_state

__all__ = ["onnxruntime_pybind11_state"]
