"""Register-tiled kernels: products, convolutions as products, Winograd convolutions, depthwise convolutions."""
