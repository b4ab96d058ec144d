"""Products with blocks of files: every format as its package reads it, and as the reference multiplies it."""

import numpy as np
import pytest

import pyflame_rt
from pyflame_rt import DType, Graph
from pyflame_rt.backends.cpu.jit.target import Host
from pyflame_rt.backends.cpu.kernels.tiles.block_dots import block_tile
from pyflame_rt.backends.cpu.lower import block_sources
from pyflame_rt.ops.core.evaluate import Context, run_op
from pyflame_rt.ops.pyflame.stored_blocks import FORMATS, UnpackBlocks
from tests.unit.importers.gguf_files import gguf, random_blocks

DEPTH, COLUMNS = 512, 70


@pytest.mark.parametrize("kind", FORMATS)
def test_weights_are_those_the_package_reads(kind):
    data = random_blocks(kind, 9, 768)
    got = run_op(UnpackBlocks, [data], {"format": kind}, Context.of())[0]
    np.testing.assert_array_equal(got, gguf.quants.dequantize(data, gguf.GGMLQuantizationType[kind]))


def product(kind, data, bias):
    graph, names = Graph("product"), ["x", "w"]
    graph.add_input("x", ["rows", DEPTH])
    graph.add_initializer("w", data)
    if bias:
        graph.add_initializer("b", np.linspace(-1, 1, COLUMNS, dtype=np.float32))
        names.append("b")
    graph.add_node("n", "MatMulStoredBlocks", names, ["p"], domain="pyflame", attrs={"format": kind})
    graph.add_node("r", "Relu", ["p"], ["y"])
    graph.add_output("y", ["rows", COLUMNS])
    return graph


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize(("rows", "bias"), [(1, False), (3, True), (9, False), (32, True)])
def test_products_are_those_of_the_reference(kind, rows, bias):
    data = random_blocks(kind, COLUMNS, DEPTH)
    graph, x = product(kind, data, bias), np.random.default_rng(1).standard_normal((rows, DEPTH)).astype(np.float32)
    session = pyflame_rt.InferenceSession(graph)
    (got,) = session.run(None, {"x": x})
    (want,) = pyflame_rt.InferenceSession(graph, providers=["ReferenceExecutionProvider"]).run(None, {"x": x})
    np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-6 * np.abs(want).max())
    assert any("MatMulStoredBlocks" in row.runs_on for row in session.explain().rows)
    weights = gguf.quants.dequantize(data, gguf.GGMLQuantizationType[kind])
    near = np.maximum(x @ weights.T + (np.linspace(-1, 1, COLUMNS) if bias else 0), 0)
    np.testing.assert_allclose(got, near, atol=0.02 * np.abs(near).max())  # rows are rounded to 8 bits


def test_few_rows_are_multiplied_for_nothing():
    """32 rows by tiles of 6 were as much work as 36."""
    for host_ in (Host("", "", 64, True, True, registers=32), Host("", "", 32, True, True)):
        for rows in range(1, 100):
            tile = block_tile(host_, rows, 2048, host_.vector_bytes // 4)
            tiles = -(-rows // tile.rows)
            assert tiles * tile.rows - rows < tiles
            assert tile.rows * tile.vectors <= (16 if host_.registers == 32 else 8)


def test_plans_share_scales_and_weights():
    data = random_blocks("Q4_K", COLUMNS, DEPTH)
    session = pyflame_rt.InferenceSession(product("Q4_K", data, bias=False))
    sizes = []
    for rows in (1, 2, 3, 4):
        session.run(None, {"x": np.ones((rows, DEPTH), np.float32)})
        sizes.append(session.memory_stats()["packed_bytes"])
    assert sizes[-1] == sizes[0] > 0


def test_rows_of_a_table():
    data = random_blocks("Q6_K", 11, 256)
    graph = Graph("rows")
    graph.add_input("i", ["count"], DType.Int64)
    graph.add_initializer("w", data)
    graph.add_node("g", "Gather", ["w", "i"], ["bytes"])
    graph.add_node("u", "UnpackBlocks", ["bytes"], ["y"], domain="pyflame", attrs={"format": "Q6_K"})
    graph.add_output("y", ["count", 256])
    (got,) = pyflame_rt.InferenceSession(graph).run(None, {"i": np.array([3, 10, 3])})
    np.testing.assert_array_equal(got, gguf.quants.dequantize(data, gguf.GGMLQuantizationType.Q6_K)[[3, 10, 3]])


@pytest.mark.parametrize(
    ("array", "kind", "said"),
    [
        (np.zeros((2, 17), np.uint8), "Q4_0", "whole groups of 18"),
        (np.zeros((2, 18), np.int8), "Q4_0", "must be bytes"),
        (np.zeros((2, 18), np.uint8), "Q3_X", "'Q3_X' are not one of"),
    ],
)
def test_what_is_no_block_is_refused(array, kind, said):
    with pytest.raises(pyflame_rt.PyFlameRTError, match=said):
        run_op(UnpackBlocks, [array], {"format": kind}, Context.of())


@pytest.mark.parametrize(("columns", "width"), [(0, 288), (3, 0), (3, 289), (3, 144)])
@pytest.mark.parametrize("provider", ["CPUExecutionProvider", "ReferenceExecutionProvider"])
def test_blocks_that_do_not_suit_the_rows(columns, width, provider):
    """No columns were a fault of the engine, other widths an error that named no node."""
    graph = Graph("product")
    graph.add_input("x", ["rows", DEPTH])
    graph.add_initializer("w", np.zeros((columns, width), np.uint8))
    graph.add_node("n", "MatMulStoredBlocks", ["x", "w"], ["y"], domain="pyflame", attrs={"format": "Q4_K"})
    graph.add_output("y", ["rows", columns])
    feed = {"x": np.ones((2, DEPTH), np.float32)}
    if columns:
        with pytest.raises(pyflame_rt.PyFlameRTError, match="node 'n'"):
            pyflame_rt.InferenceSession(graph, providers=[provider]).run(None, feed)
    else:
        (found,) = pyflame_rt.InferenceSession(graph, providers=[provider]).run(None, feed)
        assert found.shape == (2, 0)


def test_what_was_packed_by_other_code_is_not_taken(monkeypatch):
    blocks = block_sources.Stored(random_blocks("Q4_0", 2, 64), "Q4_0")
    before = blocks.form
    assert blocks.form == before
    monkeypatch.setattr(block_sources, "code_signature", lambda *folders: f"newer {folders}")
    assert blocks.form != before
