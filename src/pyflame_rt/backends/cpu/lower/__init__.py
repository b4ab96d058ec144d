"""Lowering: specialised graphs to steps on buffers, one file for each family of operators."""
