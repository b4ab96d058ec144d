"""The builtins of CSL, by family."""
