"""Save and load .pfm models."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pyflame_rt.format.cursor import Cursor, Sink
from pyflame_rt.format.v1 import read_v1, write_v1
from pyflame_rt.format.v2 import read_v2, write_v2
from pyflame_rt.graph import Graph
from pyflame_rt.graph.arguments import expect
from pyflame_rt.graph.errors import InvalidModelError, ModelNotFoundError, PyFlameRTError, UnsupportedFormatError
from pyflame_rt.graph.named_arguments import names_arguments
from pyflame_rt.graph.pages import hold_file
from pyflame_rt.graph.writing import refuse_scripts, replacing

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator


__all__ = ["MAGIC", "dumps_model", "is_pfm", "load_model", "loads_model", "save_model"]

MAGIC = b"PFM\0"
# Checking the data of larger files would read all of it; ask for it with verify=True.
CHECK_LIMIT = 64 * 1024 * 1024


@names_arguments
def is_pfm(data: bytes) -> bool:
    """True when bytes begin as a .pfm file does."""
    return data[:4] == MAGIC


@names_arguments
def save_model(graph: Graph, path: str | os.PathLike[str], *, version: int = 2) -> None:
    """Write a graph to a .pfm file, all of it or nothing.

    Args:
        graph: the model.
        path: the file; replaced atomically when it exists.
        version: 2 holds everything; 1 is for older readers and refuses what it cannot hold.

    Example:
        >>> import tempfile
        >>> from pyflame_rt.graph import Graph
        >>> g = Graph("g")
        >>> _ = g.add_input("x", [2]), g.add_node("n", "Relu", ["x"], ["y"]), g.add_output("y", [2])
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     save_model(g, folder + "/g.pfm")
        ...     load_model(folder + "/g.pfm").nodes
        [n: Relu(x) -> y]
    """
    if not isinstance(graph, Graph):  # pyright: ignore[reportUnnecessaryIsInstance] - callers may be untyped
        raise TypeError(f"save_model takes a Graph, got {type(graph).__name__}")
    pieces = _pieces(graph, version)
    with replacing(path) as file:
        for piece in pieces:
            file.write(piece)


@names_arguments
def dumps_model(graph: Graph, *, version: int = 2) -> bytes:
    """A graph as the bytes of a .pfm file."""
    expect(graph, Graph, "what is written")
    return b"".join(bytes(piece) for piece in _pieces(graph, version))


@names_arguments
def load_model(path: str | os.PathLike[str], *, verify: bool | Literal["auto"] = "auto") -> Graph:
    """Read a .pfm file into memory, once for all who read it; what becomes of the file afterwards changes nothing.

    Args:
        path: the file.
        verify: check the checksum of the weights too; "auto" does so up to 64 MiB.
    """
    file = Path(path)
    if not file.is_file():
        raise ModelNotFoundError(f"there is no file {str(file)!r}")
    if file.stat().st_size == 0:
        raise InvalidModelError(f"{file.name}: the file is empty")
    held = hold_file(file)
    try:
        return loads_model(held, verify=verify)
    except PyFlameRTError as error:
        raise type(error)(f"{file.name}: {error}") from error


@names_arguments
def loads_model(data: Any, *, verify: bool | Literal["auto"] = "auto") -> Graph:
    """Read a .pfm model from bytes or any buffer; arrays view that buffer."""
    view = memoryview(data)
    if not is_pfm(bytes(view[:4])):
        raise InvalidModelError(f"not a .pfm model: it begins with {bytes(view[:4])!r}, not {MAGIC!r}")
    cursor = Cursor(view, start=4)
    version = cursor.u32("version")
    if version == 1:
        return read_v1(cursor)
    if version == 2:
        return read_v2(cursor, check_data=len(view) <= CHECK_LIMIT if verify == "auto" else verify)
    raise cursor.fail(f"version {version} is not known (versions here: 1, 2)")


def _pieces(graph: Graph, version: int) -> Iterator[Any]:
    if version not in (1, 2):
        raise UnsupportedFormatError(f".pfm version {version} cannot be written (versions here: 1, 2)")
    refuse_scripts(graph)
    body = write_v1(graph) if version == 1 else write_v2(graph)
    head = Sink()
    head.raw(MAGIC)
    head.pack("I", version)

    def chain() -> Iterator[Any]:
        yield head.bytes()
        yield from body

    return chain()
