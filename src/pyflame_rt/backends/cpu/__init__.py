"""The CPU engine: oneDNN primitives and kernels generated through LLVM, run by one native driver."""
