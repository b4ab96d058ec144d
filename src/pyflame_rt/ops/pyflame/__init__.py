"""Operators of our own domain, for which ONNX has no name."""
