"""Modules as torch's exporter writes them: what the rules make of them, and that answers stay torch's."""

import io
import warnings

import numpy as np
import pytest

from pyflame_rt import InferenceSession, SessionOptions
from pyflame_rt.loading import load_graph
from pyflame_rt.opt import FusionConfig, OperatorFusionPass, OptLevel, PassManager, optimize
from tests.unit.opt.portable import onnxruntime_answers

torch = pytest.importorskip("torch")
F = torch.nn.functional
HEADS, SIZE, WIDTH = 4, 8, 32


class Module(torch.nn.Module):
    """Linear layers by name, and heads of what they give."""

    def __init__(self, **features):
        super().__init__()
        for name, (before, after) in features.items():
            setattr(self, name, torch.nn.Linear(before, after, bias=False))

    def heads(self, name, x):
        return getattr(self, name)(x).view(*x.shape[:2], -1, SIZE).transpose(1, 2)


def merged(x):
    return x.transpose(1, 2).reshape(x.shape[0], -1, HEADS * SIZE)


def turned(x):
    return torch.cat((-x[..., SIZE // 2 :], x[..., : SIZE // 2]), dim=-1)


def chunked(x):
    first, second = x.chunk(2, dim=-1)
    return torch.cat((-second, first), dim=-1)


def neighbours(x):
    return torch.stack((-x[..., 1::2], x[..., ::2]), dim=-1).flatten(-2)


def repeated(x, times):
    batch, heads, length, size = x.shape
    return x[:, :, None].expand(batch, heads, times, length, size).reshape(batch, heads * times, length, size)


class Plain(Module):
    """Scores over a root, a mask that is added."""

    def __init__(self):
        super().__init__(q=(WIDTH, WIDTH), k=(WIDTH, WIDTH), v=(WIDTH, WIDTH))

    def forward(self, x, mask):
        q, k, v = (self.heads(name, x) for name in "qkv")
        scores = q @ k.transpose(-1, -2) / SIZE**0.5
        return merged(torch.softmax(scores + mask, -1) @ v)


class Library(Plain):
    """torch's own function."""

    def forward(self, x, mask):
        q, k, v = (self.heads(name, x) for name in "qkv")
        return merged(F.scaled_dot_product_attention(q, k, v, attn_mask=mask))


class Maskless(Plain):
    """Queries scaled before the product."""

    def forward(self, x, mask):
        q, k, v = (self.heads(name, x) for name in "qkv")
        return merged(torch.softmax((q * SIZE**-0.5) @ k.transpose(-1, -2), -1) @ v) + mask.sum()


class Grouped(Module):
    """Two heads of queries for each of keys and values, turned by angles, with keys and values from before."""

    def __init__(self, turn=turned, library=False):
        super().__init__(q=(WIDTH, WIDTH), k=(WIDTH, WIDTH // 2), v=(WIDTH, WIDTH // 2))
        self.turn, self.library = turn, library

    def forward(self, x, mask, past_k, past_v, angles):
        q, k, v = (self.heads(name, x) for name in "qkv")
        cos, sin = angles.cos()[:, None], angles.sin()[:, None]
        q, k = (t * cos + self.turn(t) * sin for t in (q, k))
        k, v = torch.cat((past_k, k), 2), torch.cat((past_v, v), 2)
        keys, values = repeated(k, 2), repeated(v, 2)
        if self.library:
            return merged(F.scaled_dot_product_attention(q, keys, values, attn_mask=mask)), k, v
        scores = (q @ keys.transpose(2, 3)) * SIZE**-0.5 + mask
        return merged(torch.softmax(scores, -1, dtype=torch.float32) @ values), k, v


class Norms(Module):
    """A root mean square norm, a gated product, Gelu in three forms, a norm written out."""

    def __init__(self):
        super().__init__(gate=(WIDTH, WIDTH), up=(WIDTH, WIDTH))
        self.scale = torch.nn.Parameter(torch.rand(WIDTH) + 0.5)
        self.shift = torch.nn.Parameter(torch.rand(WIDTH))

    def forward(self, x):
        x = self.scale * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))
        x = F.silu(self.gate(x)) * self.up(x)
        x = F.gelu(x) + F.gelu(x, approximate="tanh") + x * torch.sigmoid(1.702 * x)
        mean = x.mean(-1, keepdim=True)
        return (x - mean) / torch.sqrt(((x - mean) ** 2).mean(-1, keepdim=True) + 1e-5) * self.scale + self.shift


def normal(*shape, seed=0):
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(shape).astype(np.float32))


def mask(queries, keys):
    made = torch.zeros(2, 1, queries, keys)
    made[0, 0, :, -1] = -torch.inf
    made[1, 0, 1, 2:] = -torch.inf
    return made


GROUPED = (
    normal(2, 3, WIDTH),
    mask(3, 8),
    normal(2, 2, 5, SIZE, seed=1),
    normal(2, 2, 5, SIZE, seed=2),
    normal(1, 3, SIZE),
)
CASES = {
    "plain": (Plain(), (normal(2, 7, WIDTH), mask(7, 7)), ["FusedAttention"]),
    "library": (Library(), (normal(2, 7, WIDTH), mask(7, 7)), ["FusedAttention"]),
    "maskless": (Maskless(), (normal(2, 7, WIDTH), mask(7, 7)), ["FusedAttention"]),
    "grouped": (Grouped(), GROUPED, ["FusedAttention", "FusedRotary", "FusedRotary"]),
    "grouped library": (Grouped(library=True), GROUPED, ["FusedAttention", "FusedRotary", "FusedRotary"]),
    "split halves": (Grouped(chunked), GROUPED, ["FusedAttention", "FusedRotary", "FusedRotary"]),
    "neighbours": (Grouped(neighbours), GROUPED, ["FusedAttention", "FusedRotary", "FusedRotary"]),
    "norms": (
        Norms(),
        (normal(2, 7, WIDTH),),
        ["Gelu", "Gelu", "LayerNormalization", "RMSNormalization", "Swish", "Swish"],
    ),
}
NAMES = {name for *_, names in CASES.values() for name in names} | {"Softmax", "Neg", "Erf", "ReduceMean", "Sigmoid"}
DYNAMIC = {0: "batch", 1: "length"}


@pytest.fixture(scope="module")
def exported():
    """The file of a case, its feed and torch's answers."""
    made = {}

    def export(name, opset):
        if (name, opset) not in made:
            module, inputs, _ = CASES[name]
            names = [f"in{i}" for i in range(len(inputs))]
            file = io.BytesIO()
            axes = {n: {0: "batch", 1: "length"} if i == 0 else {0: f"{n}_0", 2: f"{n}_2"} for i, n in enumerate(names)}
            axes = {n: a for (n, a), x in zip(axes.items(), inputs, strict=True) if x.ndim > max(a) and x.shape[0] == 2}
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                torch.onnx.export(
                    module.eval(), inputs, file, input_names=names, dynamic_axes=axes, opset_version=opset, dynamo=False
                )
            wanted = module(*inputs)
            wanted = wanted if isinstance(wanted, tuple) else (wanted,)
            feed = {n: x.numpy() for n, x in zip(names, inputs, strict=True)}
            made[name, opset] = file.getvalue(), feed, [w.detach().numpy() for w in wanted]
        return made[name, opset]

    return export


@pytest.mark.parametrize("opset", [14, 18])
@pytest.mark.parametrize("case", CASES)
def test_what_exporters_write_out_is_found(exported, case, opset, tmp_path):
    data, feed, wanted = exported(case, opset)
    (tmp_path / "m.onnx").write_bytes(data)
    graph, _ = load_graph(tmp_path / "m.onnx")
    optimize(graph)
    assert sorted(n.op_type for n in graph.nodes if n.op_type in NAMES) == CASES[case][2]
    for provider in ("CPUExecutionProvider", "ReferenceExecutionProvider"):
        session = InferenceSession(data, SessionOptions(optimization_level=OptLevel.EXTENDED), [provider])
        for got, want in zip(session.run(None, feed), wanted, strict=True):
            np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-5)
    assert session.explain().host_step_count == 0 or provider != "CPUExecutionProvider"


@pytest.mark.parametrize("case", CASES)
def test_attention_is_one_kernel(exported, case):
    data, feed, _ = exported(case, 18)
    session = InferenceSession(data, SessionOptions(optimization_level=OptLevel.EXTENDED))
    session.run(None, feed)
    rows = session.explain().nodes
    found = [row for row in rows if row.op_type == "pyflame::FusedAttention"]
    assert all("Attention" in row.runs_on for row in found)
    assert not any(row.host_step for row in rows)


@pytest.mark.parametrize("case", CASES)
def test_portable_graphs_answer_the_same_elsewhere(exported, case, tmp_path):
    data, feed, wanted = exported(case, 18)
    (tmp_path / "m.onnx").write_bytes(data)
    graph, _ = load_graph(tmp_path / "m.onnx")
    manager = PassManager.create_default(OptLevel.ALL)
    manager.replace_pass(OperatorFusionPass(FusionConfig(portable=True)))
    manager.run_until_fixed_point(graph)
    for got, want in zip(onnxruntime_answers(graph, feed), wanted, strict=True):
        np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-5)


def test_rules_can_be_switched_off(exported, tmp_path):
    data, feed, wanted = exported("grouped library", 18)
    for name in ("attention", "AttentionFusion"):
        options = SessionOptions(optimization_level=OptLevel.EXTENDED, disabled_optimizers=[name])
        session = InferenceSession(data, options)
        np.testing.assert_allclose(session.run(None, feed)[0], wanted[0], rtol=2e-5, atol=2e-5)
        assert "FusedAttention" not in [node.op_type for node in session.optimized_graph().nodes]
    (tmp_path / "m.onnx").write_bytes(data)
    graph, _ = load_graph(tmp_path / "m.onnx")
    OperatorFusionPass(FusionConfig(fuse_attention=False)).run(graph)
    assert not {"FusedAttention", "FusedRotary"} & {node.op_type for node in graph.nodes}
