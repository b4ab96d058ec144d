"""Weights of 16 bits are packed as they are and widened in registers: the same answers, half the memory."""

import ml_dtypes
import numpy as np
import pytest

import pyflame_rt
from pyflame_rt.graph import Graph
from pyflame_rt.quantization import Quantizer

KINDS = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16}


def narrowed(graph: Graph, kind: str) -> tuple[Graph, Graph]:
    """The graph with weights of 16 bits, and with the same numbers in float32."""
    quantizer = Quantizer()
    way = quantizer.convert_to_fp16 if kind == "float16" else quantizer.convert_to_bfloat16
    made, wide = way(graph), graph.copy()
    for name, tensor in list(wide.initializers.items()):
        wide.initializers[name] = type(tensor)(tensor.raw().astype(KINDS[kind]).astype(np.float32))
    return made.quantized_graph, wide


def answers(graph: Graph, feeds) -> list[np.ndarray]:
    with pyflame_rt.InferenceSession(graph, pyflame_rt.SessionOptions(quick_start=False)) as session:
        return [session.run(None, {"x": x})[0] for x in feeds]


def product(turned: bool, depth: int, columns: int) -> Graph:
    rng, graph = np.random.default_rng(0), Graph("product")
    graph.add_input("x", ["N", depth])
    weights = rng.standard_normal((columns, depth) if turned else (depth, columns)).astype(np.float32)
    weights[:2, :2] = [[0.0, -0.0], [1e-7, np.inf]]
    graph.add_initializer("w", weights)
    graph.add_initializer("b", rng.standard_normal(columns).astype(np.float32))
    graph.add_node("fc", "Gemm", ["x", "w", "b"], ["h"], transB=int(turned))
    graph.add_node("act", "Relu", ["h"], ["y"])
    graph.add_output("y", ["N", columns])
    return graph


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize(("depth", "columns"), [(64, 96), (37, 133)])
def test_products(kind, turned, depth, columns):
    rng = np.random.default_rng(1)
    feeds = [rng.standard_normal((rows, depth)).astype(np.float32) for rows in (1, 2, 13, 70)]
    small, wide = narrowed(product(turned, depth, columns), kind)
    for got, want in zip(answers(small, feeds), answers(wide, feeds), strict=True):
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("depth", "columns"), [(64, 96), (37, 133)])
def test_products_with_panels_of_zeros(kind, depth, columns):
    rng = np.random.default_rng(1)
    graph = product(False, depth, columns)
    weights = rng.standard_normal((depth, columns)).astype(np.float32)
    weights[rng.random(depth) < 0.75] = 0.0
    weights[5, 7] = np.nan
    weights[5, 8] = 1e-41  # nothing in float16, a denormal in bfloat16
    graph.add_initializer("w", weights)
    feeds = [rng.standard_normal((rows, depth)).astype(np.float32) for rows in (1, 2, 13, 70)]
    small, wide = narrowed(graph, kind)
    for got, want in zip(answers(small, feeds), answers(wide, feeds), strict=True):
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("taps", [(1, 1), (2, 2), (3, 3)])
def test_convolutions(kind, taps):
    rng, graph = np.random.default_rng(0), Graph("conv")
    graph.add_input("x", ["N", 32, 9, 8])
    graph.add_initializer("w", (rng.standard_normal((48, 32, *taps)) / 10).astype(np.float32))
    graph.add_node("c", "Conv", ["x", "w"], ["y"], pads=[t // 2 for t in taps] * 2)
    graph.add_output("y", None)
    feeds = [rng.standard_normal((n, 32, 9, 8)).astype(np.float32) for n in (1, 3)]
    small, wide = narrowed(graph, kind)
    for got, want in zip(answers(small, feeds), answers(wide, feeds), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_plans_of_many_shapes_share_the_packed_weights(kind, tmp_path):
    """And they are in 16 bits: one copy in panels beside the file, whatever number of rows came."""
    from pyflame_rt.backends.cpu.memory import constants

    small, _ = narrowed(product(turned=False, depth=512, columns=512), kind)
    path = tmp_path / "half.pfm"
    pyflame_rt.save_model(small, path)
    sizes = []
    real = constants.weights_empty

    def counted(size):
        sizes.append(size)
        return real(size)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(constants, "weights_empty", counted)
        feeds = [np.zeros((rows, 512), np.float32) for rows in (2, 5, 40)]
        with pyflame_rt.InferenceSession(path, pyflame_rt.SessionOptions(quick_start=False)) as session:
            for x in feeds:
                session.run(None, {"x": x})
    assert [n for n in sizes if n >= 2 * 512 * 512] == [2 * 512 * 512]
