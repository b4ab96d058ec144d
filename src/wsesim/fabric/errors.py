"""What can go wrong with a program on the machine, each under a stable name.

FabricError
├── LoadError                 found before the first cycle
│   ├── MemoryOverflow        a PE program does not fit 48 KB
│   ├── ColorClash            a colour is used in two ways that exclude each other
│   ├── QueueNotInitialized   WSE-3: a queue is used without ``@initialize_queue``
│   └── TaskClash             two tasks bound to one id
└── RunError                  found while running
    ├── RoutingLoop           wavelets would circle for ever
    ├── NoRoute               wavelets leave on a colour that the router does not know
    ├── Deadlock              nothing can happen any more, and somebody waits (``.picture`` says who for whom)
    ├── Endless               the program goes on and on while the host waits for it
    ├── UnreadWavelets        the program has ended, and nobody read what was sent (strict mode)
    ├── ResourceBusy          two operations at once on one queue or microthread
    ├── ProgramFault          an assertion, an access outside memory, ...
    └── HostError             the host asked for something that the program does not have
"""

from __future__ import annotations

__all__ = [
    "ColorClash",
    "Deadlock",
    "Endless",
    "FabricError",
    "HostError",
    "LoadError",
    "MemoryOverflow",
    "NoRoute",
    "ProgramFault",
    "QueueNotInitialized",
    "ResourceBusy",
    "RoutingLoop",
    "RunError",
    "TaskClash",
    "UnreadWavelets",
]


class FabricError(Exception):
    """Base of all of them; ``name`` is the diagnostic's stable name.

    >>> Deadlock("PE (0, 0) waits").name
    'deadlock'
    """

    name = "fabric"

    def __str__(self) -> str:
        return f"{super().__str__()} [{self.name}]"


class LoadError(FabricError):
    """The program cannot be loaded."""

    name = "load"


class MemoryOverflow(LoadError):
    """A PE program needs more than the PE's memory."""

    name = "memory-overflow"


class ColorClash(LoadError):
    """Two uses of one colour exclude each other."""

    name = "color-clash"


class QueueNotInitialized(LoadError):
    """A queue is used that ``@initialize_queue`` never bound to a colour."""

    name = "queue-not-initialized"


class TaskClash(LoadError):
    """Two tasks are bound to one id."""

    name = "task-clash"


class RunError(FabricError):
    """The program failed while running."""

    name = "run"


class RoutingLoop(RunError):
    """A route leads back to where it began."""

    name = "routing-loop"


class NoRoute(RunError):
    """A wavelet has nowhere to go."""

    name = "no-route"


class Deadlock(RunError):
    """No event is left, yet somebody waits.

    Attributes:
        picture: who waits for what, one line each.
        edges: ``((x, y), (x, y), reason)`` of the wait-for graph.
        svg: the same graph as a drawing, where the fabric is not too large for one.
    """

    name = "deadlock"

    def __init__(
        self,
        message: str,
        picture: str = "",
        edges: tuple[tuple[tuple[int, int], tuple[int, int], str], ...] = (),
        svg: str = "",
    ) -> None:
        super().__init__(f"{message}\n{picture}" if picture else message)
        self.picture = picture
        self.edges = edges
        self.svg = svg


class Endless(RunError):
    """The program has run longer than the watchdog allows without the host hearing of it."""

    name = "endless"


class UnreadWavelets(RunError):
    """Wavelets are left over when the program has ended."""

    name = "unread-wavelets"


class ResourceBusy(RunError):
    """A queue or microthread is asked to do two things at once."""

    name = "resource-busy"


class ProgramFault(RunError):
    """The PE program did something it must not; ``placed`` when the message begins with the place in its source."""

    name = "program-fault"

    def __init__(self, message: str, *, placed: bool = False) -> None:
        super().__init__(message)
        self.message = message
        self.placed = placed


class HostError(RunError):
    """The host's request does not fit the program."""

    name = "host"
