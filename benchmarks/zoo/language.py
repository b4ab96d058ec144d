"""Transformers and recurrent networks."""

from __future__ import annotations

import numpy as np

from zoo.builder import Builder


def _heads(b: Builder, x: str, heads: int, size: int, perm: list[int]) -> str:
    return b.node("Transpose", b.node("Reshape", x, b.ints(0, -1, heads, size)), perm=perm)


def _attend(b: Builder, q: str, k: str, v: str, size: int, mask: str = "") -> str:
    """Softmax of scaled scores times values; k comes transposed."""
    scores = b.node("Mul", b.node("MatMul", q, k), b.constant(size**-0.5))
    scores = b.node("Add", scores, mask) if mask else scores
    mixed = b.node("MatMul", b.node("Softmax", scores, axis=-1), v)
    return b.node("Reshape", b.node("Transpose", mixed, perm=[0, 2, 1, 3]), b.ints(0, 0, -1))


def vit(
    name: str = "vit_tiny", size: int = 224, width: int = 192, layers: int = 12, heads: int = 3, classes: int = 1000
) -> Builder:
    """An encoder over patches of 16x16 pixels."""
    b = Builder(name)
    x = b.input("image", b.normal(1, 3, size, size))
    weight, bias = b.weight(width, 3, 16, 16), b.constant(b.normal(width, scale=0.1))
    x = b.node("Conv", x, weight, bias, kernel_shape=[16, 16], strides=[16, 16])
    x = b.node("Transpose", b.node("Reshape", x, b.ints(0, width, -1)), perm=[0, 2, 1])
    x = b.node("Concat", b.constant(b.normal(1, 1, width)), x, axis=1)
    x = b.node("Add", x, b.constant(b.normal(1, (size // 16) ** 2 + 1, width, scale=0.1)))
    for _ in range(layers):
        x = _pre_norm_block(b, x, width, heads)
    first = b.node("Gather", b.layer_norm(x, width, 1e-6), b.constant(0, np.int64), axis=1)
    b.output(b.node("Gemm", first, b.weight(classes, width), b.constant(b.normal(classes)), transB=1), "logits")
    return b


def _pre_norm_block(b: Builder, x: str, width: int, heads: int) -> str:
    n = b.dense(b.layer_norm(x, width, 1e-6), width, 3 * width)
    q, k, v = b.split("Split", 3, n, axis=-1, num_outputs=3)
    size = width // heads
    q, v = (_heads(b, part, heads, size, [0, 2, 1, 3]) for part in (q, v))
    k = _heads(b, k, heads, size, [0, 2, 3, 1])
    x = b.node("Add", x, b.dense(_attend(b, q, k, v, size), width, width, gain=0.5))
    h = b.node("Gelu", b.dense(b.layer_norm(x, width, 1e-6), width, 4 * width))
    return b.node("Add", x, b.dense(h, 4 * width, width, gain=0.5))


def encoder(name: str, *, width: int, layers: int, heads: int, words: int, length: int) -> Builder:
    """BERT: embeddings, then layers that normalise after adding; batch and length may change."""
    b, size = Builder(name), width // heads
    sizes: list[int | str] = ["batch", "length"]
    ids = b.input("input_ids", b.rng.integers(0, words, (1, length)), sizes)
    kept = np.ones((1, length), np.int64)
    kept[:, length - length // 8 :] = 0
    given = b.input("attention_mask", kept, sizes)
    kinds = b.input("token_type_ids", np.zeros((1, length), np.int64), sizes)
    x = b.node("Gather", b.weight(words, width, fan=1, gain=0.5), ids)
    x = b.node("Add", x, b.node("Gather", b.weight(2, width, fan=1, gain=0.5), kinds))
    count = b.node("Unsqueeze", b.node("Gather", b.node("Shape", ids), b.constant(1, np.int64)), b.ints(0))
    places = b.constant(b.normal(512, width, scale=0.5))
    x = b.node("Add", x, b.node("Slice", places, b.ints(0), count, b.ints(0)))
    x = b.layer_norm(x, width, 1e-12)
    mask = b.node("Cast", b.node("Unsqueeze", given, b.ints(1, 2)), to=1)
    mask = b.node("Mul", b.node("Sub", b.constant(1.0), mask), b.constant(-1e9))
    for _ in range(layers):
        q, k, v = (b.dense(x, width, width) for _ in range(3))
        q, v = (_heads(b, part, heads, size, [0, 2, 1, 3]) for part in (q, v))
        mixed = _attend(b, q, _heads(b, k, heads, size, [0, 2, 3, 1]), v, size, mask)
        x = b.layer_norm(b.node("Add", b.dense(mixed, width, width), x), width, 1e-12)
        h = b.dense(x, width, 4 * width)
        h = b.node("Mul", b.node("Mul", h, b.constant(0.5)),
                   b.node("Add", b.node("Erf", b.node("Div", h, b.constant(2**0.5))), b.constant(1.0)))  # fmt: skip
        x = b.layer_norm(b.node("Add", b.dense(h, 4 * width, width), x), width, 1e-12)
    b.output(x, "last_hidden_state")
    first = b.node("Gather", x, b.constant(0, np.int64), axis=1)
    b.output(b.node("Tanh", b.dense(first, width, width)), "pooler_output")
    return b


def _decoder(name: str, words: int, length: int, past: int, layers: int, heads: int, size: int):  # noqa: ANN202
    """Inputs of a decoder: tokens, positions, mask, and keys and values of earlier tokens."""
    b = Builder(name)
    ids = b.input("input_ids", b.rng.integers(0, words, (1, length)))
    at = b.input("position_ids", np.arange(past, past + length)[None])
    hidden = np.where(np.tril(np.ones((length, past + length), bool), past), 0, -1e9).astype(np.float32)
    mask = b.input("mask", hidden[None, None])
    earlier = [
        [b.input(f"past_{i}_{kind}", b.normal(1, heads, past, size, scale=0.5)) for kind in "kv"] for i in range(layers)
    ]
    return b, ids, at, mask, earlier


def gpt2(
    name: str, *, length: int, past: int, width: int = 768, layers: int = 12, heads: int = 12, words: int = 16384
) -> Builder:
    """GPT-2: learned positions, tanh GELU, tied head."""
    size = width // heads
    b, ids, at, mask, earlier = _decoder(name, words, length, past, layers, heads, size)
    table = b.weight(words, width, fan=1, gain=0.04)
    x = b.node("Add", b.node("Gather", table, ids), b.node("Gather", b.weight(1024, width, fan=1, gain=0.04), at))
    present = []
    for past_k, past_v in earlier:
        parts = b.split("Split", 3, b.dense(b.layer_norm(x, width), width, 3 * width), axis=-1, num_outputs=3)
        q, k, v = (_heads(b, part, heads, size, [0, 2, 1, 3]) for part in parts)
        k, v = b.node("Concat", past_k, k, axis=2), b.node("Concat", past_v, v, axis=2)
        present += [k, v]
        mixed = _attend(b, q, b.node("Transpose", k, perm=[0, 1, 3, 2]), v, size, mask)
        x = b.node("Add", x, b.dense(mixed, width, width, gain=0.5))
        h = b.node("Gelu", b.dense(b.layer_norm(x, width), width, 4 * width), approximate="tanh")
        x = b.node("Add", x, b.dense(h, 4 * width, width, gain=0.5))
    b.output(b.node("MatMul", b.layer_norm(x, width), b.node("Transpose", table, perm=[1, 0])), "logits")
    for i, value in enumerate(present):
        b.output(value, f"present_{i // 2}_{'kv'[i % 2]}")
    return b


def llama(
    name: str,
    *,
    length: int,
    past: int,
    width: int = 512,
    layers: int = 8,
    heads: int = 8,
    shared: int = 2,
    words: int = 8192,
) -> Builder:
    """Llama: rotary positions, RMS normalisation, gated layers, keys and values shared by heads."""
    size, groups = width // heads, heads // shared
    b, ids, at, mask, earlier = _decoder(name, words, length, past, layers, groups, size)
    x = b.node("Gather", b.weight(words, width, fan=1, gain=0.5), ids)
    rates = (1e4 ** (-np.arange(0, size, 2) / size)).astype(np.float32)
    angles = b.node("Mul", b.node("Unsqueeze", b.node("Cast", at, to=1), b.ints(1, 3)), b.constant(rates))
    cos, sin = b.node("Cos", angles), b.node("Sin", angles)

    def norm(value: str) -> str:
        squares = b.node("ReduceMean", b.node("Pow", value, b.constant(2.0)), b.ints(-1), keepdims=1)
        inverse = b.node("Reciprocal", b.node("Sqrt", b.node("Add", squares, b.constant(1e-5))))
        return b.node("Mul", b.node("Mul", value, inverse), b.constant(1 + b.normal(width, scale=0.1)))

    def turned(value: str) -> str:
        low, high = b.split("Split", 2, value, axis=-1, num_outputs=2)
        first = b.node("Sub", b.node("Mul", low, cos), b.node("Mul", high, sin))
        return b.node("Concat", first, b.node("Add", b.node("Mul", high, cos), b.node("Mul", low, sin)), axis=-1)

    def repeated(value: str) -> str:
        wide = b.node("Expand", b.node("Unsqueeze", value, b.ints(2)), b.ints(1, groups, shared, past + length, size))
        return b.node("Reshape", wide, b.ints(1, heads, past + length, size))

    present = []
    for past_k, past_v in earlier:
        n = norm(x)
        outers = (width, groups * size, groups * size)
        q, k, v = (b.dense(n, width, outer, bias=False) for outer in outers)
        q = turned(_heads(b, q, heads, size, [0, 2, 1, 3]))
        k, v = (_heads(b, part, groups, size, [0, 2, 1, 3]) for part in (k, v))
        k, v = b.node("Concat", past_k, turned(k), axis=2), b.node("Concat", past_v, v, axis=2)
        present += [k, v]
        keys = b.node("Transpose", repeated(k), perm=[0, 1, 3, 2])
        mixed = _attend(b, q, keys, repeated(v), size, mask)
        x = b.node("Add", x, b.dense(mixed, width, width, bias=False, gain=0.5))
        n = norm(x)
        inner = width * 11 // 4
        gate, up = b.silu(b.dense(n, width, inner, bias=False)), b.dense(n, width, inner, bias=False)
        x = b.node("Add", x, b.dense(b.node("Mul", gate, up), inner, width, bias=False, gain=0.5))
    b.output(b.dense(norm(x), width, words, bias=False), "logits")
    for i, value in enumerate(present):
        b.output(value, f"present_{i // 2}_{'kv'[i % 2]}")
    return b


def lstm(
    name: str = "lstm_bi2x256", words: int = 2000, width: int = 128, hidden: int = 256, length: int = 64
) -> Builder:
    """Two bidirectional layers over tokens, then the mean."""
    b = Builder(name)
    ids = b.input("ids", b.rng.integers(0, words, (1, length)), ["batch", "length"])
    x = b.node("Transpose", b.node("Gather", b.weight(words, width, fan=1), ids), perm=[1, 0, 2])
    for inner in (width, 2 * hidden):
        weights = b.weight(2, 4 * hidden, inner, fan=inner), b.weight(2, 4 * hidden, hidden, fan=hidden)
        bias = b.constant(b.normal(2, 8 * hidden, scale=0.1))
        y = b.node("LSTM", x, *weights, bias, hidden_size=hidden, direction="bidirectional")
        x = b.node("Reshape", b.node("Transpose", y, perm=[0, 2, 1, 3]), b.ints(0, 0, -1))
    mean = b.node("ReduceMean", x, b.ints(0), keepdims=0)
    b.output(b.dense(mean, 2 * hidden, 20), "y")
    return b
