"""Lowering of torch's aten operators to operators of the runtime: a table of small functions, a file for each family."""
