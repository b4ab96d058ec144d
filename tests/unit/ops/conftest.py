"""What tests of operators share: ONNX Runtime as the judge of its own operators."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from pyflame_rt.graph import DType, Node, Shape, TensorType
from pyflame_rt.ops import evaluate, get_op
from pyflame_rt.ops.core.evaluate import Context, bind_attributes, to_host, to_library
from pyflame_rt.ops.core.trace import infer_outputs
from pyflame_rt.ops.core.value import Value
from tests.tolerances import within


def _by_onnxruntime(node: Node, arrays: Sequence[Any], kinds: Sequence[Any], opset: int) -> list[np.ndarray]:
    ort = pytest.importorskip("onnxruntime")
    onnx = pytest.importorskip("onnx")
    names = [f"x{i}" if a is not None else "" for i, a in enumerate(arrays)]
    make, tensor = onnx.helper, onnx.helper.np_dtype_to_tensor_dtype
    inputs = [make.make_tensor_value_info(n, tensor(a.dtype), a.shape) for n, a in zip(names, arrays, strict=True) if n]
    named = [(o, k) for o, k in zip(node.outputs, kinds, strict=False) if o]
    outputs = [make.make_tensor_value_info(o, tensor(k), None) for o, k in named]
    proto = make.make_node(node.op_type, names, node.outputs, domain=node.domain, **node.attributes)
    graph = make.make_graph([proto], "g", inputs, outputs)
    opsets = [make.make_opsetid("", opset), make.make_opsetid("com.microsoft", 1)]
    model = make.make_model(graph, opset_imports=opsets, ir_version=10)
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return session.run(None, {n: a for n, a in zip(names, arrays, strict=True) if n})


def _check_inference(node: Node, arrays: Sequence[Any], results: Sequence[Any]) -> None:
    """Types inferred from types alone must not contradict what was computed."""
    op = get_op(node.op_type, node.domain)
    given = [
        None if a is None else Value(f"x{i}", TensorType(DType.of(a.dtype), Shape(a.shape)))
        for i, a in enumerate(arrays)
    ]
    for inferred, result in zip(infer_outputs(op, given, bind_attributes(node, op)), results, strict=False):
        if not isinstance(inferred.type, TensorType) or result is None:
            continue
        assert inferred.type.dtype is DType.of(result.dtype)
        if inferred.type.shape is not None:
            assert len(inferred.type.shape) == result.ndim, (inferred.type, result.shape)
            known = [(d, n) for d, n in zip(inferred.type.shape, result.shape, strict=True) if isinstance(d, int)]
            assert all(d == n for d, n in known), (inferred.type, result.shape)


@pytest.fixture
def agrees_with_onnxruntime() -> Callable[..., list[np.ndarray]]:
    """Check one node on NumPy, torch and MLX against ONNX Runtime; gives our outputs."""

    def check(
        op_type: str,
        arrays: Sequence[Any],
        attributes: dict[str, Any] | None = None,
        *,
        domain: str = "com.microsoft",
        outputs: Sequence[str] = ("y",),
        opset: int = 20,
        atol: float = 2e-5,
        steps: int = 0,
        libraries: Sequence[str] = ("numpy", "torch", "mlx"),
    ) -> list[np.ndarray]:
        node = Node("n", op_type, ["x"] * len(arrays), list(outputs), attributes or {}, domain)
        first = evaluate(node, arrays)
        expected = _by_onnxruntime(node, arrays, [None if r is None else r.dtype for r in first], opset)
        for name in libraries:
            context = Context.of(name)
            made = evaluate(node, [to_library(a, context.library) for a in arrays], context)
            got = [to_host(r, context.library) for r in made]
            wanted = [g for g, o in zip(got, outputs, strict=False) if o]
            for ours, theirs in zip(wanted, expected, strict=True):
                assert ours.dtype == theirs.dtype
                assert ours.shape == theirs.shape
                _same(ours, theirs, atol, steps)
        _check_inference(node, arrays, first)
        return first

    return check


def _same(ours: np.ndarray, theirs: np.ndarray, atol: float, steps: int) -> None:
    if ours.dtype.kind in "iub" and steps:
        away = np.abs(ours.astype(np.int64) - theirs.astype(np.int64))
        assert away.max(initial=0) <= steps
        # One step is for values that fall between two; most must be the same.
        assert (away > 0).mean() < 0.1
        return
    np.testing.assert_allclose(ours.astype(np.float64), theirs.astype(np.float64), rtol=atol, atol=atol)


@pytest.fixture
def gradients_match() -> Callable[..., None]:
    """Check the gradients of one node for all its float64 inputs against finite differences."""

    def check(
        op_type: str, arrays: Sequence[np.ndarray], attributes: dict[str, Any] | None = None, *, domain: str = ""
    ) -> None:
        from pyflame_rt.autodiff import gradient
        from pyflame_rt.graph import Graph
        from pyflame_rt.ops import Program

        graph = Graph("g")
        names = [f"x{i}" for i in range(len(arrays))]
        for name, array in zip(names, arrays, strict=True):
            graph.add_input(name, array.shape, DType.of(array.dtype))
        graph.add_node("n", op_type, names, ["y"], attributes or {}, domain=domain)
        graph.add_output("y", None, DType.Float64)
        wrt = [n for n, a in zip(names, arrays, strict=True) if a.dtype == np.float64]
        forward, backward = Program(graph), Program(gradient(graph, ["y"], wrt, seeded=True))
        context = Context.of("numpy")
        (y,) = forward.run(arrays, context)
        seed = np.random.default_rng(5).normal(size=y.shape)
        found = backward.run([*arrays, seed], context)[1:]
        for name, got in zip(wrt, found, strict=True):
            at = names.index(name)
            expected = np.zeros_like(arrays[at])
            for place in np.ndindex(expected.shape):
                sides = []
                for step in (1e-6, -1e-6):
                    moved = [a.copy() for a in arrays]
                    moved[at][place] += step
                    sides.append(float((forward.run(moved, context)[0] * seed).sum()))
                expected[place] = (sides[0] - sides[1]) / 2e-6
            np.testing.assert_allclose(got, expected, **within("elements"))

    return check
