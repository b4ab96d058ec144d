"""The CSL front end: text to tree, tree to elaborated program.

The stages: :mod:`lexer` -> :mod:`parser` -> :mod:`syntax` (the frozen tree, which :mod:`printer`
turns back into text) -> elaboration (comptime evaluation, type checks) -> :mod:`program` (what the machine runs).
"""

__all__: list[str] = []
