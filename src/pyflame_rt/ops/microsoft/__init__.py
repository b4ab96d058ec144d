"""The operators of com.microsoft, as ONNX Runtime's exporters and optimiser write them."""
