"""Names of the SDK's geometry."""

from wsesim.host.geometry import IntRectangle, IntVector

__all__ = ["IntRectangle", "IntVector"]
