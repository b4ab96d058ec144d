"""A client of gRPC that sends and takes as little as it wants (HTTP/2 by hand)."""

import socket
import struct
import time

DATA, HEADERS, RESET, SETTINGS, PING, WINDOW = 0, 1, 3, 4, 6, 8
END_STREAM, ACK, END_HEADERS = 1, 1, 4
INITIAL_WINDOW = 4  # a setting
MOST = (1 << 31) - 1


def frame(kind, flags, stream, payload=b""):
    return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload


def _headers(path):
    pairs = {":method": "POST", ":scheme": "http", ":path": path, ":authority": "x", "te": "trailers"}
    pairs["content-type"] = "application/grpc"
    return b"".join(
        b"\0" + bytes([len(name)]) + name.encode() + bytes([len(value)]) + value.encode()
        for name, value in pairs.items()
    )


class Connection:
    """Streams that may take ``window`` bytes each, and so many together as :meth:`take` allows."""

    def __init__(self, server, window=MOST):
        self.socket = socket.socket()
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 14)
        self.socket.settimeout(120)
        self.socket.connect(("127.0.0.1", server.grpc_port()))
        settings = frame(SETTINGS, 0, 0, struct.pack(">HI", INITIAL_WINDOW, window))
        self.socket.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + settings)
        self._next, self._left = 1, b""
        self._room, self._initial, self._rooms = 65535, 65535, {}  # that the server has, for all and by stream

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.socket.close()

    def call(self, path, data):
        """Ask; the answer is to be taken, or not."""
        number, self._next = self._next, self._next + 2
        body = b"\0" + struct.pack(">I", len(data)) + data
        self.socket.sendall(frame(HEADERS, END_HEADERS, number, _headers(path)) + frame(DATA, END_STREAM, number, body))
        return number

    def begin(self, path, length):
        """Announce a message of so many bytes, to be uploaded."""
        number, self._next = self._next, self._next + 2
        self._rooms[number] = self._initial - 5
        self._room -= 5
        announced = frame(DATA, 0, number, b"\0" + struct.pack(">I", length))
        self.socket.sendall(frame(HEADERS, END_HEADERS, number, _headers(path)) + announced)
        return number

    def upload(self, number, size):
        """Send so many bytes of a message, as the server has room; whether it took them."""
        while size:
            piece = min(size, 1 << 14, self._room, self._rooms[number])
            if piece > 0:
                self.socket.sendall(frame(DATA, 0, number, bytes(piece)))
                size, self._room = size - piece, self._room - piece
                self._rooms[number] -= piece
                continue
            kind, flags, stream, payload = self._frame()
            if stream == number and kind in (HEADERS, RESET):
                return False
            if kind == WINDOW and not stream:
                self._room += int.from_bytes(payload, "big")
            elif kind == WINDOW and stream in self._rooms:
                self._rooms[stream] += int.from_bytes(payload, "big")
            else:
                self._noted(kind, flags, payload)
        return True

    def _noted(self, kind, flags, payload):
        """Answer what a connection must."""
        if kind in (SETTINGS, PING) and not flags & ACK:
            self.socket.sendall(frame(kind, ACK, 0, payload if kind == PING else b""))
        for at in range(0, len(payload) if kind == SETTINGS else 0, 6):
            name, value = struct.unpack_from(">HI", payload, at)
            if name == INITIAL_WINDOW:
                self._rooms = {stream: room + value - self._initial for stream, room in self._rooms.items()}
                self._initial = value

    def ping(self):
        """Talk, and take nothing."""
        self.socket.sendall(frame(PING, 0, 0, bytes(8)))

    def _frame(self):
        while len(self._left) < 9 or len(self._left) < 9 + int.from_bytes(self._left[:3], "big"):
            piece = self.socket.recv(1 << 14)
            if not piece:
                raise ConnectionResetError("it was ended")
            self._left += piece
        end = 9 + int.from_bytes(self._left[:3], "big")
        found, self._left = self._left[:end], self._left[end:]
        return found[3], found[4], int.from_bytes(found[5:9], "big"), found[9:]

    def take(self, pause=0.0, most=1 << 62):
        """Take up to so many bytes, with pauses; how many there were, and whether an answer is whole.

        Raises:
            ConnectionError: The server has ended it.
        """
        found = 0
        while found < most:
            kind, flags, number, payload = self._frame()
            if kind == DATA:
                found += len(payload)
                self.socket.sendall(frame(WINDOW, 0, 0, struct.pack(">I", len(payload))) if payload else b"")
                time.sleep(pause)
            elif kind in (SETTINGS, PING):
                self._noted(kind, flags, payload)
            elif kind == RESET or (kind == HEADERS and flags & END_STREAM):
                return found, kind == HEADERS and number > 0
        return found, False

    def ended(self, seconds=120):
        """Whether the server ends it in that time."""
        self.socket.settimeout(seconds)
        try:
            while self.socket.recv(1 << 14):
                pass
        except TimeoutError:
            return False
        except ConnectionError:
            pass
        return True
