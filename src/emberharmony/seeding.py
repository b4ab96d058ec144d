"""The seed all libraries start from; each notices by its number that it has changed."""

from dataclasses import dataclass, field
from threading import Lock


@dataclass(slots=True)
class Seed:
    """The current seed and how often it was set."""

    value: int | None = None
    number: int = 0
    lock: Lock = field(default_factory=Lock, repr=False)

    def set(self, value: int) -> None:
        """Start all random numbers anew."""
        with self.lock:
            self.value = int(value)
            self.number += 1


SEED = Seed()
