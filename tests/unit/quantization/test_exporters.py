"""Files in the forms that torch.ao and nncf write, made by hand: integers where there are kernels, one step at most."""

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import pyflame_rt

rng = np.random.default_rng(0)
STEP = np.float32(0.05)
IMAGE = rng.standard_normal((2, 8, 9, 9)).astype(np.float32)
ROWS = rng.standard_normal((3, 64)).astype(np.float32)
FILTERS = rng.integers(-127, 128, (16, 8, 3, 3)).astype(np.int8)
SCALES = rng.uniform(0.001, 0.01, 16).astype(np.float32)
MATRIX = rng.integers(-127, 128, (16, 64)).astype(np.int8)
BIAS = rng.standard_normal(16).astype(np.float32)


class File:
    """Nodes and constants of a file under way."""

    def __init__(self):
        self.nodes, self.constants = [], {}

    def __call__(self, op, *inputs, **attributes):
        given = [i if isinstance(i, str) else self.constant(i) for i in inputs]
        self.nodes.append(helper.make_node(op, given, [f"v{len(self.nodes)}"], **attributes))
        return f"v{len(self.nodes) - 1}"

    def constant(self, array):
        self.constants[f"c{len(self.constants)}"] = np.asarray(array)
        return f"c{len(self.constants) - 1}"

    def rounded(self, x, scale, zero, **attributes):
        """QuantizeLinear and DequantizeLinear of the same parameters."""
        return self("DequantizeLinear", self("QuantizeLinear", x, scale, zero, **attributes), scale, zero, **attributes)

    def model(self, x, result, opset=17):
        given = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["N", *x.shape[1:]])
        constants = [numpy_helper.from_array(a, n) for n, a in self.constants.items()]
        graph = helper.make_graph(self.nodes, "g", [given], [onnx.ValueInfoProto(name=result)], constants)
        opsets = [helper.make_opsetid("", opset)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString()


def torch_convolution():
    """Weights as int8, a bias of floats, Relu before the rounding."""
    f = File()
    w = f("DequantizeLinear", FILTERS, SCALES, np.zeros(16, np.int8), axis=0)
    y = f("Conv", f.rounded("x", np.float32(0.03), np.uint8(64)), w, BIAS, pads=[1] * 4)
    return f.model(IMAGE, f.rounded(f("Relu", y), STEP, np.uint8(0))), IMAGE, "ConvInteger"


def torch_fake_quantized():
    """Weights as floats that are rounded in the graph."""
    f = File()
    w = f.rounded(FILTERS * SCALES[:, None, None, None], SCALES, np.zeros(16, np.int8), axis=0)
    y = f("Conv", f.rounded("x", np.float32(0.03), np.uint8(64)), w, BIAS, pads=[1] * 4)
    return f.model(IMAGE, f.rounded(f("Relu", y), STEP, np.uint8(0))), IMAGE, "ConvInteger"


def torch_linear():
    f = File()
    w = f("DequantizeLinear", MATRIX, SCALES, np.zeros(16, np.int8), axis=0)
    y = f("Gemm", f.rounded("x", np.float32(0.03), np.uint8(128)), w, BIAS, transB=1)
    return f.model(ROWS, f.rounded(y, STEP, np.uint8(120))), ROWS, "MatMulInteger"


def torch_exported_linear():
    """The weights are transposed behind their scales, the bias is a sum."""
    f = File()
    w = f("DequantizeLinear", MATRIX, SCALES, np.zeros(16, np.int8), axis=0)
    y = f("MatMul", f.rounded("x", np.float32(0.03), np.uint8(128)), f("Transpose", w, perm=[1, 0]))
    return f.model(ROWS, f.rounded(f("Add", y, BIAS), STEP, np.uint8(120))), ROWS, "MatMulInteger"


def nncf_convolution():
    """Signed data, symmetric weights that are rounded in the graph."""
    f = File()
    w = f.rounded(FILTERS * SCALES[:, None, None, None], SCALES, np.zeros(16, np.int8), axis=0)
    y = f("Conv", f.rounded("x", np.float32(0.03), np.int8(0)), w, BIAS, pads=[1] * 4)
    return f.model(IMAGE, f.rounded(f("Relu", y), STEP, np.int8(-128))), IMAGE, "ConvInteger"


def nncf_compressed_weights():
    """Groups of weights with a scale and a zero point each, data of floats."""
    f = File()
    numbers = rng.integers(0, 256, (64, 16)).astype(np.uint8)
    scales, zeros = rng.uniform(0.001, 0.01, (2, 16)).astype(np.float32), rng.integers(100, 150, (2, 16))
    w = f("DequantizeLinear", numbers, scales, zeros.astype(np.uint8), axis=0, block_size=32)
    return f.model(ROWS, f("MatMul", "x", w), opset=21), ROWS, ""


def transposed_convolution():
    f = File()
    filters = np.ascontiguousarray(FILTERS.transpose(1, 0, 2, 3))
    w = f("DequantizeLinear", filters, SCALES, np.zeros(16, np.int8), axis=1)
    y = f("ConvTranspose", f.rounded("x", np.float32(0.03), np.uint8(64)), w, BIAS, strides=[2, 2], pads=[1] * 4)
    return f.model(IMAGE, f.rounded(f("Relu", y), STEP, np.uint8(0))), IMAGE, ""


FORMS = [
    torch_convolution, torch_fake_quantized, torch_linear, torch_exported_linear, nncf_convolution,
    nncf_compressed_weights, transposed_convolution,
]  # fmt: skip


@pytest.mark.parametrize("make", FORMS)
def test_files(make):
    data, x, kernel = make()
    session = pyflame_rt.InferenceSession(data)
    got = session.run(None, {"x": x})[0]
    reference = pyflame_rt.InferenceSession(data, providers=["ReferenceExecutionProvider"])
    assert np.abs(got - reference.run(None, {"x": x})[0]).max() <= STEP * 1.001
    if kernel and session.get_providers()[0] == "CPUExecutionProvider":
        assert any(kernel in row.runs_on for row in session.explain().rows)


@pytest.mark.parametrize("make", [form for form in FORMS if form is not nncf_compressed_weights])
def test_onnxruntime_is_a_step_away_at_most(make):
    """Weights in groups it multiplies with rounded data."""
    ort = pytest.importorskip("onnxruntime")
    data, x, _ = make()
    theirs = ort.InferenceSession(data, providers=["CPUExecutionProvider"]).run(None, {"x": x})[0]
    assert np.abs(pyflame_rt.InferenceSession(data).run(None, {"x": x})[0] - theirs).max() <= STEP * 1.001
