"""The Python blocks of the documentation run, page by page, in order."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "docs" / "wse.md",
    *sorted((ROOT / "docs" / "guide").glob("*.md")),
]
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
TIMEOUT = 280


def program(text):
    """The blocks of a page as one program, every line where it is in the page."""
    lines = [""] * len(text.splitlines())
    for block in BLOCK.finditer(text):
        first = text.count("\n", 0, block.start(1))
        code = block[1].splitlines()
        lines[first : first + len(code)] = code
    return "\n".join(lines)


def test_lines_keep_their_numbers():
    assert program("a\n```python\nx = 1\n```\n```console\nmake\n```\n") == "\n\nx = 1\n\n\n\n"


@pytest.mark.parametrize("page", [p for p in PAGES if BLOCK.search(p.read_text("utf-8"))], ids=lambda p: p.stem)
def test_examples_of_page_run(page, tmp_path):
    # A process of its own: pages choose backends and register operators.
    script = f"exec(compile({program(page.read_text('utf-8'))!r}, {str(page)!r}, 'exec'))"
    path = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    result = subprocess.run(
        [sys.executable, "-W", "error", "-c", script],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": path, "MKL_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
    )
    assert result.returncode == 0, f"{page.name}:\n{result.stdout}\n{result.stderr}"
