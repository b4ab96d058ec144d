"""The host's side: copies, streams and calls, and the commands that run programs written for the vendor's SDK."""

from wsesim.host.session import HostSession

__all__ = ["HostSession"]
