"""Lowering of torch's aten operators to operators of the runtime: small functions in one table, a file a family."""
