"""The Python blocks of the documentation run, page by page, in order."""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
README = ROOT / "README.md"
PAGES = [
    ROOT / "CONTRIBUTING.md",
    ROOT / "docs" / "wse.md",
    *sorted((ROOT / "docs" / "guide").glob("*.md")),
]
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
TIMEOUT = 280
# Packages that a page is about and this one does not need: make other-frameworks.
NEEDS = {"keras-and-scikit-learn": ("keras", "sklearn", "skl2onnx")}


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


def run(code, page, folder, warnings="error"):
    """Run a program in a process of its own: pages choose backends and register operators."""
    path = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    return subprocess.run(
        [sys.executable, "-W", warnings, "-c", f"exec(compile({code!r}, {str(page)!r}, 'exec'))"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path, "MKL_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
    )


@pytest.mark.parametrize("page", [p for p in PAGES if BLOCK.search(p.read_text("utf-8"))], ids=lambda p: p.stem)
def test_examples_of_page_run(page, tmp_path):
    if missing := [name for name in NEEDS.get(page.stem, ()) if importlib.util.find_spec(name) is None]:
        pytest.skip(f"needs {', '.join(missing)}")
    theirs = "ignore" if page.stem in NEEDS else "error"  # other packages warn of each other
    result = run(program(page.read_text("utf-8")), page, tmp_path, theirs)
    assert result.returncode == 0, f"{page.name}:\n{result.stdout}\n{result.stderr}"


@pytest.mark.parametrize("index", range(len(BLOCK.findall(README.read_text("utf-8")))))
def test_each_block_of_the_readme_is_a_program(index, tmp_path):
    block = BLOCK.findall(README.read_text("utf-8"))[index]
    result = run(block, README, tmp_path)
    assert result.returncode == 0, f"block {index}:\n{block}\n{result.stdout}\n{result.stderr}"
    shown = re.findall(r"^print\(.*\)  # ([{\[(\d].*)$", block, re.MULTILINE)
    for line in shown:  # what a comment says is printed is printed
        assert line in result.stdout.splitlines()


def test_the_wafer_block_writes_the_grid_that_it_names():
    (block,) = [b for b in BLOCK.findall(README.read_text("utf-8")) if "compile_to_csl" in b]
    assert "# {'rows': 4, 'cols': 4}" in block
    assert "4 x 4 processing elements" in README.read_text("utf-8")


def test_targets_of_the_readme_exist():
    targets = set(re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
    named = set(re.findall(r"`make ([a-z-]+)", README.read_text("utf-8")))
    assert named
    assert named <= targets


PROSE = [README, ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


def commands():
    """Every command line of the documentation: the page, and its words."""
    for page in PROSE:
        text = page.read_text("utf-8")
        shell = "\n".join(re.findall(r"^```(?:console|bash|shell|sh)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL))
        lines = [line.removeprefix("$ ") for line in shell.replace("\\\n", " ").splitlines()]
        for line in [*lines, *re.findall(r"`([^`\n]+)`", re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S))]:
            words = line.partition(" #")[0].split()
            while words and re.fullmatch(r"[A-Z_]+=\S*", words[0]):
                words = words[1:]
            if words:
                yield page, words


def test_commands_of_the_documentation_have_these_options():
    from typer.main import get_command

    from pyflame_rt.cli import app

    known = get_command(app).commands
    seen = set()
    for page, (name, *words) in commands():
        if name != "pyflame-rt" or not words or words[0].startswith("-"):
            continue
        options = {o for p in known[words[0]].params for o in (*p.opts, *p.secondary_opts)}
        used = {w.partition("=")[0] for w in words[1:] if re.match(r"--?[a-z]", w)}
        assert used <= options | {"--help"}, f"{page.name}: {words}"
        seen.add(words[0])
    assert len(seen) > 10


def test_commands_of_the_documentation_name_what_exists():
    targets = set(re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
    count = 0
    for page, (name, *words) in commands():
        if name == "make":
            named = [w for w in words if re.fullmatch(r"[a-z][a-z-]+", w)]
            assert set(named) <= targets, f"{page.name}: make {words}"
        elif name in ("pytest", "python") and words and words[0] != "-c":
            if words[0] == "-m":
                assert importlib.util.find_spec(words[1]) is not None, f"{page.name}: {words}"
            for path in (w for w in words if re.match(r"(tests|benchmarks|tools|utils)/", w)):
                assert (ROOT / path).exists(), f"{page.name}: {path}"
        else:
            continue
        count += 1
    assert count > 30


def test_what_the_demo_is_said_to_do_is_done():
    said = next(line for line in README.read_text("utf-8").splitlines() if line.startswith("make demo"))
    steps = {"train a model": "train_digits(", "serve it": "serve(", "run it on the wafer": "run_on_wafer("}
    main = (ROOT / "src" / "pyflame" / "demo.py").read_text("utf-8").partition("def main")[2]
    for words, call in steps.items():
        assert words in said
        assert call in main
