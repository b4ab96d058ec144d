"""Servers side by side: requests a second, latency and CPU time with many kept connections and binary tensors.

usage: python benchmarks/serving.py [--filter REGEX] [--seconds 8] [--clients 64] [--rounds 3] [--quick]
           [--mlserver PYTHON]

Servers, each in a process of its own, asked in turn in every round:
  ours       pyflame_rt.serving, Open Inference Protocol with binary tensors, batching on
  bare       Starlette on uvicorn (uvloop, httptools), which reads the body and returns the same number of bytes
  fastapi    FastAPI + onnxruntime, one session, runs in a thread pool (where both are installed)
  litserve, mlserver   see serving_peers.py (where they are installed)
and, without HTTP, `engine`: the batcher in this process, asked by as many threads.
Figures mean something on a quiet machine only.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import importlib.util
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import serving_peers
from zoo import language, vision

PEERS = ("litserve", "mlserver")
LENGTHS = range(16, 129, 16)
HERE = Path(__file__).resolve()


# ---------------------------------------------------------------------- models and requests


def build(name: str, folder: Path, quick: bool) -> tuple[Path, list[dict[str, np.ndarray]]]:
    """A model file and requests of one row for it."""
    import pyflame_rt
    from pyflame_rt.exporters import export_onnx
    from pyflame_rt.loading import load_graph

    if name == "mlp_tiny":
        graph = pyflame_rt.Graph(name)
        graph.add_input("x", ["N", 16])
        rng = np.random.default_rng(0)
        graph.add_initializer("w", rng.standard_normal((16, 16)).astype(np.float32))
        graph.add_node("product", "MatMul", ["x", "w"], ["h"])
        graph.add_node("relu", "Relu", ["h"], ["y"])
        graph.add_output("y", ["N", 16])
    else:
        size = {"size": 32} if quick else {}
        shape = {"width": 64, "layers": 1} if quick else {"width": 384, "layers": 6}
        builder = (
            vision.resnet(name, (2, 2, 2, 2), bottleneck=False, **size)
            if name == "resnet18"
            else language.encoder(
                name, heads=12 if not quick else 4, words=30522 if not quick else 500, length=128, **shape
            )
        )
        graph, _ = load_graph(builder.model())
        for info in (*graph.inputs, *graph.outputs):
            if info.shape and isinstance(info.shape[0], int):
                info.shape = ["batch", *list(info.shape)[1:]]
        graph.types = {}
    path = folder / f"{name}.onnx"
    export_onnx(graph, str(path))
    feeds = []
    for i in range(16):
        free = [d for info in graph.required_inputs for d in list(info.type.shape)[1:] if not isinstance(d, int)]
        sizes = {str(d): LENGTHS[i % len(LENGTHS)] for d in free}
        feeds.append(pyflame_rt.random_feed(graph.required_inputs, seed=i, sizes=sizes))
    return path, feeds


NAMES = {np.dtype(np.float32): "FP32", np.dtype(np.int64): "INT64", np.dtype(np.int32): "INT32"}


def encode(name: str, feed: dict[str, np.ndarray], port: int) -> bytes:
    """A whole HTTP request of the Open Inference Protocol, tensors as bytes."""
    tensors = [
        {"name": n, "shape": list(a.shape), "datatype": NAMES[a.dtype], "parameters": {"binary_data_size": a.nbytes}}
        for n, a in feed.items()
    ]
    head = json.dumps({"inputs": tensors, "parameters": {"binary_data_output": True}}).encode()
    body = head + b"".join(a.tobytes() for a in feed.values())
    lines = (
        f"POST /v2/models/{name}/infer HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n"
        f"Inference-Header-Content-Length: {len(head)}\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return lines.encode() + body


# ---------------------------------------------------------------------- servers


def serve(kind: str, name: str, path: str, port: int, answer: int) -> None:
    """Run one kind of server, in the process of its own."""
    if kind in ("ours", "folder"):
        from pyflame_rt.serving import HTTPConfig, ModelConfig, ModelServer, ServerConfig

        config = ServerConfig(http=HTTPConfig(host="127.0.0.1", port=port))
        if kind == "folder":
            config.model_dir, config.model_control = path, True
        else:
            config.models.append(ModelConfig(name=name, model_path=path, max_batch_size=32, batch_timeout_us=1000))
        server = ModelServer(config)
        server.start()
        server.wait()
        return
    import uvicorn

    uvicorn.run(_bare(answer) if kind == "bare" else _fastapi(path), host="127.0.0.1", port=port, log_level="error")


def _bare(answer: int) -> Any:
    from starlette.applications import Starlette
    from starlette.responses import Response
    from starlette.routing import Route

    body = bytes(answer)

    async def reply(request: Any) -> Any:
        await request.body()
        return Response(body)

    async def live(_: Any) -> Any:
        return Response(b"")

    return Starlette(routes=[Route("/v2/models/{model}/infer", reply, methods=["POST"]), Route("/health/ready", live)])


def _fastapi(path: str) -> Any:
    import onnxruntime
    from fastapi import FastAPI, Request, Response

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    kinds = {"FP32": np.float32, "INT64": np.int64, "INT32": np.int32}
    app = FastAPI()

    async def infer(request: Any) -> Any:
        body = await request.body()
        split = int(request.headers["inference-header-content-length"])
        feed, at = {}, split
        for tensor in json.loads(body[:split])["inputs"]:
            size = tensor["parameters"]["binary_data_size"]
            feed[tensor["name"]] = np.frombuffer(body[at : at + size], kinds[tensor["datatype"]]).reshape(
                tensor["shape"]
            )
            at += size
        outputs = await asyncio.to_thread(session.run, None, feed)
        return Response(b"".join(o.tobytes() for o in outputs), media_type="application/octet-stream")

    async def ready() -> dict[str, bool]:
        return {"ready": True}

    infer.__annotations__ = {"request": Request}  # it looks there for what to pass
    app.add_api_route("/v2/models/{model}/infer", infer, methods=["POST"], response_model=None)
    app.add_api_route("/health/ready", ready)
    return app


# ---------------------------------------------------------------------- load


async def exchange(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: bytes) -> None:
    """Ask, and read the whole answer."""
    writer.write(request)
    head = await reader.readuntil(b"\r\n\r\n")
    if not head.startswith(b"HTTP/1.1 200"):
        raise RuntimeError(head.decode("latin-1"))
    found = re.search(rb"\r\ncontent-length: (\d+)", head, re.IGNORECASE)
    await reader.readexactly(int(found[1]) if found else 0)


async def _one(port: int, requests: list[bytes], end: float, times: list[float], first: int) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    i = first
    try:
        while (begun := time.perf_counter()) < end:
            await exchange(reader, writer, requests[i % len(requests)])
            times.append(time.perf_counter() - begun)
            i += 1
    finally:
        writer.close()


async def load(port: int, requests: list[bytes], clients: int, seconds: float) -> list[float]:
    """Latencies of all requests within some seconds."""
    times: list[float] = []
    end = time.perf_counter() + seconds
    await asyncio.gather(*(_one(port, requests, end, times, i) for i in range(clients)))
    return times


def descendants(pid: int) -> list[int]:
    """Processes that a process has started, and those they have."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [found for child in map(int, children) for found in (child, *descendants(child))]


def cpu_seconds(pid: int) -> float:
    """CPU time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Server:
    """One of the servers, started."""

    def __init__(self, kind: str, name: str, path: Path, answer: int, python: str = sys.executable) -> None:
        import socket

        self.kind, self.name = kind, name

        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        arguments = [str(HERE), "--serve", kind, name, str(path), str(self.port), str(answer)]
        if kind in PEERS:
            arguments = [serving_peers.__file__, kind, str(path), str(self.port)]
        self.process = subprocess.Popen([python, *arguments], env=self._environment(python), stdout=subprocess.DEVNULL)
        end = time.monotonic() + 120
        while not self._ready():
            if self.process.poll() is not None or time.monotonic() > end:
                raise RuntimeError(f"{kind} did not start")
            time.sleep(0.1)

    def _environment(self, python: str) -> dict[str, str]:
        """One of its own where it is another Python's, which must not find our packages."""
        ours = python == sys.executable
        return dict(os.environ) if ours else {**os.environ, "PYTHONPATH": str(HERE.parent)}

    def request(self, feed: dict[str, np.ndarray]) -> bytes:
        """A request in its form."""
        peer = self.kind in PEERS
        return serving_peers.request(self.kind, feed, self.port) if peer else encode(self.name, feed, self.port)

    def cpu_seconds(self) -> float:
        """CPU time of its processes so far."""
        own = self.process.pid
        return sum(map(cpu_seconds, [own, *descendants(own)]))

    def _ready(self) -> bool:
        import httpx

        path = {"litserve": "/health", "mlserver": "/v2/models/m/ready"}.get(self.kind, "/health/ready")
        try:
            return httpx.get(f"http://127.0.0.1:{self.port}{path}", trust_env=False).status_code == 200
        except httpx.TransportError:
            return False

    def stop(self) -> None:
        """End it, and the processes that it leaves behind."""
        others = descendants(self.process.pid)
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(60)
        for pid in others:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def engine(path: Path, feeds: list[dict[str, np.ndarray]], clients: int, seconds: float) -> tuple[float, float]:
    """Requests a second, and a CPU second, of the batcher in this process."""
    import pyflame_rt
    from pyflame_rt.batching import BatchConfig, DynamicBatcher

    counts, end = [0] * clients, time.perf_counter() + seconds
    begun = time.process_time()
    with DynamicBatcher(pyflame_rt.InferenceSession(str(path)), BatchConfig(max_latency_us=1000)) as batcher:

        def work(number: int) -> None:
            while time.perf_counter() < end:
                batcher.infer(feeds[counts[number] % len(feeds)])
                counts[number] += 1

        threads = [threading.Thread(target=work, args=(i,)) for i in range(clients)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return sum(counts) / seconds, sum(counts) / (time.process_time() - begun)


def measure(name: str, options: argparse.Namespace, folder: Path) -> None:
    """All servers on one model."""
    import pyflame_rt

    path, feeds = build(name, folder, options.quick)
    with pyflame_rt.InferenceSession(str(path)) as session:
        answer = sum(a.nbytes for a in session.run(None, feeds[0]))
    kinds = ["ours", "bare"]
    if importlib.util.find_spec("fastapi") and importlib.util.find_spec("onnxruntime"):
        kinds.append("fastapi")
    if importlib.util.find_spec("litserve"):
        kinds.append("litserve")
    servers = {kind: Server(kind, name, path, answer) for kind in kinds}
    if options.mlserver:
        servers["mlserver"] = Server("mlserver", name, path, answer, options.mlserver)
    figures: dict[str, list[tuple[float, float, float, float]]] = {kind: [] for kind in servers}
    clients = 1 if options.alone else options.clients
    try:
        for server in servers.values():  # everybody has seen every shape before it counts
            asyncio.run(load(server.port, [server.request(feed) for feed in feeds], clients, 1.0))
        for _ in range(options.rounds):
            for kind, server in servers.items():
                before = server.cpu_seconds()
                requests = [server.request(feed) for feed in feeds]
                times = sorted(asyncio.run(load(server.port, requests, clients, options.seconds)))
                used = max(server.cpu_seconds() - before, 1e-9)
                rate = len(times) / options.seconds
                figures[kind].append(
                    (rate, times[len(times) // 2] * 1e3, times[int(len(times) * 0.99)] * 1e3, len(times) / used)
                )
    finally:
        for server in servers.values():
            server.stop()
    for kind, rows in figures.items():
        rate, p50, p99, per_cpu = (statistics.median(column) for column in zip(*rows, strict=True))
        times = f"p50 {p50:8.2f} ms  p99 {p99:8.2f} ms"
        print(f"{name:10} {kind:8} {rate:9.1f} req/s  {times}  {per_cpu:9.1f} req per CPU second")
    rate, per_cpu = engine(path, feeds, clients, options.seconds)
    print(f"{name:10} {'engine':8} {rate:9.1f} req/s  {'':30}  {per_cpu:9.1f} req per CPU second")


def main() -> None:
    """Measure, and print a line for each server and model."""
    if sys.argv[1:2] == ["--serve"]:
        kind, name, path, port, answer = sys.argv[2:7]
        serve(kind, name, path, int(port), int(answer))
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--filter", default="", help="a regular expression on the names of models")
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="small models")
    parser.add_argument("--alone", action="store_true", help="one client")
    parser.add_argument("--mlserver", default="", help="the Python of an environment with MLServer and onnxruntime")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for name in ("mlp_tiny", "resnet18", "minilm"):
            if re.search(options.filter, name):
                measure(name, options, Path(folder))


if __name__ == "__main__":
    main()
