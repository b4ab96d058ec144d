"""TCP connections of this process by their peers: what these took, and an end to them (TCP_INFO, shutdown).

For servers in libraries that own their sockets and give no hand on them. A connection is looked up among the process's
files, and touched through a duplicate of its own: the library's number may be another file's by then.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import socket
import stat
import struct
import sys
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import unquote

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

__all__ = ["Peer", "Traffic", "open_connections", "peer_of", "traffic"]

Peer = tuple[str, int]  # address and port

FILES = "/dev/fd"
FAMILIES = (socket.AF_INET, socket.AF_INET6)
BYTES_ACKED, INFO_SIZE = 120, 136  # in Linux's tcp_info


def peer_of(text: str) -> Peer | None:
    """The peer that gRPC calls so; None where it is none of TCP.

    Example:
        >>> peer_of("ipv4:10.0.0.7:5000"), peer_of("ipv6:%5B::1%5D:5000"), peer_of("unix:")
        (('10.0.0.7', 5000), ('::1', 5000), None)
    """
    kind, _, rest = unquote(text).partition(":")
    host, _, port = rest.rpartition(":")
    return (_plain(host.strip("[]")), int(port)) if kind in ("ipv4", "ipv6") and port.isdecimal() else None


def _plain(host: str) -> str:
    """An address as one spelling has it: one of IPv4 in IPv6 is itself."""
    address = ipaddress.ip_address(host.partition("%")[0])
    return str(getattr(address, "ipv4_mapped", None) or address)


@contextlib.contextmanager
def open_connections(port: int, peers: Collection[Peer]) -> Iterator[dict[Peer, socket.socket]]:
    """Connections that peers made to a port of this process, those that are still there; for the time of the block."""
    with contextlib.ExitStack() as held:
        found = {}
        for name in os.listdir(FILES) if peers and os.path.isdir(FILES) else ():
            with contextlib.suppress(OSError):  # closed meanwhile, or no connection
                one = held.enter_context(_duplicate(int(name)))
                peer = one.getpeername()
                if one.getsockname()[1] == port and (key := (_plain(peer[0]), peer[1])) in peers:
                    found[key] = one
        yield found


def _duplicate(number: int) -> socket.socket:
    """Another hand on a socket.

    Raises:
        OSError: It is none of TCP.
    """
    if not stat.S_ISSOCK(os.fstat(number).st_mode):
        raise OSError("no socket")
    one = socket.socket(fileno=os.dup(number))
    if one.family not in FAMILIES or one.type != socket.SOCK_STREAM:
        one.close()
        raise OSError("no socket of TCP")
    return one


class Traffic(NamedTuple):
    """Bytes of a connection since it was made."""

    taken: int  # that the peer has acknowledged
    received: int


def traffic(connection: socket.socket) -> Traffic | None:
    """What went over a connection; None where the system does not tell."""
    if sys.platform != "linux":
        return None
    info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, INFO_SIZE)
    return Traffic(*struct.unpack_from("=QQ", info, BYTES_ACKED)) if len(info) == INFO_SIZE else None
