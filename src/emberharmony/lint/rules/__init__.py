"""One module per rule family; `emberharmony.lint.registry` finds them by listing this folder."""

__all__: list[str] = []
