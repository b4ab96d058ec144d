"""What the compiler gives: the protocol of executables, and what a run can be asked for."""

from pyflame_rt.backends.base import Executable, FastPath, Placement, RunHooks, Timeline

__all__ = ["Executable", "FastPath", "Placement", "RunHooks", "Timeline"]
