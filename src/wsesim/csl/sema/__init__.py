"""The meaning of a syntax tree: comptime evaluation, types, elaboration, checks."""
