"""What a folder of a Hugging Face model holds: settings from config.json, weights from safetensors or checkpoints."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pyflame_rt.graph.errors import InvalidModelError, ModelNotFoundError, UnsupportedFormatError
from pyflame_rt.graph.records import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = ["BlockWeights", "Settings", "Weights", "read_settings", "read_weights"]

_FILES = ("model.safetensors", "pytorch_model.bin")
_MOST_LAYERS, _LARGEST = 10_000, 1 << 31
_SHOWN = 5


class Settings:
    """The settings of a model; what is asked for and is not there, or is of another kind, is an error with its name.

    Args:
        values: what config.json says.
        where: the file, for errors.
        defaults: what transformers takes where the file says nothing.
    """

    def __init__(self, values: Mapping[str, Any], where: str, defaults: Mapping[str, Any] | None = None) -> None:
        self.values = {**(defaults or {}), **values}
        self.where = where

    def __contains__(self, name: str) -> bool:
        return self.values.get(name) is not None

    def size(self, name: str, default: int | None = None) -> int:
        """A whole number above zero."""
        value = self._there(name, default)
        if not isinstance(value, int) or isinstance(value, bool) or not 0 < value < _LARGEST:
            raise InvalidModelError(f"{self.where}: {name} is {value!r}, not a size")
        return value

    def layers(self, name: str) -> int:
        """How many layers there are."""
        count = self.size(name)
        if count > _MOST_LAYERS:
            raise InvalidModelError(f"{self.where}: {name} is {count}, more than {_MOST_LAYERS}")
        return count

    def number(self, name: str, default: float | None = None) -> float:
        """A finite number."""
        value = self._there(name, default)
        if not isinstance(value, (int, float)) or isinstance(value, bool) or not np.isfinite(value):
            raise InvalidModelError(f"{self.where}: {name} is {value!r}, not a number")
        return float(value)

    def text(self, name: str, default: str | None = None) -> str:
        """A word."""
        value = self._there(name, default)
        if not isinstance(value, str):
            raise InvalidModelError(f"{self.where}: {name} is {value!r}, not a text")
        return value

    def flag(self, name: str, default: bool = False) -> bool:
        """True or False."""
        value = self.values.get(name)
        return default if value is None else bool(value)

    def sizes(self, name: str) -> list[int]:
        """A list of sizes."""
        value = self._there(name, None)
        if not isinstance(value, list) or not value or len(value) > _MOST_LAYERS:
            raise InvalidModelError(f"{self.where}: {name} is {value!r}, not a list of sizes")
        return [Settings({name: item}, self.where).size(name) for item in value]

    def inner(self, name: str, defaults: Mapping[str, Any] | None = None) -> Settings:
        """Settings within these."""
        value = self.values.get(name)
        if value is not None and not isinstance(value, dict):
            raise InvalidModelError(f"{self.where}: {name} is {value!r}, not settings")
        return Settings(value or {}, f"{self.where}: {name}", defaults)

    def refuse(self, name: str, *fine: Any) -> None:
        """Refuse a setting that would change the answer, unless it has one of these values or is not there."""
        value = self.values.get(name)
        if value is not None and value not in fine:
            raise UnsupportedFormatError(f"{self.where}: {name}={value!r} is not supported")

    def _there(self, name: str, default: Any) -> Any:
        value = self.values.get(name)
        if value is None:
            value = default
        if value is None:
            raise InvalidModelError(f"{self.where} says nothing of {name}")
        return value


@dataclass(frozen=True)
class BlockWeights:
    """A matrix [out, in] whose rows are blocks of a format of ``ops.pyflame.stored_blocks``.

    Attributes:
        data: bytes [out, bytes of a row].
        format: its name.
    """

    data: np.ndarray[Any, Any]
    format: str


class Weights:
    """Arrays by name, as float32, or blocks; it notes which were taken, so that none is left out in silence."""

    def __init__(self, arrays: Mapping[str, np.ndarray[Any, Any] | BlockWeights], where: str) -> None:
        self._arrays = dict(arrays)
        self._taken: set[str] = set()
        self.where = where

    def __contains__(self, name: str) -> bool:
        return name in self._arrays

    def has_prefix(self, prefix: str) -> bool:
        """Whether some name begins so."""
        return any(name.startswith(prefix) for name in self._arrays)

    def blocks(self, name: str) -> BlockWeights | None:
        """A weight that is kept in blocks; None for others."""
        found = self._arrays.get(name)
        if not isinstance(found, BlockWeights):
            return None
        self._taken.add(name)
        return found

    def take(self, name: str) -> np.ndarray[Any, Any]:
        """A weight that is not kept in blocks."""
        array = self._arrays.get(name)
        if array is None:
            raise InvalidModelError(f"{self.where} has no weight {name!r}")
        if isinstance(array, BlockWeights):
            raise UnsupportedFormatError(f"{self.where}: weight {name!r} is in blocks, where no product reads it")
        self._taken.add(name)
        return array if array.dtype == np.float32 else array.astype(np.float32)

    def left(self, fine: Iterable[str]) -> list[str]:
        """Weights that nobody took, but those with one of these parts in their name."""
        parts = tuple(fine)
        return [n for n in self._arrays if n not in self._taken and not any(part in n for part in parts)]

    def refuse_left(self, architecture: str, fine: Iterable[str]) -> None:
        """Refuse a folder with weights that have no place in the graph: its answers would be others."""
        left = self.left(fine)
        if left:
            more = f" and {len(left) - _SHOWN} more" if len(left) > _SHOWN else ""
            raise UnsupportedFormatError(
                f"{self.where}: weights have no place in {architecture}: {', '.join(left[:_SHOWN])}{more}"
            )


def read_settings(folder: Path) -> Settings:
    """What config.json says.

    Raises:
        ModelNotFoundError: there is none.
        InvalidModelError: it is damaged.
    """
    file = folder / "config.json"
    if not file.is_file():
        raise ModelNotFoundError(f"there is no config.json in {str(folder)!r}")
    return Settings(_mapping(file), str(file))


def read_weights(folder: Path) -> Weights:
    """All weights of a folder, in one file or several.

    Raises:
        ModelNotFoundError: there are none, or a file that the index names is not there.
        InvalidModelError: a file is damaged.
    """
    from pyflame_rt.importers.torch_importer import read_state_dict

    arrays: dict[str, np.ndarray[Any, Any]] = {}
    for file in _weight_files(folder):
        arrays |= {name: tensor.numpy() for name, tensor in read_state_dict(file).items()}
    return Weights(arrays, str(folder))


def _weight_files(folder: Path) -> list[Path]:
    for name in _FILES:
        if (folder / name).is_file():
            return [folder / name]
        index = folder / f"{name}.index.json"
        if index.is_file():
            return _parts(folder, index)
    raise ModelNotFoundError(f"there are no weights in {str(folder)!r}: none of {', '.join(_FILES)}, and no index")


def _parts(folder: Path, index: Path) -> list[Path]:
    listed = _mapping(index).get("weight_map")
    if not isinstance(listed, dict) or not all(isinstance(part, str) for part in listed.values()):
        raise InvalidModelError(f"{index}: it has no weight_map")
    names = sorted(set(listed.values()))
    for name in names:
        if Path(name).name != name or name in ("", ".", ".."):
            raise InvalidModelError(f"{index}: {name!r} is not the name of a file beside it")
        if not (folder / name).is_file():
            raise ModelNotFoundError(f"{index} names {name!r}, which is not there")
    return [folder / name for name in names]


def _mapping(file: Path) -> dict[str, Any]:
    try:
        found = json.loads(file.read_text("utf-8"))
    except (ValueError, OSError, RecursionError) as error:
        raise InvalidModelError(f"{file}: {error}") from error
    if not isinstance(found, dict):
        raise InvalidModelError(f"{file}: it holds no settings")
    return found
