"""Files of weights: where they come from, where they are kept, and that they are what they should be."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import tempfile
import threading
import urllib.error
import urllib.parse
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pyflame.serialization import load
from pyflame_rt.graph.named_arguments import names_arguments

__all__ = [
    "WeightInfo",
    "cache_info",
    "clear_cache",
    "download_weights",
    "get_weight_path",
    "list_pretrained",
    "load_pretrained",
    "register_weights",
    "unregister_weights",
    "weight_info",
]

TIMEOUT = 60.0
SUFFIXES = (".safetensors", ".pf", ".npz")


class WeightsError(RuntimeError):
    """Weights are not there, or not what they should be."""


@dataclass(frozen=True)
class WeightInfo:
    """A file of weights.

    Attributes:
        model: The model they are for.
        name: What they are called.
        url: Where they are: https, http of this machine, or file.
        sha256: What the file's digest must be.
        max_bytes: Longer files are refused while they come.
        description: One sentence.
        license: Under which they may be used.
        metrics: What the model reaches with them.
    """

    model: str
    name: str
    url: str
    sha256: str
    max_bytes: int = 4 << 30
    description: str = ""
    license: str = ""
    metrics: dict[str, float] = field(default_factory=dict)

    @property
    def file_name(self) -> str:
        """How the file is called in the cache."""
        suffix = Path(urllib.parse.urlsplit(self.url).path).suffix
        return f"{self.name}-{self.sha256[:12]}{suffix}"


_weights: dict[str, dict[str, WeightInfo]] = {}
_lock = threading.Lock()


@names_arguments
def register_weights(
    model: str,
    url: str,
    sha256: str,
    name: str = "default",
    *,
    max_bytes: int = 4 << 30,
    description: str = "",
    license: str = "",
    metrics: dict[str, float] | None = None,
) -> WeightInfo:
    """Make a file of weights known.

    The package itself names no files: nobody's server is part of it. A file is only ever read when its SHA-256 digest
    is the one that was registered.

    Args:
        model: The model they are for, as `list_models` has it.
        url: ``https://...``, ``file://...``, or ``http://`` on this machine; its ending says which format.
        sha256: Digest of the file, 64 hexadecimal digits.
        name: What they are called.
        max_bytes: Longer files are refused.
        description: One sentence.
        license: Under which they may be used.
        metrics: What the model reaches with them.
    """
    from pyflame.hub.registry import model_info

    digest = sha256.lower()
    if len(digest) != 64 or set(digest) - set("0123456789abcdef"):
        raise ValueError(f"sha256 must have 64 hexadecimal digits. Received: {sha256!r}")
    if not name or Path(name).name != name or name.startswith("."):
        raise ValueError(f"weights need a name that is a plain file name. Received: {name!r}")
    parts = urllib.parse.urlsplit(url)
    local = parts.scheme == "http" and parts.hostname in ("localhost", "127.0.0.1", "::1")
    if parts.scheme not in ("https", "file") and not local:
        raise ValueError(f"weights come by https or from a file. Received: {url!r}")
    if Path(parts.path).suffix not in SUFFIXES:
        raise ValueError(f"weights are files that end in {', '.join(SUFFIXES)}. Received: {url!r}")
    info = WeightInfo(model_info(model).name, name, url, digest, max_bytes, description, license, dict(metrics or {}))
    with _lock:
        _weights.setdefault(info.model, {})[name] = info
    return info


@names_arguments
def unregister_weights(model: str, name: str = "default") -> None:
    """Forget a file of weights; what is in the cache stays."""
    info = weight_info(model, name)
    with _lock:
        del _weights[info.model][info.name]


@names_arguments
def list_pretrained(model: str | None = None) -> dict[str, list[str]]:
    """Names of the weights that are known, by model.

    Example:
        >>> import pyflame as pf
        >>> pf.hub.list_pretrained("resnet18")
        {}
    """
    known = {name: sorted(found) for name, found in _weights.items() if found}
    return known if model is None else {name: found for name, found in known.items() if name == model}


@names_arguments
def weight_info(model: str, name: str = "default") -> WeightInfo:
    """What is known of a file of weights."""
    from pyflame.hub.registry import model_info

    found = _weights.get(model_info(model).name, {})
    if name not in found:
        there = f"there are: {', '.join(sorted(found))}" if found else "none are registered for it"
        raise KeyError(f"there are no weights {name!r} for {model!r}; {there} (register_weights adds some)")
    return found[name]


def cache_folder() -> Path:
    """Where files are kept: ``PYFLAME_CACHE_DIR``, or the user's cache folder."""
    given = os.environ.get("PYFLAME_CACHE_DIR")
    if given:
        return Path(given) / "hub"
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "pyflame" / "hub"


@names_arguments
def get_weight_path(model: str, name: str = "default") -> Path:
    """Where a file of weights is, or will be, kept."""
    info = weight_info(model, name)
    return cache_folder() / info.model / info.file_name


@names_arguments
def download_weights(model: str, name: str = "default", force: bool = False) -> Path:
    """The file of weights, brought into the cache when it is not there.

    Args:
        model: The model they are for.
        name: What they are called.
        force: Bring it again.

    Raises:
        WeightsError: it cannot be had, is too long, or its digest is wrong; the cache is left as it was.
    """
    info, target = weight_info(model, name), get_weight_path(model, name)
    if target.exists() and not force:
        if _digest(target) == info.sha256:
            return target
        target.unlink()  # it was damaged since
    target.parent.mkdir(parents=True, exist_ok=True)
    handle, part = tempfile.mkstemp(dir=target.parent, prefix=".part-")
    try:
        with os.fdopen(handle, "wb") as file:
            _fetch(info, file)
        found = _digest(Path(part))
        if found != info.sha256:
            raise WeightsError(f"{info.url}: the digest is {found}, registered is {info.sha256}; it is not used")
        os.replace(part, target)  # it appears whole or not at all
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(part)
    return target


def _fetch(info: WeightInfo, file: Any) -> None:
    try:
        with urllib.request.urlopen(info.url, timeout=TIMEOUT) as source:
            seen = 0
            while block := source.read(1 << 20):
                seen += len(block)
                if seen > info.max_bytes:
                    raise WeightsError(f"{info.url}: longer than max_bytes={info.max_bytes}")
                file.write(block)
    except (OSError, urllib.error.URLError, ValueError) as error:
        raise WeightsError(f"{info.url} cannot be had: {error}") from error


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@names_arguments
def load_pretrained(model: Any, model_name: str, weight_name: str = "default", strict: bool = True) -> Any:
    """Load weights into a model; returns the names that were missing or unexpected.

    Args:
        model: A module.
        model_name: As `list_models` has it.
        weight_name: What the weights are called.
        strict: Refuse missing and unexpected names.
    """
    state = load(download_weights(model_name, weight_name))
    if isinstance(state, dict) and isinstance(state.get("state_dict"), dict):
        state = state["state_dict"]
    return model.load_state_dict(state, strict=strict)


@names_arguments
def cache_info() -> dict[str, Any]:
    """Where the cache is, how many files it holds, and their bytes.

    Example:
        >>> import pyflame as pf
        >>> sorted(pf.hub.cache_info())
        ['files', 'path', 'total_bytes']
    """
    folder = cache_folder()
    files = [path for path in folder.rglob("*") if path.is_file()] if folder.exists() else []
    return {
        "path": str(folder),
        "files": sorted(str(path.relative_to(folder)) for path in files),
        "total_bytes": sum(path.stat().st_size for path in files),
    }


@names_arguments
def clear_cache(model: str | None = None) -> int:
    """Remove files of weights, of one model or all; returns how many."""
    from pyflame.hub.registry import model_info

    folder = cache_folder() if model is None else cache_folder() / model_info(model).name
    if not folder.exists():
        return 0
    count = sum(path.is_file() for path in folder.rglob("*"))
    shutil.rmtree(folder)
    return count
