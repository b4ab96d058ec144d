"""A small GPT with past keys and values, in the form exporters write."""

import numpy as np

from pyflame_rt import DType, Graph

WORDS, WIDTH, HEADS, SIZE, LAYERS = 31, 16, 2, 8, 2


def decoder(seed: int = 4, words: int = WORDS) -> Graph:
    """The graph, with weights drawn with a seed."""
    graph, rng = Graph("gpt"), np.random.default_rng(seed)
    graph.add_input("input_ids", ["batch", "length"], DType.Int64)
    graph.add_input("attention_mask", ["batch", "total"], DType.Int64)
    graph.add_input("position_ids", ["batch", "length"], DType.Int64)
    numbers = iter(range(10_000))

    def constant(value) -> str:
        name = f"c{next(numbers)}"
        graph.add_initializer(name, np.asarray(value))
        return name

    def weight(*shape) -> str:
        return constant((rng.standard_normal(shape) * shape[0] ** -0.5).astype(np.float32))

    def node(op, *inputs, **attrs) -> str:
        name = f"v{next(numbers)}"
        graph.add_node(f"n{name}", op, list(inputs), [name], attrs=attrs)
        return name

    def size_of(value, axis) -> str:
        return node("Gather", node("Shape", value), constant(np.int64(axis)))

    table = weight(words, WIDTH)
    x = node("Add", node("Gather", table, "input_ids"), node("Gather", weight(200, WIDTH), "position_ids"))
    past = size_of("past_key_values.0.key", 2) if LAYERS else ""
    for i in range(LAYERS):
        for kind in ("key", "value"):
            graph.add_input(f"past_key_values.{i}.{kind}", ["batch", HEADS, "past", SIZE])
    total = size_of("attention_mask", 1)
    zero, one = constant(np.int64(0)), constant(np.int64(1))
    keys, queries = node("Range", zero, total, one), node("Range", past, total, one)
    causal = node("LessOrEqual", keys, node("Unsqueeze", queries, constant([1])))
    there = node("Cast", node("Unsqueeze", "attention_mask", constant([1, 2])), to=9)
    seen = node("And", node("Unsqueeze", causal, constant([0, 1])), there)
    present = []
    for i in range(LAYERS):
        q, k, v = (
            node(
                "Transpose",
                node("Reshape", node("MatMul", x, weight(WIDTH, WIDTH)), constant([0, 0, HEADS, SIZE])),
                perm=[0, 2, 1, 3],
            )
            for _ in range(3)
        )
        k = node("Concat", f"past_key_values.{i}.key", k, axis=2)
        v = node("Concat", f"past_key_values.{i}.value", v, axis=2)
        present += [k, v]
        scores = node(
            "Div", node("MatMul", q, node("Transpose", k, perm=[0, 1, 3, 2])), constant(np.float32(SIZE**0.5))
        )
        mixed = node("MatMul", node("Softmax", node("Where", seen, scores, constant(np.float32(-1e9))), axis=-1), v)
        mixed = node("Reshape", node("Transpose", mixed, perm=[0, 2, 1, 3]), constant([0, 0, WIDTH]))
        x = node("Add", x, node("MatMul", mixed, weight(WIDTH, WIDTH)))
        x = node("Add", x, node("MatMul", node("Relu", node("MatMul", x, weight(WIDTH, 32))), weight(32, WIDTH)))
    graph.add_node("head", "MatMul", [x, node("Transpose", table, perm=[1, 0])], ["logits"])
    graph.add_output("logits", ["batch", "length", words])
    for i, value in enumerate(present):
        name = f"present.{i // 2}.{('key', 'value')[i % 2]}"
        graph.add_node(f"out{i}", "Identity", [value], [name])
        graph.add_output(name, ["batch", HEADS, "total", SIZE])
    return graph


def scores(session, tokens) -> np.ndarray:
    """Scores of what follows tokens, which are all run anew."""
    ids = np.array([tokens])
    feed = {"input_ids": ids, "attention_mask": np.ones_like(ids), "position_ids": np.arange(len(tokens))[None]}
    for i in range(LAYERS):
        for kind in ("key", "value"):
            feed[f"past_key_values.{i}.{kind}"] = np.zeros((1, HEADS, 0, SIZE), np.float32)
    return session.run(["logits"], feed)[0][0, -1]
