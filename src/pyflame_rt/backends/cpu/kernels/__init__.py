"""Kernels: what generated machine code computes, one file for each technique."""
