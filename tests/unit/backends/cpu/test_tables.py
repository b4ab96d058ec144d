"""Products of rows taken from a small table: the table is multiplied first, in gradients too."""

import numpy as np
import pytest
import torch
from onnx import TensorProto, helper

import pyflame as pf
import pyflame_rt
from pyflame_rt.backends.cpu.run import plan as planning
from pyflame_rt.graph.errors import PyFlameRTError
from tests.tolerances import within

RNG = np.random.default_rng(5)
ROWS, DEPTH, WIDTH, LEAD = 20, 96, 136, (8, 16)


def session(nodes, inputs, **options):
    infos = [helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape) for n, a in inputs]
    out = [helper.make_tensor_value_info("y", TensorProto.UNDEFINED, None)]
    model = helper.make_model(helper.make_graph(nodes, "g", infos, out), opset_imports=[helper.make_opsetid("", 21)])
    return pyflame_rt.InferenceSession(model.SerializeToString(), pyflame_rt.SessionOptions(**options))


@pytest.fixture
def products(monkeypatch):
    """Sizes of the results of products in the plans that are made."""
    sizes, original = [], planning.specialise

    def watched(*args, **options):
        concrete, plan = original(*args, **options)
        sizes[:] = [concrete.shape(s.node.outputs[0]) for s in concrete.steps if s.op.name == "MatMul"]
        return concrete, plan

    monkeypatch.setattr(planning, "specialise", watched)
    return sizes


def forward(order, bias, dtype=np.float32):
    feeds = {
        "table": RNG.normal(size=(ROWS, DEPTH)).astype(dtype),
        "ids": RNG.integers(-ROWS, ROWS, LEAD),
        "w": RNG.normal(size=(DEPTH, WIDTH)).astype(dtype),
        "b": RNG.normal(size=WIDTH).astype(dtype),
    }
    nodes = [helper.make_node("Gather", ["table", "ids"], ["x"])]
    x = feeds["table"][feeds["ids"]]
    if order == "turned":
        nodes.append(helper.make_node("Transpose", ["x"], ["xt"], perm=[1, 0, 2]))
        x = x.transpose(1, 0, 2)
    elif order == "flat":
        nodes.append(helper.make_node("Flatten", ["x"], ["xt"], axis=2))
        x = x.reshape(-1, DEPTH)
    nodes.append(helper.make_node("MatMul", ["x" if order == "given" else "xt", "w"], ["p" if bias else "y"]))
    want = x @ feeds["w"]
    if bias:
        nodes.append(helper.make_node("Add", ["b", "p"], ["y"]))
        want = want + feeds["b"]
    return nodes, feeds, want


@pytest.mark.parametrize("order", ["given", "turned", "flat"])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_rows_are_taken_from_the_product_of_the_table(products, order, bias, dtype):
    nodes, feeds, want = forward(order, bias, dtype)
    made = session(nodes, feeds.items())
    (y,) = made.run(None, feeds)
    np.testing.assert_allclose(y, want, rtol=1e-4 if dtype is np.float32 else 1e-12, atol=1e-4)
    assert products == [(ROWS, WIDTH)]
    (again,) = session(nodes, feeds.items(), strict_math_mode=True).run(None, feeds)
    np.testing.assert_allclose(again, y, **within("layers"))


def test_strict_mode_and_large_tables_multiply_as_written(products):
    nodes, feeds, want = forward("given", True)
    made = session(nodes, feeds.items(), strict_math_mode=True)
    made.run(None, feeds)
    assert products == [(*LEAD, WIDTH)]
    feeds["table"] = RNG.normal(size=(LEAD[0] * LEAD[1], DEPTH)).astype(np.float32)
    made = session(nodes, feeds.items())
    (y,) = made.run(None, feeds)
    np.testing.assert_allclose(y, feeds["table"][feeds["ids"]] @ feeds["w"] + feeds["b"], **within("layers"))
    assert products == [(*LEAD, WIDTH)]
    assert want.shape == y.shape


def test_an_index_outside_of_the_table_is_named():
    nodes, feeds, _ = forward("turned", True)
    made = session(nodes, feeds.items())
    feeds["ids"][3, 4] = ROWS
    with pytest.raises(PyFlameRTError, match="ind"):
        made.run(None, feeds)


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_gradients_of_table_and_weights(products, turned, dtype):
    table, ids = RNG.normal(size=(ROWS, DEPTH)).astype(dtype), RNG.integers(0, ROWS, LEAD)
    weights, scale = RNG.normal(size=(WIDTH, DEPTH)).astype(dtype), RNG.normal(size=WIDTH).astype(dtype)

    def loss(module, table, weights, scale, ids):
        x = module.nn.functional.embedding(ids, table)
        x = x.transpose(0, 1) if turned else x
        y = module.tanh(module.nn.functional.linear(x, weights, scale))
        return (y * y * scale).sum()

    ours = [pf.tensor(a, dtype=pf.float64 if dtype is np.float64 else pf.float32) for a in (table, weights, scale)]
    theirs = [torch.from_numpy(a.copy()) for a in (table, weights, scale)]
    for tensor in (*ours, *theirs):
        tensor.requires_grad_()
    mine = pf.compile(lambda *given: pf.autograd.grad(loss(pf, *given), list(given[:3])))
    got = mine(*ours, pf.from_numpy(ids))
    loss(torch, *theirs, torch.from_numpy(ids)).backward()
    assert len(products) == 3
    assert all(LEAD[0] * LEAD[1] not in shape and LEAD[0] not in shape for shape in products)
    for g, t in zip(got, theirs, strict=True):
        want = t.grad.numpy()
        tolerance = 1e-11 if dtype is np.float64 else 2e-4
        np.testing.assert_allclose(g.numpy(), want, rtol=tolerance, atol=tolerance * abs(want).max())


@pytest.mark.parametrize(("width", "count"), [(128, 7), (300, 50), (1030, 33)])
@pytest.mark.parametrize("kind", [np.int32, np.int64])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_sums_of_rows_by_index(width, count, kind, dtype):
    ids, rows = RNG.integers(-9, 9, (count, 1)).astype(kind), RNG.normal(size=(count, width)).astype(dtype)
    zeros = helper.make_tensor("z", helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), (9, width), np.zeros(9 * width))
    nodes = [
        helper.make_node("Constant", [], ["zeros"], value=zeros),
        helper.make_node("Cast", ["ids"], ["wide"], to=TensorProto.INT64),
        helper.make_node("ScatterND", ["zeros", "wide", "rows"], ["y"], reduction="add"),
    ]
    (y,) = session(nodes, [("ids", ids), ("rows", rows)]).run(None, {"ids": ids, "rows": rows})
    want = np.zeros((9, width), np.float64)
    np.add.at(want, ids[:, 0], rows)
    np.testing.assert_allclose(y, want, rtol=1e-5, atol=1e-5)
    ids[count // 2] = 9
    with pytest.raises(PyFlameRTError, match="ind"):
        session(nodes, [("ids", ids), ("rows", rows)]).run(None, {"ids": ids, "rows": rows})
