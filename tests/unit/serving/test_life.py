"""Beginnings and ends: callbacks, signals, the environment, the command line."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

import pyflame_rt
from pyflame_rt.serving import ModelClient, ModelServer, ModelServerBuilder, ServerConfig
from tests.unit.serving.scene import Gate, ask, config, saved, scaled, serving, tensor

X = np.ones((1, 3), np.float32)
BODY = {"inputs": {"x": tensor(X)}}


def test_ready_is_told_once_whenever_one_asks():
    server = ModelServer(config())
    told = []
    server.on_ready(lambda: told.append("before"))
    with server:
        server.on_ready(lambda: told.append("after"))
        assert told == ["before", "after"]
        assert server.is_running()
        with pytest.raises(pyflame_rt.PyFlameRTError, match="already running"):
            server.start()
    assert not server.is_running()
    server.stop()  # a server that does not run stays as it is
    server.wait()
    assert told == ["before", "after"]


def test_wait_ends_with_stop():
    server = ModelServer(config())
    server.start()
    port = server.http_port()
    threading.Timer(0.1, server.stop).start()
    server.wait()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port))


def test_a_server_is_built_in_one_expression(tmp_path):
    path = saved(tmp_path / "m.pfm")
    built = (
        ModelServerBuilder().host("127.0.0.1").port(0).workers(3).enable_metrics()
        .add_model("m", str(path), "1").enable_batching(8, 700).api_key("k").build()
    )  # fmt: skip
    with built as server:
        found = server.registry().config("m")
        assert (found.max_batch_size, found.batch_timeout_us) == (8, 700)
        assert ModelClient(server.url, api_key="k").infer("m", {"x": X}).outputs["y"].tolist() == [[2.0, 2.0, 2.0]]
        assert server.get_stats()["models"]["m"]["1"]["completed_requests"] == 1
    with pytest.raises(pyflame_rt.InputError, match="port"):
        ModelServerBuilder().port(-1).build()


def test_requests_under_way_are_answered_before_the_end():
    with serving() as server:
        gate = Gate(server)
        answers = []
        asking = threading.Thread(target=lambda: answers.append(ask(server, "POST", "/v1/models/m/infer", BODY)))
        asking.start()
        assert gate.inside.acquire(timeout=120)
        ending = threading.Thread(target=server.stop)
        ending.start()
        while not server.service.draining:
            time.sleep(0.001)
        gate.open()
        asking.join(120)
        ending.join(120)
        assert answers[0][0] == 200


def test_a_server_that_ends_says_so_first():
    with serving(drain_ms=1500) as server:
        ending = threading.Thread(target=server.stop)
        ending.start()
        while not server.service.draining:
            time.sleep(0.001)
        assert ask(server, "GET", "/health/ready")[0] == 503
        assert ask(server, "GET", "/health/live")[0] == 200
        status, answer, _ = ask(server, "POST", "/v1/models/m/infer", BODY)
        assert (status, answer.getheader("connection")) == (200, "close")
        ending.join(120)


def started(environment, tmp_path, pattern=r'"url":"([^"]+)"', form="{}"):
    """``python -m pyflame_rt.serving``, which tells in its log where it listens."""
    environment = {"HTTP_HOST": "127.0.0.1", "HTTP_PORT": "0", "MODEL_DIR": str(tmp_path), **environment}
    log = tmp_path / "log.txt"
    with open(log, "wb") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", "pyflame_rt.serving"],
            env={**os.environ, **environment},
            stderr=file,
            preexec_fn=lambda: signal.signal(signal.SIGTERM, signal.SIG_DFL),
        )
    end = time.monotonic() + 120
    while not (told := re.search(pattern, log.read_text())):
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < end
        time.sleep(0.05)
    client = ModelClient(form.format(told[1]), timeout=120, max_retries=0)
    assert client.wait_for_ready(120)
    return process, client


def test_sigterm_under_load_loses_nothing(tmp_path):
    saved(tmp_path / "m" / "1" / "model.onnx", 3.0)
    environment = {"MAX_BATCH_SIZE": "4", "LOG_LEVEL": "info", "HTTP_DRAIN_MS": "300"}
    process, client = started(environment, tmp_path)
    lost, counts, refused = [], [0] * 4, [0] * 4

    def work(number):
        with ModelClient(client.url, timeout=120, max_retries=0) as mine:
            while True:
                try:
                    answer = mine.infer("m", {"x": X})
                except ConnectionError as error:
                    if "refused" not in str(error):  # only who comes after the end is turned away
                        lost.append(error)
                    refused[number] = 1
                    return
                if not answer.success or answer.outputs["y"][0, 0] != 3.0:
                    lost.append(answer)
                counts[number] += 1

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    while min(counts) < 5:
        time.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    assert process.wait(120) == 0
    for thread in threads:
        thread.join(120)
    client.close()
    assert not lost
    assert refused == [1] * 4
    lines = [json.loads(line) for line in (tmp_path / "log.txt").read_text().splitlines()]
    asked = [line for line in lines if line.get("path") == "/v1/models/m/infer"]
    assert len(asked) == sum(counts)
    assert len({line["request_id"] for line in asked}) == len(asked)
    assert {line["status"] for line in asked} == {200}


def test_a_process_that_is_killed_is_replaced_and_missed_by_nobody(tmp_path):
    saved(tmp_path / "m" / "1" / "model.onnx", 3.0)
    environment = {"HTTP_PROCESSES": "2", "LOG_LEVEL": "info"}
    process, client = started(environment, tmp_path, r'"port":(\d+)', "http://127.0.0.1:{}")
    end, problems, counts = threading.Event(), [], [0] * 3

    def work(number):
        with ModelClient(client.url, timeout=120, max_retries=8, retry_delay=0.01) as mine:
            while not end.is_set():
                answer = mine.infer("m", {"x": X})
                if not answer.success or answer.outputs["y"][0, 0] != 3.0:
                    problems.append(answer)
                counts[number] += 1

    threads = [threading.Thread(target=work, args=(n,)) for n in range(3)]
    for thread in threads:
        thread.start()
    log = tmp_path / "log.txt"

    def listening():
        return len(re.findall('"url":', log.read_text()))

    def wait(condition):
        last = time.monotonic() + 120
        while not condition():
            assert time.monotonic() < last
            time.sleep(0.02)

    wait(lambda: listening() == 2)
    children = subprocess.run(
        ["pgrep", "-P", str(process.pid)], capture_output=True, text=True, check=True
    ).stdout.split()
    assert len(children) == 2
    os.kill(int(children[0]), signal.SIGKILL)
    wait(lambda: listening() == 3)  # another took its place
    before = list(counts)
    wait(lambda: all(now > then + 5 for now, then in zip(counts, before, strict=True)))
    end.set()
    for thread in threads:
        thread.join(120)
    assert not problems
    text = client._http.get("/metrics").text
    answered = re.search(r'pyflame_request_total\{model="m",status="success"\} ([\d.]+)', text)
    assert float(answered[1]) >= sum(counts)  # whichever process is asked, it answers for all
    client.close()
    process.send_signal(signal.SIGTERM)
    assert process.wait(120) == 0


def test_the_environment_is_read():
    environment = {
        "HTTP_PORT": "8081", "HTTP_WORKERS": "4", "ENABLE_BATCHING": "false", "MAX_BATCH_SIZE": "16",
        "MODEL_DIR": "/models", "MAX_MEMORY_MB": "2", "METRICS_ENABLED": "no", "LOG_LEVEL": "ERROR", "API_KEYS": "a, b",
        "BATCH_TIMEOUT_US": "9", "HTTP_REQUEST_TIMEOUT_MS": "70", "GRPC_PORT": "7", "METRICS_PORT": "9091",
    }  # fmt: skip
    found = ServerConfig.from_env(environment)
    assert (found.http.port, found.http.num_workers, found.model_dir) == (8081, 4, "/models")
    assert (found.max_memory, found.enable_metrics, found.log_level) == (2 << 20, False, "error")
    assert (found.api_keys, found.http.request_timeout_ms, found.grpc.port) == (["a", "b"], 70, 7)
    defaults = found.defaults(environment)
    assert (defaults.enable_batching, defaults.max_batch_size, defaults.batch_timeout_us) == (False, 16, 9)
    for name, value in (("HTTP_PORT", "many"), ("METRICS_ENABLED", "perhaps")):
        with pytest.raises(pyflame_rt.InputError, match=name):
            ServerConfig.from_env({name: value})


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"HTTP_PORT": "x"}, "HTTP_PORT"),
        ({"MODEL_DIR": "none here"}, "none here"),
        ({"HTTP_PROCESSES": "0"}, "HTTP_PROCESSES"),
        ({"HTTP_PROCESSES": "2", "MODEL_CONTROL": "1"}, "goes without"),
    ],
)
def test_what_cannot_be_served_is_one_sentence(environment, message, tmp_path):
    found = subprocess.run(
        [sys.executable, "-m", "pyflame_rt.serving"],
        env={**os.environ, **environment},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert found.returncode == 1
    assert found.stderr.startswith("error: ")
    assert message in found.stderr
    assert "Traceback" not in found.stderr


def test_the_command_line_serves(tmp_path):
    path = saved(tmp_path / "twice.onnx", 2.0)
    command = [sys.executable, "-m", "pyflame_rt.cli", "serve", str(path), "--port", "0", "--log-level", "error"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        url = re.match(r"(http://127\.0\.0\.1:\d+) serves twice", line)
        assert url, line
        with ModelClient(url[1]) as client:
            assert client.infer("twice", {"x": X}).outputs["y"].tolist() == [[2.0, 2.0, 2.0]]
        process.send_signal(signal.SIGTERM)
        assert process.wait(120) == 0


def test_without_the_extra_there_is_one_sentence():
    code = (
        "import sys; sys.modules['starlette'] = None\n"
        "from importlib import util; find = util.find_spec\n"
        "util.find_spec = lambda name, *rest: None if name == 'starlette' else find(name, *rest)\n"
        "import pyflame as pf, pyflame_rt\n"
        "try:\n    pyflame_rt.serving\nexcept pyflame_rt.MissingExtra as error:\n    print(error)\n"
        "try:\n    pf.serving.ModelServer(pf.nn.ReLU()).start_background()\nexcept pyflame_rt.MissingExtra as error:\n"
        "    print(error)\nprint(pf.serving.InferenceEngine(pf.nn.ReLU()).infer(pf.ones([1])).tolist())\n"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    lines = found.stdout.splitlines()
    assert lines == ["serving models needs starlette: pip install 'pyflame[serve]'"] * 2 + ["[1.0]"], found.stderr


def test_a_model_that_was_loaded_before_the_start_stays_after_the_end():
    server = ModelServer(config())
    server.load_model("m", scaled())
    server.start()
    server.stop()
    assert server.registry().has("m")
    server.registry().unload_all()
