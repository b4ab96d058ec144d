"""Small models for the engine's tests."""

import numpy as np
from onnx import TensorProto, helper, numpy_helper

RNG = np.random.default_rng(0)


def weight(name, *shape):
    return numpy_helper.from_array((RNG.standard_normal(shape) * 0.2).astype(np.float32), name)


def model(nodes, weights, shape, out_rank):
    infos = [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)]
    outs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, [None] * out_rank)]
    graph = helper.make_graph(nodes, "g", infos, outs, weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10).SerializeToString()


_RECIPES = np.random.default_rng(5)
_CONV = {"w1": (16, 3, 3, 3), "b1": (16,), "w2": (16, 16, 3, 3), "w3": (16, 1, 3, 3), "w4": (10, 16), "b4": (10,)}
_CONV_WEIGHTS = {n: (_RECIPES.standard_normal(s) * 0.2).astype(np.float32) for n, s in _CONV.items()}
_MLP = {"w1": (128, 64), "b1": (128,), "w2": (10, 128), "b2": (10,)}
_MLP_WEIGHTS = {n: (_RECIPES.standard_normal(s) * 0.2).astype(np.float32) for n, s in _MLP.items()}


def convnet():
    node = helper.make_node
    nodes = [
        node("Conv", ["x", "w1", "b1"], ["c1"], "conv1", pads=[1, 1, 1, 1], strides=[2, 2]),
        node("LeakyRelu", ["c1"], ["r1"], "relu1"),
        node("Conv", ["r1", "w2"], ["c2"], "conv2", pads=[1, 1, 1, 1]),
        node("Add", ["c2", "r1"], ["a2"], "add"),
        node("MaxPool", ["a2"], ["p2"], "pool", kernel_shape=[2, 2], strides=[2, 2]),
        node("Conv", ["p2", "w3"], ["c3"], "depthwise", group=16, pads=[1, 1, 1, 1]),
        node("GlobalAveragePool", ["c3"], ["g3"], "mean"),
        node("Flatten", ["g3"], ["f3"], "flat"),
        node("Gemm", ["f3", "w4", "b4"], ["z"], "head", transB=1),
        node("Softmax", ["z"], ["y"], "softmax"),
    ]
    weights = [numpy_helper.from_array(a, n) for n, a in _CONV_WEIGHTS.items()]
    return model(nodes, weights, ["N", 3, "H", "W"], 2)


def mlp():
    nodes = [
        helper.make_node("Gemm", ["x", "w1", "b1"], ["h"], "first", transB=1),
        helper.make_node("Relu", ["h"], ["r"], "relu"),
        helper.make_node("Softmax", ["r"], ["s"], "middle"),
        helper.make_node("Gemm", ["s", "w2", "b2"], ["y"], "second", transB=1),
    ]
    return model(nodes, [numpy_helper.from_array(a, n) for n, a in _MLP_WEIGHTS.items()], ["N", 64], 2)


def feed(batch, size):
    return RNG.standard_normal((batch, 3, size, size)).astype(np.float32)
