"""MLServer and LitServe for `serving.py`: the same onnxruntime session in their own classes, their batching on.

Neither takes binary tensors over HTTP: a request is one string, base64 of its tensors, which costs less than numbers in
JSON. MLServer needs other versions of our dependencies: it runs in an environment of its own
(`python -m venv X && X/bin/pip install mlserver onnxruntime`, then `serving.py --mlserver X/bin/python`).
"""

from __future__ import annotations

import base64
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

MAX_BATCH, WAIT_SECONDS = 32, 0.001
Feed = dict[str, np.ndarray]


def pack(feed: Feed) -> str:
    """A request as a string."""
    head = json.dumps([[name, a.dtype.str, list(a.shape)] for name, a in feed.items()]).encode()
    return base64.b64encode(head + b"\n" + b"".join(a.tobytes() for a in feed.values())).decode()


def unpack(text: str) -> Feed:
    """The same back."""
    head, data = base64.b64decode(text).split(b"\n", 1)
    feed, at = {}, 0
    for name, kind, shape in json.loads(head):
        count = int(np.prod(shape))
        feed[name] = np.frombuffer(data, kind, count, at).reshape(shape)
        at += feed[name].nbytes
    return feed


def open_session(path: str) -> Any:
    """What both of them run."""
    import onnxruntime

    return onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])


def run_together(session: Any, feeds: list[Feed]) -> list[list[np.ndarray]]:
    """One run for several requests of one row; sequences are padded to the longest, which the mask tells."""
    whole = {}
    for name in feeds[0]:
        rows = [feed[name] for feed in feeds]
        if rows[0].ndim == 2 and rows[0].dtype.kind == "i":
            longest = max(row.shape[1] for row in rows)
            rows = [np.pad(row, ((0, 0), (0, longest - row.shape[1]))) for row in rows]
        whole[name] = np.concatenate(rows)
    outputs = session.run(None, whole)
    return [[output[i : i + 1] for output in outputs] for i in range(len(feeds))]


# ---------------------------------------------------------------------- LitServe


try:
    import fastapi
    import litserve as ls
except ModuleNotFoundError:
    pass
else:

    class Api(ls.LitAPI):
        """The session in LitServe's class, which its worker process makes again."""

        path = ""

        def setup(self, device: Any) -> None:
            """Open it."""
            del device
            self.session = open_session(self.path)

        def decode_request(self, request: Any) -> Feed:
            """The tensors."""
            return unpack(request["text"])

        def batch(self, inputs: list[Feed]) -> list[Feed]:
            """As they are: they are put together where they are run."""
            return inputs

        def predict(self, x: list[Feed]) -> list[list[np.ndarray]]:
            """Run a batch."""
            return run_together(self.session, x)

        def unbatch(self, output: list[list[np.ndarray]]) -> list[list[np.ndarray]]:
            """As they are."""
            return output

        def encode_response(self, output: list[np.ndarray]) -> dict[str, str]:
            """The answer."""
            return {"text": pack({str(i): array for i, array in enumerate(output)})}

    Api.decode_request.__annotations__ = {"request": fastapi.Request}  # it looks there for what to pass


def litserve(path: str, port: int) -> None:
    """LitServe, one worker."""
    api = Api(max_batch_size=MAX_BATCH, batch_timeout=WAIT_SECONDS)
    api.path = path
    ls.LitServer(api, accelerator="cpu", workers_per_device=1).run(
        host="127.0.0.1", port=port, log_level="error", generate_client_file=False
    )


# ---------------------------------------------------------------------- MLServer


def mlserver(path: str, port: int) -> None:
    """MLServer, inference in its own process, which is its quickest way for one model on two cores."""
    from mlserver.cli import main

    folder = Path(tempfile.mkdtemp())
    settings = {"debug": False, "host": "127.0.0.1", "http_port": port, "grpc_port": port + 1, "metrics_port": port + 2}
    settings |= {"parallel_workers": 0, "gzip_enabled": False}
    model = {"name": "m", "implementation": "serving_peers.Runtime", "max_batch_size": MAX_BATCH}
    model |= {"max_batch_time": WAIT_SECONDS, "parameters": {"uri": path}}
    (folder / "settings.json").write_text(json.dumps(settings))
    (folder / "model-settings.json").write_text(json.dumps(model))
    sys.argv = ["mlserver", "start", str(folder)]
    os.chdir(folder)
    main()


try:
    from mlserver import MLModel, types
except ModuleNotFoundError:
    pass
else:

    class Runtime(MLModel):
        """The session in MLServer's class."""

        async def load(self) -> bool:
            """Open it."""
            self.session = open_session(self.settings.parameters.uri)
            return True

        async def predict(self, payload: Any) -> Any:
            """Run a batch."""
            texts = [t if isinstance(t, str) else t.decode() for t in payload.inputs[0].data]
            found = run_together(self.session, [unpack(text) for text in texts])
            data = [pack({str(i): array for i, array in enumerate(outputs)}) for outputs in found]
            output = types.ResponseOutput(name="text", shape=[len(data)], datatype="BYTES", data=data)
            return types.InferenceResponse(model_name=self.name, outputs=[output])


def request(kind: str, feed: Feed, port: int) -> bytes:
    """A whole HTTP request in the form that a server takes."""
    if kind == "litserve":
        path, body = "/predict", json.dumps({"text": pack(feed)}).encode()
    else:
        tensor = {"name": "text", "shape": [1], "datatype": "BYTES", "data": [pack(feed)]}
        path, body = "/v2/models/m/infer", json.dumps({"inputs": [tensor]}).encode()
    lines = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\n"
    return f"{lines}Content-Length: {len(body)}\r\n\r\n".encode() + body


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    {"litserve": litserve, "mlserver": mlserver}[sys.argv[1]](sys.argv[2], int(sys.argv[3]))
