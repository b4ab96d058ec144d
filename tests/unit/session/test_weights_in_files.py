"""Models larger than the memory they may take: weights stay in files that nobody writes to."""

import subprocess
import sys
import textwrap

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
