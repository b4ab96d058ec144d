"""Schemathesis over every documented route of a server, without and with a key: all its checks, some thousand requests.

usage: python -m tests.fuzz.serving_schema [--examples 300] [--seed N]
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.unit.serving.scene import scaled, serving

SETTINGS = Path(__file__).with_name("schemathesis.toml")
KEY = "a-key-of-the-fuzzer"


def ask(url: str, examples: int, seed: int, key: str, report: Path) -> int:
    """Have every route asked; the exit code of schemathesis."""
    command = [sys.executable, "-m", "schemathesis.cli", "--config-file", str(SETTINGS)]
    command += ["run", f"{url}/openapi.json", "--checks", "all"]
    command += ["--max-examples", str(examples), "--seed", str(seed), "--continue-on-failure", "--no-color"]
    command += ["--header", f"X-API-Key: {key}"] if key else []
    command += ["--request-timeout", "30", "--report", "ndjson", "--report-dir", str(report)]
    return subprocess.run(command, check=False).returncode


def main() -> int:
    """Both servers; 0 when nothing was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--examples", type=int, default=300, help="requests for each route and way of making them")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        for key in ("", KEY):
            keys = {"api_keys": [key]} if key else {}
            with serving({"m": scaled(), "n": scaled(3.0)}, model_control=False, **keys) as server:
                failed |= ask(server.url, options.examples, options.seed, key, Path(folder))
                failed |= server.get_stats()["active_requests"] != 0
    return failed


if __name__ == "__main__":
    sys.exit(main())
