"""Statistics by channel: the mean, for the correction of biases, and the greatest magnitude, for smoothing."""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["ChannelObserver"]


class ChannelObserver:
    """Looks at the channels of one tensor, batch after batch.

    Example:
        >>> observer = ChannelObserver(axis=-1)
        >>> observer.observe(np.float32([[1, -4], [3, 0]]))
        >>> observer.mean(), observer.reach
        (array([ 2., -2.]), array([3., 4.]))
    """

    def __init__(self, axis: int) -> None:
        self.axis = axis
        self.reach: Any = 0.0
        self._sum: Any = 0.0
        self._count = 0

    def observe(self, array: np.ndarray[Any, Any]) -> None:
        """Count one batch."""
        if not array.size:
            return
        rows = np.moveaxis(array, self.axis, -1).reshape(-1, array.shape[self.axis])
        self._sum = self._sum + rows.sum(axis=0, dtype=np.float64)
        self._count += len(rows)
        self.reach = np.maximum(self.reach, np.abs(rows).max(axis=0).astype(np.float64))

    def mean(self) -> np.ndarray[Any, Any]:
        """The mean of each channel."""
        return np.asarray(self._sum / max(self._count, 1))
