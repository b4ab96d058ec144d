"""Bodies of requests: read within a size and a time."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from pyflame_rt.serving.errors import RequestError

if TYPE_CHECKING:
    from starlette.requests import Request

__all__ = ["HEADERS", "WHOLE", "read_body", "until_gone"]

HEADERS = "pyflame.headers"  # in the scope of every request: its headers by name
WHOLE = "pyflame.whole"  # in the scope of one whose last byte has come: it needs no clock


async def read_body(request: Request, limit: int, seconds: float, name: str) -> bytes | bytearray:
    """The whole body.

    Raises:
        RequestError: It is too long or too slow, or its sender has gone.
    """
    coding = request.scope[HEADERS].get(b"content-encoding", b"identity")
    if coding.lower() != b"identity":
        shown = coding[:40].decode("latin-1")
        raise RequestError(415, "InvalidRequest", f"bodies are not taken in {shown!r}: send them as they are")
    if WHOLE in request.scope:
        return await _pieces(request, limit, name)
    try:
        async with asyncio.timeout(seconds):
            return await _pieces(request, limit, name)
    except TimeoutError:
        raise RequestError(408, "Timeout", f"the body did not come within {seconds:g} s") from None


async def _pieces(request: Request, limit: int, name: str) -> bytes | bytearray:
    whole = bytearray()
    first = True
    while True:
        message = await request.receive()
        if message["type"] == "http.disconnect":
            raise RequestError(499, "ClientGone", "the client has gone")
        piece, more = message.get("body", b""), message.get("more_body", False)
        if len(whole) + len(piece) > limit:
            raise _too_long(limit, name)
        if first and not more:
            return piece  # most bodies are one piece: no copy
        first = False
        whole += piece
        if not more:
            return whole


def _too_long(limit: int, name: str) -> RequestError:
    return RequestError(413, "RequestTooLarge", f"the body has more bytes than {name} ({limit}) allows")


async def until_gone(request: Request) -> None:
    """Wait until the client of a request that was read has gone."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
