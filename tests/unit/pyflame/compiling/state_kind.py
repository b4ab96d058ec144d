"""A kind of state, as a test of the guards needs it."""

from dataclasses import dataclass


@dataclass
class Kind:
    """One kind of state: how it is made, read, changed from outside, written by the function, and looked at."""

    name: str
    setup: str
    read: str
    changes: tuple[str, ...]
    writes: tuple[str, ...] = ()
    look: str = "None"
