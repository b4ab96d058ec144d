"""Kernels written as data, emitted as vector LLVM IR and compiled for the host."""
