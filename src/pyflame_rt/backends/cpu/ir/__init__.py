"""LLVM IR: kernels as data, the text builder, vector functions, bounds checks."""
