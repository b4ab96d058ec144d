"""The seed all libraries share, and the key of each draw."""

import secrets
from dataclasses import dataclass, field
from threading import Lock

from emberharmony.threefry import Key, derived, key_of

__all__ = ["SEED", "Seed"]


@dataclass(slots=True)
class Seed:
    """The current seed and how many draws there were since it was set."""

    value: Key | None = None
    draws: int = 0
    lock: Lock = field(default_factory=Lock, repr=False)

    def set(self, value: int) -> None:
        """Start all random numbers anew."""
        key = key_of(int(value))
        with self.lock:
            self.value = key
            self.draws = 0

    def key(self, seed: int | None) -> Key:
        """The key of one draw: of its own seed, the next of the shared ones, or one nobody can foresee.

        >>> Seed().key(5)
        (5, 0)
        """
        if seed is not None:
            return key_of(int(seed))
        with self.lock:
            if self.value is None:
                return secrets.randbits(32), secrets.randbits(32)
            self.draws += 1
            return derived(self.value, self.draws - 1)


SEED = Seed()
