"""Products: shapes with unknown sizes, integers, labels, gradients, older opsets."""

import ml_dtypes
import numpy as np
import onnx.helper as oh
import pytest

from pyflame_rt.graph import DType, Node, Shape, TensorType, symbol
from pyflame_rt.graph.errors import InputError, PyFlameRTError, ShapeMismatchError
from pyflame_rt.importers.onnx_importer import graph_from_bytes
from pyflame_rt.ops import Context, Program, Value, evaluate, get_op
from pyflame_rt.ops.core.trace import infer_outputs
from tests.tolerances import within

RNG = np.random.default_rng(3)
N, M = symbol("N"), symbol("M")


def run(op, *arrays, **attributes):
    return evaluate(Node("n", op, ["x"] * len(arrays), ["y"], attributes), arrays)[0]


def infer(op, *shapes, dtype=DType.Float32, **attributes):
    found = get_op(op)
    values = [Value("v", TensorType(dtype, None if s is None else Shape(s))) for s in shapes]
    return infer_outputs(found, values, found.signature.bind(attributes, op))[0].type


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        ([N, 3], [3, M], [N, M]),
        ([N, 2, 3], [3, 4], [N, 2, 4]),
        ([1, 2, 3], [N, 3, 4], [N, 2, 4]),
        ([3], [N, 3, 4], [N, 4]),
        ([N, 3], [3], [N]),
        ([3], [3], []),
        (None, [3, 4], None),
    ],
)
def test_matmul_shapes(a, b, expected):
    assert infer("MatMul", a, b).shape == (None if expected is None else expected)


def test_matmul_refuses_what_does_not_fit():
    with pytest.raises(ShapeMismatchError, match=r"\[2, 3\] @ \[4, 5\]"):
        infer("MatMul", [2, 3], [4, 5])
    with pytest.raises(ShapeMismatchError):
        infer("MatMul", [], [4])


@pytest.mark.parametrize("dtype", ["int32", "uint64", "float16", ml_dtypes.bfloat16, "float64"])
def test_matmul_keeps_the_element_type(dtype):
    a, b = np.arange(6).reshape(2, 3).astype(dtype), np.arange(6).reshape(3, 2).astype(dtype)
    result = run("MatMul", a, b)
    assert result.dtype == np.dtype(dtype)
    np.testing.assert_array_equal(result.astype(float), a.astype(float) @ b.astype(float))


@pytest.mark.parametrize(
    ("a", "b"), [((2, 3), (3, 2)), ((3,), (3, 2)), ((2, 3), (3,)), ((2, 1, 2, 3), (4, 3, 2)), ((3,), (2, 3, 2))]
)
def test_matmul_gradient(gradients_match, a, b):
    gradients_match("MatMul", [RNG.normal(size=a), RNG.normal(size=b)])


@pytest.mark.parametrize("flags", [(0, 0), (1, 0), (0, 1), (1, 1)])
@pytest.mark.parametrize("c", [None, (4,), (1, 4), (3, 1), (3, 4), ()])
def test_gemm(agrees_with_onnxruntime, flags, c):
    a, b = RNG.normal(size=(2, 3) if flags[0] else (3, 2)), RNG.normal(size=(4, 2) if flags[1] else (2, 4))
    arrays = [x.astype(np.float32) for x in (a, b)]
    if c is not None:
        arrays.append(RNG.normal(size=c).astype(np.float32))
    attributes = {"transA": flags[0], "transB": flags[1], "alpha": 0.5, "beta": 2.0}
    agrees_with_onnxruntime("Gemm", arrays, attributes, domain="")


def test_gemm_of_integers_and_errors():
    a = np.arange(4, dtype=np.int32).reshape(2, 2)
    np.testing.assert_array_equal(run("Gemm", a, a, a, alpha=2.0, beta=3.0), 2 * a @ a + 3 * a)
    with pytest.raises(ShapeMismatchError, match="matrices"):
        run("Gemm", np.ones((2, 2, 2)), np.ones((2, 2)))
    with pytest.raises(ShapeMismatchError, match="broadcast"):
        run("Gemm", np.ones((2, 2)), np.ones((2, 2)), np.ones((1, 2, 2)))


def test_gemm_gradient(gradients_match):
    gradients_match(
        "Gemm", [RNG.normal(size=s) for s in ((3, 2), (3, 4), (4,))], {"transA": 1, "alpha": 0.3, "beta": 2.0}
    )


def test_gemm_of_version_1():
    info = [oh.make_tensor_value_info(n, 1, s) for n, s in (("a", [2, 3]), ("b", [3, 4]), ("c", [4]))]
    node = oh.make_node("Gemm", ["a", "b", "c"], ["y"], broadcast=1, alpha=2.0)
    graph = oh.make_graph([node], "g", info, [oh.make_tensor_value_info("y", 1, None)])
    model = oh.make_model(graph, opset_imports=[oh.make_opsetid("", 1)])
    a, b, c = (RNG.normal(size=s).astype(np.float32) for s in ((2, 3), (3, 4), (4,)))
    (y,) = Program(graph_from_bytes(model.SerializeToString())).run([a, b, c], Context.of())
    np.testing.assert_allclose(y, 2 * a @ b + c, rtol=1e-5)


@pytest.mark.parametrize(("za", "zb"), [((), ()), ((1,), (4,)), ((3,), (4,)), (None, ())])
def test_matmul_integer(za, zb):
    a, b = RNG.integers(0, 255, (3, 2)).astype(np.uint8), RNG.integers(-128, 127, (2, 4)).astype(np.int8)
    zero_a = None if za is None else RNG.integers(0, 255, za).astype(np.uint8)
    zero_b = RNG.integers(-128, 127, zb).astype(np.int8)
    left = a.astype(int) - (0 if zero_a is None else zero_a.astype(int).reshape(-1, 1) if za else int(zero_a))
    result = run("MatMulInteger", a, b, zero_a, zero_b)
    assert result.dtype == np.int32
    np.testing.assert_array_equal(result, left @ (b.astype(int) - zero_b.astype(int)))


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", ml_dtypes.bfloat16])
def test_det(dtype):
    x = np.array([[[2, 1], [1, 3]], [[1, 2], [3, 4]]]).astype(dtype)
    result = run("Det", x)
    assert result.dtype == np.dtype(dtype)
    np.testing.assert_allclose(result.astype(float), [5, -2], rtol=1e-2)
    assert infer("Det", [N, 2, 2]).shape == [N]
    with pytest.raises(ShapeMismatchError):
        infer("Det", [2, 3])


@pytest.mark.parametrize(
    ("equation", "shapes"),
    [
        ("ij,jk->ik", [(2, 3), (3, 4)]),
        ("b i j , b j k -> b i k", [(2, 2, 3), (2, 3, 4)]),
        ("...ij,...jk->...ik", [(2, 1, 2, 3), (3, 3, 2)]),
        ("ij,jk", [(2, 3), (3, 4)]),
        ("ij->", [(2, 3)]),
        ("ij->ji", [(2, 3)]),
        ("...->...", [(2, 3)]),
        ("i,i,i->", [(3,), (3,), (3,)]),
        ("ij,ik->k", [(2, 3), (1, 4)]),
    ],
)
@pytest.mark.parametrize("library", ["numpy", "torch", "mlx"])
def test_einsum(equation, shapes, library):
    arrays = [RNG.normal(size=s).astype(np.float32) for s in shapes]
    context = Context.of(library)
    moved = [context.library.from_numpy(a) for a in arrays]
    (result,) = evaluate(Node("n", "Einsum", ["x"] * len(arrays), ["y"], {"equation": equation}), moved, context)
    wide = [np.broadcast_to(a, (2, 4)) if a.shape == (1, 4) else a for a in arrays]
    expected = np.einsum(equation, *wide)
    np.testing.assert_allclose(context.library.to_numpy(result), expected, **within("sums"))
    assert infer("Einsum", *shapes, equation=equation).shape == expected.shape


def test_einsum_repeated_label_and_unknown_sizes():
    x = RNG.normal(size=(3, 3))
    np.testing.assert_allclose(run("Einsum", x, equation="ii->i"), np.diag(x))
    assert infer("Einsum", [N, 3], [3, M], equation="ij,jk->ki").shape == [M, N]
    assert infer("Einsum", None, [3, M], equation="ij,jk->ki").shape == [None, None]
    assert infer("Einsum", None, equation="...i->...").shape is None


@pytest.mark.parametrize(
    ("equation", "shapes"), [("ij->i", [[2]]), ("ij,jk->ik", [[2, 3]]), ("i.j->i", [[2, 2]]), ("i->j", [[2]])]
)
def test_einsum_errors(equation, shapes):
    with pytest.raises((InputError, ShapeMismatchError)):
        infer("Einsum", *shapes, equation=equation)


def test_einsum_sizes_must_agree():
    with pytest.raises(PyFlameRTError, match="sizes 3 and 4"):
        run("Einsum", np.ones((2, 3)), np.ones((4, 2)), equation="ij,jk->ik")


@pytest.mark.parametrize(
    ("equation", "shapes"),
    [
        ("ij,jk->ik", [(2, 3), (3, 2)]),
        ("...i,i->...", [(2, 2, 3), (3,)]),
        ("bij,bj->b", [(2, 2, 3), (2, 3)]),
        ("ij->j", [(2, 3)]),
        ("...i,...i->...", [(2, 3), (1, 3)]),
    ],
)
def test_einsum_gradient(gradients_match, equation, shapes):
    gradients_match("Einsum", [RNG.normal(size=s) for s in shapes], {"equation": equation})
