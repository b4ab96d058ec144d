"""Names of the SDK's debugger, answered by the simulator."""

from wsesim.host.debug import debug_util

__all__ = ["debug_util"]
