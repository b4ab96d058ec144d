"""Event files that TensorBoard reads, written without it."""

from __future__ import annotations

import os
import struct
import time
from pathlib import Path
from typing import Any, BinaryIO

from pyflame.training.callbacks import Callback

__all__ = ["TensorBoardLogger"]


def _crc_table() -> list[int]:
    """The table of CRC-32C (Castagnoli), which frames records."""
    table = []
    for value in range(256):
        for _ in range(8):
            value = (value >> 1) ^ (0x82F63B78 if value & 1 else 0)
        table.append(value)
    return table


TABLE = _crc_table()


def masked_crc(data: bytes) -> int:
    """The checksum of a record, turned and shifted as the format asks."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = TABLE[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    crc ^= 0xFFFFFFFF
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def _text(field: int, data: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(data)) + data


def version_event(moment: float) -> bytes:
    """The first record of a file."""
    return b"\x09" + struct.pack("<d", moment) + _text(3, b"brain.Event:2")


def scalar_event(moment: float, step: int, values: dict[str, float]) -> bytes:
    """Numbers measured at a step."""
    entries = b"".join(
        _text(1, _text(1, name.encode()) + b"\x15" + struct.pack("<f", value)) for name, value in values.items()
    )
    return b"\x09" + struct.pack("<d", moment) + b"\x10" + _varint(step) + _text(5, entries)


def record(event: bytes) -> bytes:
    """An event in its frame."""
    length = struct.pack("<Q", len(event))
    return length + struct.pack("<I", masked_crc(length)) + event + struct.pack("<I", masked_crc(event))


class TensorBoardLogger(Callback):
    """Writes what is measured in each epoch for TensorBoard.

    Example:
        >>> import tempfile, os
        >>> from pyflame.training import TensorBoardLogger
        >>> folder = tempfile.mkdtemp()
        >>> logger = TensorBoardLogger(folder)
        >>> logger.on_train_begin({}); logger.on_epoch_end(0, {"loss": 0.5}); logger.on_train_end({})
        >>> os.listdir(folder)[0].startswith("events.out.tfevents.")
        True
    """

    def __init__(self, log_dir: str | Path = "runs") -> None:
        self.log_dir = Path(log_dir)
        self._file: BinaryIO | None = None

    def on_train_begin(self, logs: dict[str, Any]) -> None:  # noqa: ARG002
        """Begin a new event file."""
        self.log_dir.mkdir(parents=True, exist_ok=True)
        moment = time.time()
        self._file = (self.log_dir / f"events.out.tfevents.{int(moment)}.{os.getpid()}").open("ab")
        self._file.write(record(version_event(moment)))

    def on_epoch_end(self, epoch: int, logs: dict[str, Any]) -> None:
        """Write the numbers of the epoch."""
        if self._file is None:
            raise RuntimeError("TensorBoardLogger writes between on_train_begin and on_train_end")
        values = {name: float(value) for name, value in logs.items() if isinstance(value, int | float)}
        self._file.write(record(scalar_event(time.time(), epoch, values)))
        self._file.flush()

    def on_train_end(self, logs: dict[str, Any]) -> None:  # noqa: ARG002
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None
