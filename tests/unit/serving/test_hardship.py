"""Clients that leave, files that are broken, disks that are full, and many reloads."""

import gc
import json
import os
import socket
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

from pyflame_rt.serving import AsyncModelClient, ModelClient, ModelConfig
from tests.unit.generate.small_gpt import decoder
from tests.unit.serving.scene import ask, saved, serving
from tests.unit.serving.test_openai import write_tokenizer

X = np.ones((1, 3), np.float32)
INFER = "/v1/models/m/infer"
BODY = {"inputs": {"x": X.tolist()}}


def until(true, what):
    end = time.monotonic() + 120
    while not true():
        assert time.monotonic() < end, what
        time.sleep(0.002)


@pytest.mark.parametrize("stream", [False, True])
def test_text_is_not_written_for_who_has_gone(tmp_path, stream):
    write_tokenizer(tmp_path)
    with serving({}) as server:
        config = ModelConfig(tokenizer=str(tmp_path), warmup_requests=0)
        instance = server.load_model("gpt", decoder(), config=config)
        body = {"model": "gpt", "prompt": "hello", "max_tokens": 20_000, "stream": stream}
        data = json.dumps(body).encode()
        head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(data)}\r\n\r\n".encode()
        for wait in (False, True):
            with socket.create_connection(("127.0.0.1", server.http_port()), timeout=120) as connection:
                connection.sendall(head + data)
                if wait:
                    until(lambda: instance.in_use, "it begins")
            until(lambda: not instance.in_use, "it ends with its client")
        assert server.service.active == 0
        status, _, found = ask(server, "POST", "/v1/completions", {**body, "max_tokens": 2, "stream": False})
        assert (status, found["usage"]["completion_tokens"]) == (200, 2)


def test_bodies_in_pieces_have_a_budget_too():
    with serving(max_request_size=1 << 20, max_pending_bytes=1 << 20) as server:
        piece = b"80000\r\n" + bytes(0x80000) + b"\r\n"
        head = f"POST {INFER} HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
        address = ("127.0.0.1", server.http_port())
        with socket.create_connection(address, timeout=120) as first, socket.create_connection(address) as second:
            first.sendall(head + piece)
            second.settimeout(120)
            second.sendall(head)
            until(lambda: server.service.active == 2, "both are read")
            second.sendall(piece + piece)
            assert b"503" in second.recv(1 << 16).split(b"\r\n")[0]
        until(lambda: server.service.active == 0, "both have ended")
        assert ask(server, "POST", INFER, BODY)[0] == 200


@pytest.mark.parametrize("rubbish", [b"", b"not a model", bytes(1000), b"\x08\x07" * 500])
def test_a_broken_file_beside_a_model_that_serves(tmp_path, rubbish):
    saved(tmp_path / "m" / "1" / "model.onnx", 1.0)
    with serving({}, model_dir=str(tmp_path), hot_reload=True) as server:
        (tmp_path / "m" / "2").mkdir()
        draft = tmp_path / "m" / "2" / "draft"
        draft.write_bytes(rubbish)
        draft.replace(tmp_path / "m" / "2" / "model.onnx")
        (tmp_path / "other.onnx").write_bytes(rubbish)
        registry = server.registry()
        until(lambda: len(registry.list_versions("m")) == 2 and "other" in registry.list_models(), "it is seen")
        until(lambda: all(v.ready or v.reason != "not loaded" for v in registry.list_versions("m")), "it is tried")
        status, _, found = ask(server, "POST", INFER, BODY)
        assert (status, found["model_version"]) == (200, "1")
        assert ask(server, "POST", "/v1/models/m/versions/2/infer", BODY)[0] == 503
        saved(tmp_path / "m" / "2" / "model.onnx", 2.0)  # mended
        until(lambda: registry.get("m", "2") is not None, "it is loaded")
        assert ask(server, "POST", INFER, BODY)[2]["outputs"]["y"]["data"] == [[2.0, 2.0, 2.0]]


FULL_DISK = """
import errno, os, sys
from pathlib import Path
from tests.unit.serving.test_hardship import BODY, INFER, ModelConfig, ask, saved, serving, until

folder = os.environ["PYFLAME_CACHE_DIR"]
replace, tried = os.replace, []

def full(source, target, **settings):
    if str(target).startswith(folder):
        tried.append(target)
        raise OSError(errno.ENOSPC, "No space left on device")
    return replace(source, target, **settings)

os.replace = full
path = saved(Path(sys.argv[1]), 7.0)
with serving({}) as server:
    server.registry().register_model(ModelConfig(name="m", model_path=str(path), warmup_requests=1))
    assert ask(server, "POST", INFER, BODY)[2]["outputs"]["y"]["data"] == [[7.0, 7.0, 7.0]]
until(lambda: tried, "something was to be kept")
"""


def test_a_full_disk_under_the_cache_stops_nobody(tmp_path):
    # A process of its own: what others compiled before would not be kept again.
    settings = {**os.environ, "PYFLAME_CACHE_DIR": str(tmp_path / "cache"), "PYFLAME_CACHE": "1"}
    command = [sys.executable, "-c", FULL_DISK, str(tmp_path / "m.onnx")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, env=settings)
    assert done.returncode == 0, done.stderr


def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.slow
def test_a_hundred_reloads_under_load(tmp_path):
    """10,000 requests: none is lost, none has rows of two versions, and memory stays."""
    path = saved(tmp_path / "m.onnx", 1.0)
    with serving({}) as server:
        registry = server.registry()
        registry.register_model(ModelConfig(name="m", model_path=str(path), warmup_requests=1))
        end, problems, counts, sizes = threading.Event(), [], [0] * 8, []

        def work(number):
            with ModelClient(server.url, timeout=120, max_retries=0) as client:
                while not end.is_set() or sum(counts) < 10_000:
                    rows = np.full((1 + number % 4, 3), 1.0 + counts[number] % 7, np.float32)
                    answer = client.infer("m", {"x": rows})
                    got = answer.outputs["y"] / rows if answer.success else None
                    if got is None or got.min() != got.max() or got.flat[0] not in range(1, 103):
                        problems.append(answer)
                    counts[number] += 1

        threads = [threading.Thread(target=work, args=(n,)) for n in range(len(counts))]
        for thread in threads:
            thread.start()
        for factor in range(2, 102):
            saved(path, float(factor))
            registry.reload("m", "1")
            until(lambda f=factor: sum(counts) >= 100 * (f - 1) or bool(problems), "requests go on")
            gc.collect()
            sizes.append(resident())
        end.set()
        for thread in threads:
            thread.join(240)
        last = ask(server, "POST", INFER, BODY)[2]["outputs"]["y"]["data"][0][0]
    assert not problems
    assert sum(counts) >= 10_000
    assert last == 101
    assert max(sizes[-10:]) <= 1.05 * max(sizes[20:30]), sizes


def test_the_client_of_coroutines_is_the_same():
    public = [name for name in dir(ModelClient) if not name.startswith("_")]
    assert public == [name for name in dir(AsyncModelClient) if not name.startswith("_")]
