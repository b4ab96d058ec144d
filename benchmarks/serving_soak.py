"""A server at 80 % of what it can do, for an hour: no request lost, memory flat.

usage: python benchmarks/serving_soak.py [--minutes 60] [--load 0.8] [--clients 16]

The server is a process of its own with two models (resnet18 in small, a tiny product). First it is asked as fast as it
answers, for some seconds; then at the given share of that rate, from kept connections that are made anew now and then,
with a reload of a model every minute. Memory is the server's resident set, read every few seconds: the median of the
last fifth must be within 5 % of that of the second fifth. Exits with 1 where that does not hold.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import tempfile
import time
from pathlib import Path

import httpx
import serving

FULL_SECONDS = 10.0
LIMIT = 1.05
ANEW = 500  # requests after which a client makes a new connection
MODELS = ("mlp_tiny", "resnet18")


def resident(pid: int) -> float:
    """Megabytes of a process."""
    line = next(text for text in Path(f"/proc/{pid}/status").read_text().splitlines() if text.startswith("VmRSS"))
    return int(line.split()[1]) / 1024


async def paced(port: int, requests: list[bytes], rate: float, end: float, times: list[float]) -> None:
    """One client: so many requests a second, on connections of a few hundred."""
    begun, count = time.perf_counter(), 0
    while time.perf_counter() < end:
        until = min(end, begun + (count + ANEW) / rate)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            while (now := time.perf_counter()) < until:
                await asyncio.sleep(max(0.0, begun + count / rate - now))
                sent = time.perf_counter()
                await serving.exchange(reader, writer, requests[count % len(requests)])
                times.append(time.perf_counter() - sent)
                count += 1
        finally:
            writer.close()


async def watch(server: serving.Server, end: float, memory: list[float]) -> None:
    """Read the memory, and have a model loaded again every minute."""
    last = time.perf_counter()
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{server.port}", trust_env=False, timeout=60) as client:
        while (now := time.perf_counter()) < end:
            memory.append(resident(server.process.pid))
            if now - last >= 60:
                last = now
                (await client.post(f"/v1/models/{MODELS[0]}/load")).raise_for_status()
            await asyncio.sleep(min(2.0, max(end - now, 0.01)))


def verdict(memory: list[float]) -> float:
    """How much more memory the end took than what came after the beginning."""
    fifth = max(len(memory) // 5, 1)
    return statistics.median(memory[-fifth:]) / statistics.median(memory[fifth : 2 * fifth])


async def soak(server: serving.Server, requests: list[bytes], options: argparse.Namespace) -> int:
    """The whole; the exit code."""
    full = await serving.load(server.port, requests, options.clients, FULL_SECONDS)
    rate = options.load * len(full) / FULL_SECONDS / options.clients
    end = time.perf_counter() + options.minutes * 60
    times: list[float] = []
    memory: list[float] = []
    clients = [paced(server.port, requests, rate, end, times) for _ in range(options.clients)]
    await asyncio.gather(watch(server, end, memory), *clients)
    times.sort()
    ratio = verdict(memory)
    share = len(times) / (options.minutes * 60) / (len(full) / FULL_SECONDS)
    print(
        f"{len(times)} requests, none lost, {share:.2f} of the full rate; p50 {times[len(times) // 2] * 1e3:.2f} ms, "
        f"p99 {times[int(len(times) * 0.99)] * 1e3:.2f} ms; {memory[0]:.0f} MB at first, {memory[-1]:.0f} at last, "
        f"{ratio:.3f} (at most {LIMIT})"
    )
    return int(ratio > LIMIT)


def main() -> int:
    """Serve, soak, and say whether memory was flat."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--load", type=float, default=0.8, help="share of what the server can do")
    parser.add_argument("--clients", type=int, default=16)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        built = {name: serving.build(name, Path(folder), quick=True) for name in MODELS}
        server = serving.Server("folder", "", Path(folder), 0)
        try:
            requests = [serving.encode(name, feed, server.port) for name, (_, feeds) in built.items() for feed in feeds]
            return asyncio.run(soak(server, requests, options))
        finally:
            server.stop()


if __name__ == "__main__":
    sys.exit(main())
