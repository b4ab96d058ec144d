"""Models and servers for tests."""

import contextlib
import http.client
import json
import socket
import threading

import numpy as np

import pyflame_rt
from pyflame_rt.graph import DType
from pyflame_rt.serving import HTTPConfig, ModelConfig, ModelServer, ServerConfig


def scaled(factor=2.0, name="scale", size=3):
    """y = factor * x, for any number of rows."""
    graph = pyflame_rt.Graph(name)
    graph.add_input("x", ["N", size])
    graph.add_initializer("factor", np.array(factor, np.float32))
    graph.add_node("mul", "Mul", ["x", "factor"], ["y"])
    graph.add_output("y", ["N", size])
    return graph


def saved(path, factor=2.0, size=3):
    """The same as a file; its folder is made, and the file is there at once or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.draft{path.suffix}")
    if path.suffix == ".pfm":
        pyflame_rt.save_model(scaled(factor, size=size), str(draft))
    else:
        pyflame_rt.export_onnx(scaled(factor, size=size), str(draft))
    draft.replace(path)
    return path


def identity(dtype, name="same"):
    """y = x, of any element type."""
    graph = pyflame_rt.Graph(name)
    graph.add_input("x", ["N"], dtype)
    graph.add_node("same", "Identity", ["x"], ["y"])
    graph.add_output("y", ["N"], dtype)
    return graph


def config(**changes):
    """Settings of a server on this machine, with times that no slow machine exceeds."""
    http = {"host": "127.0.0.1", "port": 0, "request_timeout_ms": 120_000, "header_timeout_ms": 120_000}
    settings = {name: changes.pop(name) for name in list(changes) if name not in HTTPConfig.__dataclass_fields__}
    return ServerConfig(http=HTTPConfig(**{**http, **changes}), **settings)


@contextlib.contextmanager
def serving(models=None, **changes):
    """A server of models by name, running."""
    server = ModelServer(config(**changes))
    for name, model in ({"m": scaled()} if models is None else models).items():
        server.load_model(name, model, config=ModelConfig(warmup_requests=1))
    with server:
        yield server


def ask(server, method, path, body=None, headers=None):
    """Status, headers and the JSON or bytes of an answer."""
    connection = http.client.HTTPConnection("127.0.0.1", server.http_port(), timeout=120)
    try:
        data = json.dumps(body).encode() if isinstance(body, dict | list) else body
        connection.request(method, path, data, headers or {})
        answer = connection.getresponse()
        text = answer.read()
    finally:
        connection.close()
    kind = answer.getheader("content-type", "")
    return answer.status, answer, json.loads(text) if kind.startswith("application/json") and text else text


def talk(server, data, *, until=None):
    """What the server answers to bytes on a connection of their own."""
    with socket.create_connection(("127.0.0.1", server.http_port()), timeout=120) as connection:
        connection.sendall(data)
        found = b""
        with contextlib.suppress(ConnectionResetError):
            while until is None or until not in found:
                piece = connection.recv(1 << 16)
                if not piece:
                    break
                found += piece
        return found


def tensor(array):
    """An array as the documented form has it."""
    import base64

    array = np.asarray(array)
    return {
        "shape": list(array.shape),
        "dtype": DType.of(array.dtype).label,
        "data": base64.b64encode(array.tobytes()).decode(),
    }


def array_of(value):
    """The array of the documented form."""
    import base64

    kind = DType.of(value["dtype"]).numpy
    return np.frombuffer(base64.b64decode(value["data"]), kind).reshape(value["shape"])


class Gate:
    """Holds the runs of a server's model until it is opened."""

    def __init__(self, server, name="m"):
        self._session = server.registry().get_latest(name).session
        self._run = self._session.run
        self.inside = threading.Semaphore(0)
        self._open = threading.Event()
        self._session.run = self._wait

    def _wait(self, *args, **settings):
        self.inside.release()
        assert self._open.wait(240)
        return self._run(*args, **settings)

    def open(self):
        self._open.set()
