"""Sets of names, written as one text."""

__all__ = ["names"]


def names(*text: str) -> frozenset[str]:
    """The words of the given texts.

    Example:
        >>> sorted(names("mean sum", "max"))
        ['max', 'mean', 'sum']
    """
    return frozenset(" ".join(text).split())
