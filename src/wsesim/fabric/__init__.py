"""The machine: PEs, routers, the clock, and what they count."""

from wsesim.fabric.errors import (
    ColorClash,
    Deadlock,
    Endless,
    FabricError,
    HostError,
    LoadError,
    MemoryOverflow,
    NoRoute,
    ProgramFault,
    QueueNotInitialized,
    ResourceBusy,
    RoutingLoop,
    RunError,
    TaskClash,
    UnreadWavelets,
)
from wsesim.fabric.load import load
from wsesim.fabric.machine import Machine
from wsesim.fabric.timing import TIMING, Constant, Timing, constants

__all__ = [
    "TIMING",
    "ColorClash",
    "Constant",
    "Deadlock",
    "Endless",
    "FabricError",
    "HostError",
    "LoadError",
    "Machine",
    "MemoryOverflow",
    "NoRoute",
    "ProgramFault",
    "QueueNotInitialized",
    "ResourceBusy",
    "RoutingLoop",
    "RunError",
    "TaskClash",
    "Timing",
    "UnreadWavelets",
    "constants",
    "load",
]
