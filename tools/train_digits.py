"""Train the model of the demo, and write it with its test set into the package.

The data is the test part of "Optical Recognition of Handwritten Digits" (E. Alpaydin and
C. Kaynak, 1998, UCI Machine Learning Repository, CC BY 4.0), as scikit-learn ships it in
``sklearn/datasets/data/digits.csv.gz``. Needs torch; run as

    python tools/train_digits.py path/to/digits.csv.gz
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper, numpy_helper

DATA = Path(__file__).resolve().parents[1] / "src" / "pyflame_rt" / "data"
TEST_COUNT = 450
EPOCHS = 60


def read(path: str) -> tuple[np.ndarray, np.ndarray]:
    """Images as uint8 [count, 1, 8, 8], pixels from 0 to 16; labels as int64."""
    table = np.loadtxt(path, delimiter=",", dtype=np.uint8)
    return table[:, :64].reshape(-1, 1, 8, 8), table[:, 64].astype(np.int64)


def make_network() -> torch.nn.Sequential:
    """Two convolutions and two linear layers."""
    return torch.nn.Sequential(
        torch.nn.Conv2d(1, 16, 3, padding=1), torch.nn.BatchNorm2d(16), torch.nn.ReLU(),
        torch.nn.Conv2d(16, 32, 3, padding=1), torch.nn.ReLU(), torch.nn.MaxPool2d(2),
        torch.nn.Flatten(), torch.nn.Linear(512, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10),
    )  # fmt: skip


def train(network: torch.nn.Module, images: np.ndarray, labels: np.ndarray) -> None:
    """Adam on cross-entropy, with shifted copies of the images."""
    x, y = torch.from_numpy(images.astype(np.float32)) / 16, torch.from_numpy(labels)
    optimizer = torch.optim.Adam(network.parameters(), lr=2e-3, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, EPOCHS)
    for _ in range(EPOCHS):
        for batch in torch.randperm(len(x)).split(64):
            shift = tuple(int(s) for s in torch.randint(-1, 2, (2,)))
            loss = torch.nn.functional.cross_entropy(network(torch.roll(x[batch], shift, (2, 3))), y[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        schedule.step()
    network.eval()


def to_onnx(network: torch.nn.Sequential) -> onnx.ModelProto:
    """The trained network, from raw pixels to probabilities and label."""
    state = {name.replace(".", "_"): t.detach().numpy() for name, t in network.state_dict().items()}
    weights = {
        "conv1_w": state["0_weight"], "conv1_b": state["0_bias"],
        "bn_scale": state["1_weight"], "bn_bias": state["1_bias"],
        "bn_mean": state["1_running_mean"], "bn_var": state["1_running_var"],
        "conv2_w": state["3_weight"], "conv2_b": state["3_bias"],
        "fc1_w": state["7_weight"], "fc1_b": state["7_bias"],
        "fc2_w": state["9_weight"], "fc2_b": state["9_bias"], "depth": np.array(16, np.float32),
    }  # fmt: skip
    node = helper.make_node
    nodes = [
        node("Div", ["image", "depth"], ["scaled"], "scale"),
        node("Conv", ["scaled", "conv1_w", "conv1_b"], ["conv1_out"], "conv1", pads=[1] * 4),
        node("BatchNormalization", ["conv1_out", "bn_scale", "bn_bias", "bn_mean", "bn_var"], ["bn_out"], "bn"),
        node("Relu", ["bn_out"], ["relu1_out"], "relu1"),
        node("Conv", ["relu1_out", "conv2_w", "conv2_b"], ["conv2_out"], "conv2", pads=[1] * 4),
        node("Relu", ["conv2_out"], ["relu2_out"], "relu2"),
        node("MaxPool", ["relu2_out"], ["pool_out"], "pool", kernel_shape=[2, 2], strides=[2, 2]),
        node("Flatten", ["pool_out"], ["flat"], "flatten"),
        node("Gemm", ["flat", "fc1_w", "fc1_b"], ["fc1_out"], "fc1", transB=1),
        node("Relu", ["fc1_out"], ["relu3_out"], "relu3"),
        node("Gemm", ["relu3_out", "fc2_w", "fc2_b"], ["logits"], "fc2", transB=1),
        node("Softmax", ["logits"], ["probabilities"], "softmax", axis=1),
        node("ArgMax", ["logits"], ["digit"], "argmax", axis=1, keepdims=0),
    ]
    graph = helper.make_graph(
        nodes, "digits",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, ["N", 1, 8, 8])],
        [helper.make_tensor_value_info("probabilities", TensorProto.FLOAT, ["N", 10]),
         helper.make_tensor_value_info("digit", TensorProto.INT64, ["N"])],
        [numpy_helper.from_array(np.ascontiguousarray(value), name) for name, value in weights.items()],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    model.producer_name = "tools/train_digits.py"
    onnx.checker.check_model(model)
    return model


def main() -> None:
    """Train, report and write."""
    torch.manual_seed(0)
    images, labels = read(sys.argv[1])
    order = np.random.default_rng(0).permutation(len(images))
    test, rest = order[:TEST_COUNT], order[TEST_COUNT:]
    network = make_network()
    train(network, images[rest], labels[rest])
    with torch.no_grad():
        found = network(torch.from_numpy(images[test].astype(np.float32)) / 16).argmax(1).numpy()
    sys.stdout.write(f"{(found == labels[test]).mean():.2%} of {TEST_COUNT} test images\n")
    DATA.mkdir(exist_ok=True)
    (DATA / "digits.onnx").write_bytes(to_onnx(network).SerializeToString())
    np.savez_compressed(DATA / "digits_test.npz", images=images[test], labels=labels[test].astype(np.uint8))


if __name__ == "__main__":
    main()
