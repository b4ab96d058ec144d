"""Several server processes on one socket: those that die are started again, signals reach them all."""

from __future__ import annotations

import logging
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from typing import TYPE_CHECKING

from prometheus_client import multiprocess

from pyflame_rt.serving.hosting import bind, wait_for_signal

if TYPE_CHECKING:
    from pyflame_rt.serving.config import ServerConfig

__all__ = ["inherited_socket", "supervise"]

log = logging.getLogger("pyflame_rt.serving")
SOCKET = "PYFLAME_SERVING_SOCKET"  # the number of the file that the processes share
METRICS = "PROMETHEUS_MULTIPROC_DIR"  # where they count, so that any of them answers for all
QUICK_SECONDS, MAX_QUICK = 5.0, 5  # processes that die so soon, so often in a row, are not started again


def inherited_socket() -> socket.socket | None:
    """The socket that a supervisor has given this process."""
    number = os.environ.get(SOCKET, "")
    return socket.socket(fileno=int(number)) if number else None


def supervise(config: ServerConfig, processes: int) -> int:
    """Run the server in several processes until a signal comes; the exit code."""
    listening = bind(config.http.host, config.http.port)
    folder = tempfile.mkdtemp(prefix="pyflame-metrics-")
    port = listening.getsockname()[1]
    log.info("serving at %s:%s in %s processes", config.http.host, port, processes, extra={"fields": {"port": port}})
    crew = _Crew(listening, folder)
    try:
        crew.start(processes)
        stopped = wait_for_signal(crew.failed)
        crew.stop()
        return 0 if stopped and not crew.failed.is_set() else 1
    finally:
        listening.close()
        shutil.rmtree(folder, ignore_errors=True)


class _Crew:
    """The processes, each watched by a thread."""

    def __init__(self, listening: socket.socket, folder: str) -> None:
        self._listening, self._folder = listening, folder
        self._lock = threading.Lock()
        self._running: set[subprocess.Popen[bytes]] = set()
        self._threads: list[threading.Thread] = []
        self._ending = False
        self.failed = threading.Event()

    def start(self, count: int) -> None:
        self._threads = [
            threading.Thread(target=self._keep, name="pyflame-rt-keeper", daemon=True) for _ in range(count)
        ]
        for thread in self._threads:
            thread.start()

    def _keep(self) -> None:
        """One place: a process in it, always."""
        quick = 0
        while True:
            begun = time.monotonic()
            with self._lock:
                if self._ending:
                    return
                process = self._spawn()
                self._running.add(process)
            code = process.wait()
            with self._lock:
                self._running.discard(process)
                if self._ending:
                    return
            multiprocess.mark_process_dead(process.pid, self._folder)
            log.error("server process %s ended with %s and is started again", process.pid, code)
            quick = quick + 1 if time.monotonic() - begun < QUICK_SECONDS else 0
            if quick >= MAX_QUICK:
                log.error("server processes end as soon as they start: giving up")
                self.failed.set()
                return
            time.sleep(0.05 * 2**quick)

    def _spawn(self) -> subprocess.Popen[bytes]:
        number = self._listening.fileno()
        environment = {**os.environ, SOCKET: str(number), METRICS: self._folder, "HTTP_PROCESSES": "1"}
        return subprocess.Popen([sys.executable, "-m", "pyflame_rt.serving"], env=environment, pass_fds=[number])

    def stop(self) -> None:
        """Tell all of them, and wait."""
        with self._lock:
            self._ending = True
            for process in self._running:
                process.send_signal(signal.SIGTERM)
        for thread in self._threads:
            thread.join()
