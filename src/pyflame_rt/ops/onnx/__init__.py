"""The operators of ONNX, one file for each family."""
