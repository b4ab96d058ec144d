"""Register-tiled kernels: products, convolutions as products, Winograd and depthwise convolutions."""
