"""Inputs of sequences, strings, control flow, ai.onnx.ml and the runtime's own operators."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from pyflame_rt.graph import DType, Graph, Tensor
from tests.generated.draw import F32, I32, I64, Draw, S, Sample, sample

__all__: list[str] = []

ml = partial(sample, domain="ai.onnx.ml")
own = partial(sample, domain="pyflame")


# ---------------------------------------------------------------------- sequences and optionals


def _sequence(r: Draw, count: int | None = None) -> list[Any]:
    shape = r.dims(1, 2)
    return [r.f(*shape) for _ in range(r.n(1, 3) if count is None else count)]


@sample("ConcatFromSequence")
def concat_from_sequence(r: Draw) -> Sample:
    return S(_sequence(r), axis=0, new_axis=r.k(0, 1))


@sample("SequenceAt")
def sequence_at(r: Draw) -> Sample:
    items = _sequence(r)
    return S(items, np.asarray(r.run.integers(-len(items), len(items)), I64))


@sample("SequenceErase")
def sequence_erase(r: Draw) -> Sample:
    return sequence_at(r)


@sample("SequenceInsert")
def sequence_insert(r: Draw) -> Sample:
    items = _sequence(r)
    return S(items, r.f(*items[0].shape), np.asarray(r.n(0, len(items)), I64))


@sample("SequenceConstruct")
def sequence_construct(r: Draw) -> Sample:
    return S(*_sequence(r, r.k(1, 3)))


@sample("SequenceEmpty")
def sequence_empty(r: Draw) -> Sample:
    return S(dtype=1)


@sample("SequenceLength")
def sequence_length(r: Draw) -> Sample:
    return S(_sequence(r))


@sample("SplitToSequence")
def split_to_sequence(r: Draw) -> Sample:
    x = r.f(r.n(2, 6), r.n())
    if r.chance():
        return S(x, np.array([1, x.shape[0] - 1], I64), axis=0)
    return S(x, np.asarray(2, I64), axis=0)


@sample("Optional", "OptionalGetElement", "OptionalHasElement")
def optional(r: Draw) -> Sample:
    return S(r.f(*r.dims()))


# ---------------------------------------------------------------------- control flow


def _body(
    op: str, inputs: list[tuple[str, DType]], nodes: list[tuple[str, list[str], list[str]]], outs: list[str]
) -> Graph:
    g = Graph(op)
    for name, dtype in inputs:
        g.add_input(name, None, dtype)
    for i, (kind, takes, gives) in enumerate(nodes):
        g.add_node(f"{op}_{i}", kind, takes, gives)
    for name in outs:
        g.add_output(name, None, DType.Float32)
    return g


@sample("If")
def branch(r: Draw) -> Sample:
    then = _body("then", [("c", DType.Float32)], [("Relu", ["c"], ["a"])], ["a"])
    other = _body("else", [("c", DType.Float32)], [("Exp", ["c"], ["b"])], ["b"])
    return S(np.asarray(r.n(0, 1), bool), r.f(*r.dims()), then_branch=then, else_branch=other, captured=1)


@sample("Loop")
def loop(r: Draw) -> Sample:
    body = _body(
        "loop", [("i", DType.Int64), ("go", DType.Bool), ("v", DType.Float32)],
        [("Add", ["v", "v"], ["w"]), ("Less", ["i", "six"], ["on"]), ("Tanh", ["w"], ["s"])], ["on", "w", "s"],
    )  # fmt: skip
    body.add_initializer("six", np.asarray(6, I64))  # without a trip count it ends by itself
    return S(np.asarray(r.n(0, 4), I64), np.asarray(True), r.f(*r.dims(1, 2)), body=body, outs=2)


@sample("Scan")
def scan(r: Draw) -> Sample:
    body = _body(
        "scan", [("s", DType.Float32), ("x", DType.Float32)],
        [("Add", ["s", "x"], ["t"]), ("Relu", ["t"], ["y"])], ["t", "y"],
    )  # fmt: skip
    t, n = r.n(), r.n()
    return S(r.f(n), r.f(t, n), body=body, num_scan_inputs=1, outs=2)


@own("BatchedScan")
def batched_scan(r: Draw) -> Sample:
    made = scan(r)
    n, t, k = r.n(), r.n(), r.n()
    return S(r.i(0, t + 1, n), r.f(n, k), r.f(n, t, k), outs=2, **made.attributes)


@sample("SequenceMap")
def sequence_map(r: Draw) -> Sample:
    body = _body("map", [("x", DType.Float32)], [("Exp", ["x"], ["y"])], ["y"])
    return S(_sequence(r), body=body)


# ---------------------------------------------------------------------- strings, images


@sample("StringConcat")
def string_concat(r: Draw) -> Sample:
    shape = r.dims(1, 2)
    return S(r.words(*shape), r.words(*shape))


@sample("StringNormalizer")
def string_normalizer(r: Draw) -> Sample:
    return S(r.words(r.n()), case_change_action=r.pick(["LOWER", "UPPER", "NONE"]))


@sample("StringSplit")
def string_split(r: Draw) -> Sample:
    return S(r.words(*r.dims(1, 2)), outs=2)


@sample("RegexFullMatch")
def regex(r: Draw) -> Sample:
    return S(r.words(*r.dims(1, 2)), pattern="[a-z]+")


@sample("TfIdfVectorizer")
def tfidf(r: Draw) -> Sample:
    return S(
        r.i(0, 6, r.n(1, 3), r.n(1, 6), dtype=I32), max_gram_length=2, max_skip_count=1, min_gram_length=1, mode="TF",
        ngram_counts=[0, 3], ngram_indexes=[0, 1, 2, 3, 4], pool_int64s=[1, 2, 3, 1, 2, 3, 4],
    )  # fmt: skip


@sample("ImageDecoder")
def image_decoder(r: Draw) -> Sample:
    from io import BytesIO

    from PIL import Image

    out = BytesIO()
    Image.fromarray(r.u8(r.n(2, 4), r.n(2, 4), 3)).save(out, "png")
    return S(np.frombuffer(out.getvalue(), np.uint8).copy())


# ---------------------------------------------------------------------- ai.onnx.ml


@ml("ArrayFeatureExtractor")
def array_feature_extractor(r: Draw) -> Sample:
    x = r.f(r.n(), r.n())
    return S(x, r.i(0, x.shape[1], r.n()))


@ml("Binarizer")
def binarizer(r: Draw) -> Sample:
    return S(r.f(*r.dims(1, 2)))


@ml("CastMap")
def cast_map(r: Draw) -> Sample:
    return S({0: 1.5, 2: 2.5}, map_form="SPARSE", max_map=4)


@ml("CategoryMapper")
def category_mapper(r: Draw) -> Sample:
    return S(r.words(r.n(), 1), cats_int64s=[1, 2, 3], cats_strings=["a", "Bc", "x1"])


@ml("DictVectorizer")
def dict_vectorizer(r: Draw) -> Sample:
    return S({"a": 1.5, "c": 2.5}, string_vocabulary=["a", "b", "c"])


@ml("FeatureVectorizer")
def feature_vectorizer(r: Draw) -> Sample:
    n = r.n()
    return S(r.f(n, 2), r.f(n, 3), inputdimensions=[2, 3])


@ml("Imputer")
def imputer(r: Draw) -> Sample:
    return S(r.f(r.n(), 3), imputed_value_floats=[1.0, 2.0, 3.0], replaced_value_float=0.0)


@ml("LabelEncoder")
def label_encoder(r: Draw) -> Sample:
    return S(r.i(0, 4, *r.dims(1, 2)), keys_int64s=[0, 1, 2], values_floats=[0.5, 1.5, 2.5])


@ml("LinearClassifier")
def linear_classifier(r: Draw) -> Sample:
    numbers = [float(v) for v in r.model.standard_normal(12)]
    return S(r.f(r.n(), 3), classlabels_ints=[0, 1, 2], coefficients=numbers[:9], intercepts=numbers[9:], outs=2)


@ml("LinearRegressor")
def linear_regressor(r: Draw) -> Sample:
    numbers = [float(v) for v in r.model.standard_normal(8)]
    return S(r.f(r.n(), 3), coefficients=numbers[:6], intercepts=numbers[6:], targets=2)


@ml("Normalizer")
def normalizer(r: Draw) -> Sample:
    return S(r.f(r.n(), r.n()), norm=r.pick(["MAX", "L1", "L2"]))


@ml("OneHotEncoder")
def one_hot_encoder(r: Draw) -> Sample:
    return S(r.i(0, 4, *r.dims(1, 2)), cats_int64s=[0, 1, 2])


@ml("SVMClassifier")
def svm_classifier(r: Draw) -> Sample:
    numbers = [float(v) for v in r.model.standard_normal(40)]
    return S(
        r.f(r.n(), 3), classlabels_ints=[3, 4], vectors_per_class=[2, 3], coefficients=numbers[:5],
        support_vectors=numbers[5:20], rho=numbers[20:21], kernel_type="RBF", kernel_params=[0.5, 0.3, 2.0], outs=2,
    )  # fmt: skip


@ml("SVMRegressor")
def svm_regressor(r: Draw) -> Sample:
    numbers = [float(v) for v in r.model.standard_normal(40)]
    return S(
        r.f(r.n(), 3), coefficients=numbers[:5], support_vectors=numbers[5:20], n_supports=5, rho=[0.2],
        kernel_type="LINEAR", kernel_params=[0.5, 0.3, 2.0],
    )  # fmt: skip


@ml("Scaler")
def scaler(r: Draw) -> Sample:
    return S(r.f(r.n(), 3), offset=[0.1, 0.2, 0.3], scale=[1.0, 2.0, 3.0])


_TREE: dict[str, Any] = {
    "nodes_treeids": [0, 0, 0], "nodes_nodeids": [0, 1, 2], "nodes_modes": ["BRANCH_LEQ", "LEAF", "LEAF"],
    "nodes_featureids": [1, 0, 0], "nodes_values": [0.2, 0.0, 0.0], "nodes_truenodeids": [1, 0, 0],
    "nodes_falsenodeids": [2, 0, 0],
}  # fmt: skip


def _leaves(prefix: str) -> dict[str, Any]:
    return {
        f"{prefix}_treeids": [0, 0], f"{prefix}_nodeids": [1, 2], f"{prefix}_ids": [0, 1],
        f"{prefix}_weights": [0.5, 1.5],
    }  # fmt: skip


@ml("TreeEnsembleClassifier")
def tree_classifier(r: Draw) -> Sample:
    return S(r.f(r.n(), 3), classlabels_int64s=[0, 1], outs=2, **_TREE, **_leaves("class"))


@ml("TreeEnsembleRegressor")
def tree_regressor(r: Draw) -> Sample:
    return S(r.f(r.n(), 3), n_targets=2, **_TREE, **_leaves("target"))


@ml("TreeEnsemble")
def tree_ensemble(r: Draw) -> Sample:
    return S(
        np.asarray(r.f(r.n(), 2), np.float64), n_targets=2, aggregate_function=1, post_transform=0, tree_roots=[0],
        nodes_modes=Tensor(np.array([0, 0], np.uint8)), nodes_splits=Tensor(np.array([0, 0.5], np.float64)),
        nodes_featureids=[0, 1], nodes_truenodeids=[1, 0], nodes_trueleafs=[0, 1], nodes_falsenodeids=[2, 1],
        nodes_falseleafs=[1, 1], leaf_targetids=[0, 1, 0], leaf_weights=Tensor(np.array([10.0, 20.0, 30.0])),
    )  # fmt: skip


@ml("ZipMap")
def zip_map(r: Draw) -> Sample:
    return S(r.f(r.n(), 2), classlabels_int64s=[3, 4])


# ---------------------------------------------------------------------- the runtime's own


@own("After")
def after(r: Draw) -> Sample:
    return S(r.f(*r.dims()), r.f(*r.dims()))


@own("AlignAxis")
def align_axis(r: Draw) -> Sample:
    x = r.f(*r.dims(1, 3))
    axis = r.axis(x.ndim)
    return S(r.f(*x.shape[axis:]), x, axis=axis)


@own("Bundle")
def bundle(r: Draw) -> Sample:
    return S(r.f(*r.dims()), r.f(*r.dims()), outs=2)


@own("CTCLoss", "CTCLossGrad")
def ctc(r: Draw) -> Sample:
    t, n, c = r.n(3, 5), r.n(), 3
    x = r.f(t, n, c)
    return S(
        np.asarray(x - np.log(np.exp(x).sum(-1, keepdims=True)), F32), r.i(1, c, n, 2), np.full(n, t, I64), r.i(1, 3, n)
    )


@own("ClassScore")
def class_score(r: Draw) -> Sample:
    n, c = r.n(), r.n(2, 4)
    return S(r.f(n, c), r.i(0, c, n, 1), outs=3)


@own("ClassScoreGrad")
def class_score_grad(r: Draw) -> Sample:
    n, c = r.n(), r.n(2, 4)
    x = r.f(n, c)
    top = x.max(1, keepdims=True)
    return S(r.f(n, 1), x, r.i(0, c, n, 1), top, np.log(np.exp(x - top).sum(1, keepdims=True)))


@own("ConvWeightGrad")
def conv_weight_grad(r: Draw) -> Sample:
    n, h, w = r.n(), r.n(3, 5), r.n(3, 5)
    return S(
        r.f(n, 2, h, w), r.f(n, 3, h - 1, w - 1), kernel_shape=[2, 2], strides=[1, 1], dilations=[1, 1], pads=[0] * 4
    )


@own("Dims")
def dims(r: Draw) -> Sample:
    return S(dims=["2", "3"])


@own("DropoutMask")
def dropout_mask(r: Draw) -> Sample:
    return S(r.f(*r.dims()), np.asarray(0.5, F32), seed=1)


@own("GeluSlope", "Probit")
def own_unary(r: Draw) -> Sample:
    return S(r.pos(*r.dims()) / 2.1)


@own("KeyedBits", "KeyedNormal", "KeyedUniform")
def keyed(r: Draw) -> Sample:
    return S(np.array(r.dims(1, 2), I64), r.i(0, 99, 2))


@own("RandomBits")
def random_bits(r: Draw) -> Sample:
    return S(np.array(r.dims(1, 2), I64), seed=1)


@own("LayoutTransform")
def layout_transform(r: Draw) -> Sample:
    return S(r.f(r.n(), r.n(), r.n(), r.n()), source="NCHW", target="NHWC")


@own("SumTo")
def sum_to(r: Draw) -> Sample:
    shape = r.dims()
    return S(r.f(*shape), np.array(r.spread(shape), I64))


@own("Within")
def within(r: Draw) -> Sample:
    return S(r.i(0, 5, *r.dims(0, 3)), low=0, high=4)
