"""Build the image without Docker: every line of the Dockerfile in a Debian root (debootstrap, chroot), then probe it.

usage: python deploy/docker/rehearse.py [--root FOLDER] [--bind FOLDER ...] [--keep]

Needs root, debootstrap and the network. A stage is a copy of one root with Debian's Python, which stands for the base
image; COPY, RUN, ENV, WORKDIR and USER do what they say. Then the last stage's CMD is started as its user with a model
in /models, asked through every probe, and ended by SIGTERM. What the machine's package registries need (certificates,
pip's settings) is passed on; --bind shows folders of the machine inside, to be read, such as one of wheels.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve()
CONTEXT = HERE.parents[2]
PACKAGES = "python3,python3-venv,python-is-python3,ca-certificates"
PASSED_ON = re.compile(r"^(PIP_\w+|SSL_CERT_\w+|\w+_CA_BUNDLE|https?_proxy|no_proxy)$", re.IGNORECASE)
FILES = ("/etc/resolv.conf", "/etc/pip.conf", "/etc/ssl/certs/ca-certificates.crt")


def read(path: Path) -> list[tuple[str, str]]:
    """The instructions of a Dockerfile."""
    text = re.sub(r"\\\n", " ", re.sub(r"^#.*\n", "", path.read_text("utf-8"), flags=re.MULTILINE))
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return [(name, rest.strip()) for name, _, rest in (line.partition(" ") for line in lines)]


class Stage:
    """A root that instructions change.

    Args:
        root: a Debian root of its own.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.folder, self.user = "/", "0"
        self.env = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root"}
        self.command: list[str] = []

    def chroot(self, command: list[str], **more: Any) -> list[str]:
        """A command inside, as the stage's user in its folder."""
        spec = [] if self.user == "0" else [f"--userspec={self.user}:{self.user}"]
        env = {**{k: v for k, v in os.environ.items() if PASSED_ON.match(k)}, **self.env, **more}
        settings = [f"{name}={value}" for name, value in env.items()]
        inside = f"cd {shlex.quote(self.folder)} && exec {shlex.join(command)}"
        return ["chroot", *spec, str(self.root), "env", "-i", *settings, "sh", "-c", inside]

    def run(self, text: str) -> None:
        """RUN."""
        subprocess.run(self.chroot(["sh", "-ec", text]), check=True)

    def copy(self, text: str, stages: dict[str, Stage]) -> None:
        """COPY, also from another stage."""
        *given, target = text.split()
        source = CONTEXT
        if given[0].startswith("--from="):
            source = stages[given.pop(0).removeprefix("--from=")].root
        for name in given:
            place = self.root / Path(self.folder, target).as_posix().lstrip("/")
            found = source / name.lstrip("/")
            if found.is_dir():
                ignored = shutil.ignore_patterns("__pycache__")
                shutil.copytree(found, place, symlinks=True, dirs_exist_ok=True, ignore=ignored)
            else:
                place = place / found.name if target.endswith("/") else place
                place.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(found, place)

    def do(self, name: str, rest: str, stages: dict[str, Stage]) -> None:
        """One instruction."""
        if name == "RUN":
            self.run(rest)
        elif name == "COPY":
            self.copy(rest, stages)
        elif name == "WORKDIR":
            self.folder = rest
            (self.root / rest.lstrip("/")).mkdir(parents=True, exist_ok=True)
        elif name == "ENV":
            for key, value in (part.split("=", 1) for part in shlex.split(rest)):
                self.env[key] = re.sub(r"\$(\w+)", lambda found: self.env.get(found[1], ""), value)
        elif name == "USER":
            self.user = rest
        elif name == "CMD":
            self.command = json.loads(rest)
        elif name not in ("EXPOSE", "VOLUME", "HEALTHCHECK", "STOPSIGNAL"):
            raise SystemExit(f"{name} is not rehearsed")


def mirror() -> str:
    """Where this machine's Debian packages come from."""
    for file in sorted(Path("/etc/apt").rglob("*")):
        if file.suffix in (".list", ".sources") and (found := re.search(r"https?://\S+/debian\b", file.read_text())):
            return found[0]
    raise SystemExit("no mirror of Debian is configured here")


def build(work: Path, binds: list[str]) -> Stage:
    """All stages; the last one."""
    base = work / "base"
    if not (base / "usr" / "bin" / "python").exists():
        command = ["debootstrap", "--variant=minbase", f"--include={PACKAGES}", "bookworm", str(base), mirror()]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    stages: dict[str, Stage] = {}
    stage: Stage | None = None
    for name, rest in read(HERE.with_name("Dockerfile")):
        sys.stdout.write(f"{name} {rest}"[:110] + "\n")
        sys.stdout.flush()
        if name == "FROM":
            label = rest.partition(" AS ")[2] or "last"
            root = work / label
            subprocess.run(["cp", "-a", "--reflink=auto", str(base), str(root)], check=True)
            stage = stages[label] = Stage(root)
            prepare(root, binds)
            continue
        assert stage is not None
        stage.do(name, rest, stages)
    assert stage is not None
    return stage


def prepare(root: Path, binds: list[str]) -> None:
    """What a container has of its machine."""
    for file in FILES:
        inside = root / file.lstrip("/")
        if Path(file).exists():
            inside.unlink(missing_ok=True)  # a link there would lead out
            shutil.copy(file, inside)
    for place in ("/proc", "/dev", *binds):
        inside = root / place.lstrip("/")
        inside.mkdir(parents=True, exist_ok=True)
        subprocess.run(["mount", "--bind", place, str(inside)], check=True)
        if place in binds:
            subprocess.run(["mount", "-o", "remount,bind,ro", str(inside)], check=True)


def clean(work: Path, *, keep: bool) -> None:
    """Take the mounts away, and the stages."""
    mounts = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    for place in sorted((m for m in mounts if m.startswith(f"{work}/")), reverse=True):
        subprocess.run(["umount", "-l", place], check=True)
    for folder in [] if keep else work.iterdir():
        if folder.name != "base":
            shutil.rmtree(folder)


def probe(stage: Stage) -> None:
    """Start what the image starts, ask it, and end it as Docker does."""
    import numpy as np

    sys.path.insert(0, str(CONTEXT / "src"))
    import pyflame_rt

    graph = pyflame_rt.Graph("twice")
    graph.add_input("x", ["N", 3])
    graph.add_initializer("two", np.array(2, np.float32))
    graph.add_node("mul", "Mul", ["x", "two"], ["y"])
    graph.add_output("y", ["N", 3])
    pyflame_rt.export_onnx(graph, str(stage.root / "models" / "twice.onnx"))
    port = "18080"
    command = stage.chroot(stage.command, HTTP_PORT=port, METRICS_PORT="19091", HTTP_HOST="127.0.0.1")
    with subprocess.Popen(command) as server:
        try:
            ask(f"http://127.0.0.1:{port}", server)
            health = next(rest for name, rest in read(HERE.with_name("Dockerfile")) if name == "HEALTHCHECK")
            check = json.loads(health.partition(" CMD ")[2])
            subprocess.run(stage.chroot(check, HTTP_PORT=port), check=True)
            owner = os.stat(f"/proc/{server.pid}").st_uid
            assert owner == int(stage.user) != 0, owner
        finally:
            server.send_signal(signal.SIGTERM)
            code = server.wait(60)
    assert code == 0, f"the server ended with {code}"
    sys.stdout.write("the server answered, and ended when it was told to\n")


def ask(url: str, server: subprocess.Popen[bytes]) -> None:
    """Every probe, the metrics and a model."""
    end = time.monotonic() + 120
    while True:
        with contextlib.suppress(urllib.error.URLError, ConnectionError):
            if urllib.request.urlopen(f"{url}/health/ready", timeout=5).status == 200:
                break
        assert server.poll() is None, "the server did not start"
        assert time.monotonic() < end, "the server is not ready"
        time.sleep(0.2)
    for path in ("/health/live", "/v2/health/ready", "/", "/openapi.json", "/metrics"):
        assert urllib.request.urlopen(url + path, timeout=10).status == 200, path
    assert urllib.request.urlopen("http://127.0.0.1:19091/metrics", timeout=10).status == 200
    body = {"inputs": {"x": {"shape": [1, 3], "dtype": "float32", "data": [1, 2, 3]}}}
    asked = urllib.request.Request(f"{url}/v1/models/twice/infer", json.dumps(body).encode())
    found = json.load(urllib.request.urlopen(asked, timeout=60))
    assert found["outputs"]["y"]["data"] in ([2, 4, 6], [[2, 4, 6]]), found


def main() -> None:
    """Build, then probe."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, default=None, help="folder to build in; the Debian root in it is kept")
    parser.add_argument("--bind", action="append", default=[], help="a folder of this machine that stages see")
    parser.add_argument("--keep", action="store_true", help="leave the stages there")
    options = parser.parse_args()
    work = (options.root or Path(tempfile.mkdtemp())).resolve()
    clean(work, keep=False)
    try:
        probe(build(work, options.bind))
    finally:
        clean(work, keep=options.keep)
        if options.root is None:
            shutil.rmtree(work)


if __name__ == "__main__":
    main()
