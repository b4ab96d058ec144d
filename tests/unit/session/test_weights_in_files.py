"""Models larger than the memory they may take: weights stay in files that nobody writes to."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

import pyflame_rt
from pyflame_rt.graph.budget import limits_of_groups, machine_memory
from pyflame_rt.loading import write_model

WIDTH, LAYERS = 1024, 12  # 4 MiB each
LIMIT = 16 << 20


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    generator, graph = np.random.default_rng(0), pyflame_rt.Graph("tall")
    graph.add_input("x0", ["N", WIDTH])
    for i in range(LAYERS):
        graph.add_initializer(f"w{i}", generator.standard_normal((WIDTH, WIDTH), np.float32) / 32)
        graph.add_node(f"m{i}", "MatMul", [f"x{i}", f"w{i}"], [f"x{i + 1}"])
    graph.add_output(f"x{LAYERS}", ["N", WIDTH])
    path = tmp_path_factory.mktemp("tall") / "tall.onnx"
    write_model(graph, path)
    return path


@pytest.mark.parametrize("rows", [1, 7])
def test_answers_are_the_same(model, rows):
    feed = {"x0": np.random.default_rng(1).standard_normal((rows, WIDTH), np.float32)}
    with pyflame_rt.InferenceSession(model) as session:
        (expected,) = session.run(None, feed)
    options = pyflame_rt.SessionOptions(immutable_model=True, memory_limit=LIMIT)
    for _ in range(2):  # packed, then found in the cache
        with pyflame_rt.InferenceSession(model, options) as session:
            (answer,) = session.run(None, feed)
            assert set(session.explain().places) == {"native"}
        np.testing.assert_array_equal(answer, expected)


def test_files_that_may_change_count(model):
    options = pyflame_rt.SessionOptions(memory_limit=LIMIT)
    with pytest.raises(pyflame_rt.MemoryLimitError, match="memory_limit allows"):
        pyflame_rt.InferenceSession(model, options).run(None, {"x0": np.ones((1, WIDTH), np.float32)})


def test_intermediate_values_count(model):
    options = pyflame_rt.SessionOptions(immutable_model=True, memory_limit=LIMIT)
    with pytest.raises(pyflame_rt.MemoryLimitError, match=str(LIMIT)):
        pyflame_rt.InferenceSession(model, options).run(None, {"x0": np.ones((4096, WIDTH), np.float32)})


@pytest.mark.skipif(sys.platform != "linux", reason="private memory is counted by /proc")
def test_weights_take_no_memory_of_their_own(model, tmp_path):
    program = f"""
        import numpy as np
        import pyflame_rt.demo

        def private():
            lines = dict(line.split(":", 1) for line in open("/proc/self/status") if ":" in line)
            return int(lines["RssAnon"].split()[0]) << 10

        options = pyflame_rt.SessionOptions(immutable_model=True, memory_limit={LIMIT}, num_threads=1)
        feed = {{"x0": np.ones((1, {WIDTH}), np.float32)}}
        digits = pyflame_rt.InferenceSession(pyflame_rt.demo.model_path())  # what every session needs
        digits.run(None, {{"image": np.zeros((1, 1, 8, 8), np.float32)}})
        before = private()
        session = pyflame_rt.InferenceSession({str(model)!r}, options)
        for _ in range(3):
            session.run(None, feed)
        print(private() - before)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < LAYERS * WIDTH * WIDTH * 4 // 3


LIMITED = """
import resource, sys
from pathlib import Path
import numpy as np
import pyflame_rt
import pyflame_rt.demo

model, group, immutable = sys.argv[1], sys.argv[2], sys.argv[3] == "immutable"
digits = pyflame_rt.InferenceSession(pyflame_rt.demo.model_path())  # what every session needs
digits.run(None, {"image": np.zeros((1, 1, 8, 8), np.float32)})
if group:
    (Path(group) / "cgroup.procs").write_text("0")  # what it takes from now on is counted
else:
    lines = dict(line.split(":", 1) for line in open("/proc/self/status") if ":" in line)
    most = (int(lines["VmData"].split()[0]) << 10) + ROOM_BYTES
    resource.setrlimit(resource.RLIMIT_DATA, (most, most))
limit = ROOM_BYTES if immutable else 0
options = pyflame_rt.SessionOptions(immutable_model=immutable, memory_limit=limit, num_threads=1)
session = pyflame_rt.InferenceSession(model, options)
for _ in range(3):
    (answer,) = session.run(None, {"x0": np.ones((1, WIDTH), np.float32)})
print(float(np.abs(answer).sum()))
"""
ROOM = 16 << 20  # of the system, for a model three times as large


def limited(model, cache, group="", *, immutable=True):
    """Run the model in a process that the system gives a third of its size."""
    with open(model, "rb") as file:  # its pages are read, and counted, by the process
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    program = LIMITED.replace("ROOM_BYTES", str(ROOM)).replace("WIDTH", str(WIDTH))
    settings = {**os.environ, "PYFLAME_CACHE_DIR": str(cache), "OPENBLAS_NUM_THREADS": "1"}
    command = [sys.executable, "-c", program, str(model), str(group), "immutable" if immutable else ""]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=settings)


def expected_sum(model):
    with pyflame_rt.InferenceSession(model) as session:
        return float(np.abs(session.run(None, {"x0": np.ones((1, WIDTH), np.float32)})[0]).sum())


@pytest.mark.skipif(sys.platform != "linux", reason="RLIMIT_DATA counts private memory on Linux only")
def test_a_model_of_thrice_the_memory_that_the_system_allows(model, tmp_path):
    assert os.path.getsize(model) >= 3 * ROOM
    done = limited(model, tmp_path)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) == pytest.approx(expected_sum(model))
    without = limited(model, tmp_path / "other", immutable=False)
    assert without.returncode != 0  # the limit is one
    assert "MemoryError: the system has no" in without.stderr
    assert "immutable_model=True" in without.stderr


@pytest.fixture
def control_group():
    """One of our own that allows ROOM bytes, pages of files among them."""
    top = Path("/sys/fs/cgroup")
    one = top / "memory" if (top / "memory").is_dir() else top
    group = one / f"pyflame-test-{os.getpid()}"
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"control groups cannot be made here: {error}")
    limit = next((group / name for name in ("memory.limit_in_bytes", "memory.max") if (group / name).exists()), None)
    try:
        if limit is None:
            pytest.skip("control groups have no limit of memory here")
        limit.write_text(str(ROOM))
        yield group
    finally:
        group.rmdir()


@pytest.mark.skipif(sys.platform != "linux", reason="control groups are Linux's")
def test_a_model_of_thrice_the_memory_of_its_control_group(model, tmp_path, control_group):
    done = limited(model, tmp_path, control_group)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) == pytest.approx(expected_sum(model))


@pytest.mark.parametrize(
    ("listed", "wanted"),
    [
        ("0::/a/b\n", ["a/b/memory.max", "a/memory.max", "memory.max"]),
        ("4:cpu,memory:/a\n3:cpuset:/c\n", ["memory/a/memory.limit_in_bytes", "memory/memory.limit_in_bytes"]),
        ("0::/\n", ["memory.max"]),
    ],
)
def test_limits_of_control_groups_are_found(tmp_path, listed, wanted):
    (tmp_path / "cgroup").write_text(listed)
    found = limits_of_groups(tmp_path / "cgroup", tmp_path)
    assert list(dict.fromkeys(str(path.relative_to(tmp_path)) for path in found)) == wanted


def test_the_smallest_limit_counts(tmp_path, monkeypatch):
    limit = tmp_path / "memory.max"
    limit.write_text("12345678\n")
    monkeypatch.setattr("pyflame_rt.graph.budget.limits_of_groups", lambda: [limit, tmp_path / "none"])
    assert machine_memory.__wrapped__() == 12345678
