"""ai.onnx.ml: decision trees, their ensembles."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from pyflame_rt.graph import DType, Shape, Tensor, TensorType
from pyflame_rt.graph.errors import InputError, ShapeMismatchError
from pyflame_rt.graph.records import dataclass
from pyflame_rt.ops.core.registry import primitive
from pyflame_rt.ops.ml.scores import feature_needs, label_array, transform_scores, two_class_scores

if TYPE_CHECKING:
    from pyflame_rt.ops.core.value import Value

DOMAIN = "ai.onnx.ml"
_MODES = ("BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ", "BRANCH_MEMBER")
_LEAF = -1
_MEMBER = _MODES.index("BRANCH_MEMBER")
_TESTS = (np.less_equal, np.less, np.greater_equal, np.greater, np.equal, np.not_equal)
_AGGREGATES = ("AVERAGE", "SUM", "MIN", "MAX")
_TRANSFORMS = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT")

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class Forest:
    """Trees as flat arrays, one entry per node; leaves point at themselves.

    Attributes:
        roots: first node of each tree.
        mode: index into the modes, or -1 for a leaf.
        feature, split, yes, no, missing: the test of a node and where it leads.
        sets: values of a membership test, by node.
        weights: [nodes, targets] what a leaf adds.
        present: [nodes, targets] whether a leaf says anything about a target.
    """

    roots: Array
    mode: Array
    feature: Array
    split: Array
    yes: Array
    no: Array
    missing: Array
    sets: dict[int, Array]
    weights: Array
    present: Array

    def leaves(self, x: Array) -> Array:
        """The leaf each row ends in, [rows, trees]."""
        feature = np.where(self.mode == _LEAF, 0, self.feature)
        if int(feature.max(initial=0)) >= max(x.shape[1], 1):
            raise ShapeMismatchError(f"X has {x.shape[1]} features, the trees test feature {int(feature.max())}")
        rows = np.arange(len(x))[:, None]
        current = np.broadcast_to(self.roots, (len(x), len(self.roots))).copy()
        while True:
            mode = self.mode[current]
            if (mode == _LEAF).all():
                return current
            values = x[rows, feature[current]]
            taken = self._tests(mode, values, current)
            taken |= np.isnan(values) & self.missing[current]
            current = np.where(mode == _LEAF, current, np.where(taken, self.yes[current], self.no[current]))

    def _tests(self, mode: Array, values: Array, current: Array) -> Array:
        taken = np.zeros(mode.shape, bool)
        splits = self.split[current]
        for code in np.unique(mode):
            if 0 <= code < _MEMBER:
                taken |= (mode == code) & _TESTS[code](values, splits)
        for node in np.unique(current[mode == _MEMBER]):
            here = current == node
            taken[here] = np.isin(values[here], self.sets[int(node)])
        return taken

    def scores(self, x: Array, aggregate: str) -> tuple[Array, Array]:
        """Sum (or mean, least, largest) over trees, and which targets got any; [rows, targets]."""
        leaves = self.leaves(x)
        shape = (len(x), self.weights.shape[1])
        seen = np.zeros(shape, bool)
        start = {"MIN": np.inf, "MAX": -np.inf}.get(aggregate, 0.0)
        total = np.full(shape, start)
        for tree in range(len(self.roots)):
            leaf = leaves[:, tree]
            weights, present = self.weights[leaf], self.present[leaf]
            if aggregate in ("MIN", "MAX"):
                pick = np.minimum if aggregate == "MIN" else np.maximum
                total = np.where(present, pick(total, weights), total)
            else:
                total += weights
            seen |= present
        if aggregate == "AVERAGE":
            total /= len(self.roots)
        return np.where(seen, total, 0.0), seen


# Forests are built from long attribute lists: those of the last few nodes are kept. The list is
# kept with its forest, so its id cannot come to mean another.
_built: dict[int, tuple[Any, Forest]] = {}
_MOST_BUILT = 16


def _remembered(owner: Any, make: Any) -> Forest:
    found = _built.get(id(owner))
    if found is not None and found[0] is owner:
        return found[1]
    forest = make()
    _check_ends(forest)
    while len(_built) >= _MOST_BUILT:
        _built.pop(next(iter(_built)), None)
    _built[id(owner)] = (owner, forest)
    return forest


def _check_ends(forest: Forest) -> None:
    """Refuse trees in which a walk leaves the nodes there are, or never ends."""
    count = len(forest.mode)
    if (
        not len(forest.feature)
        == len(forest.split)
        == len(forest.yes)
        == len(forest.no)
        == len(forest.missing)
        == count
    ):
        raise InputError("the lists about the nodes of the trees differ in length")
    for what, places in (("root", forest.roots), ("child", forest.yes), ("child", forest.no)):
        wrong = places[(places < 0) | (places >= count)]
        if wrong.size:
            raise InputError(f"a tree has a {what} {int(wrong[0])}, there are {count} nodes")
    inner = np.nonzero(forest.mode != _LEAF)[0]
    if (forest.feature[inner] < 0).any():
        raise InputError(f"a tree tests feature {int(forest.feature[inner].min())}")
    parents = np.bincount(np.concatenate([forest.yes[inner], forest.no[inner]]), minlength=count)
    level, seen = inner[parents[inner] == 0], 0
    while level.size:  # nodes whose parents are all known to end; those of a circle never are
        seen += len(level)
        children, times = np.unique(np.concatenate([forest.yes[level], forest.no[level]]), return_counts=True)
        parents[children] -= times
        level = children[(parents[children] == 0) & (forest.mode[children] != _LEAF)]
    if seen < len(inner):
        stuck = inner[parents[inner] > 0]
        raise InputError(f"the trees go round in a circle: node number {int(stuck[0])} leads back to itself")


def _floats(tensor: Tensor | None, values: list[float] | None) -> Array:
    """Numbers given as a tensor (any precision) or as float32 attributes."""
    return np.asarray(values or [], np.float32) if tensor is None else tensor.raw().ravel()


def _legacy_forest(nodes: dict[str, Any], leaf: tuple[Any, Any, Any, Array], targets: int) -> Forest:
    """From the per-node lists of versions 1 to 4; ``leaf`` is (tree, node, target, weight) lists."""
    trees, ids = np.asarray(nodes["treeids"], np.int64), np.asarray(nodes["nodeids"], np.int64)
    count = len(trees)
    place = {pair: i for i, pair in enumerate(zip(trees.tolist(), ids.tolist(), strict=True))}
    unknown = sorted(set(nodes["modes"]) - {*_MODES, "LEAF"})
    if unknown:
        raise InputError(f"node mode {unknown[0]!r} is not known; known: {', '.join(_MODES)}, LEAF")
    mode = np.array([_LEAF if m == "LEAF" else _MODES.index(m) for m in nodes["modes"]], np.int64)
    own = np.arange(count)

    def resolved(targets_of: Any) -> Array:
        found = [own[i] if mode[i] == _LEAF else place[trees[i], n] for i, n in enumerate(targets_of)]
        return np.asarray(found, np.int64)

    yes, no = resolved(nodes["truenodeids"]), resolved(nodes["falsenodeids"])
    pointed = set(yes[mode != _LEAF].tolist()) | set(no[mode != _LEAF].tolist())
    # The first node of a tree that no other leads to is its root.
    roots = [i for i in range(count) if i not in pointed]
    weights, present = np.zeros((count, targets)), np.zeros((count, targets), bool)
    for tree, node, target, weight in zip(*leaf, strict=True):
        at = place[tree, node]
        weights[at, target] += weight
        present[at, target] = True
    missing = nodes["missing"] or [0] * count
    return Forest(
        np.asarray(roots, np.int64), mode, np.asarray(nodes["featureids"], np.int64), nodes["values"],
        yes, no, np.asarray(missing, bool), {}, weights, present,
    )  # fmt: skip


def _rows(X: Any, exact: bool) -> Array:
    """Rows of features in the type that tests compare in."""
    x = X.reshape(1, -1) if X.ndim == 1 else X
    return x.astype(np.float64 if exact else np.float32, copy=False)


def _compared(X: Any, values: Array) -> Array:
    """Doubles are compared as such only against splits that are doubles."""
    return _rows(X, X.dtype == np.float64 or values.dtype == np.float64)


# ---------------------------------------------------------------------- regressor


def _regressed_type(X: Value, /, *, n_targets: int | None = None, **_: Any) -> TensorType:
    shape = X.tensor_type.shape
    rows = None if shape is None else 1 if len(shape) == 1 else shape[0]
    return TensorType(DType.Float32, Shape([rows, n_targets]))


@primitive(since=5, domain=DOMAIN, infer=_regressed_type, requires=feature_needs, host=True)
def TreeEnsembleRegressor(
    ops: Any,
    X: Any,
    /,
    *,
    aggregate_function: str = "SUM",
    base_values: list[float] | None = None,
    base_values_as_tensor: Tensor | None = None,
    n_targets: int | None = None,
    nodes_falsenodeids: list[int] | None = None,
    nodes_featureids: list[int] | None = None,
    nodes_hitrates: list[float] | None = None,
    nodes_hitrates_as_tensor: Tensor | None = None,
    nodes_missing_value_tracks_true: list[int] | None = None,
    nodes_modes: list[str] | None = None,
    nodes_nodeids: list[int] | None = None,
    nodes_treeids: list[int] | None = None,
    nodes_truenodeids: list[int] | None = None,
    nodes_values: list[float] | None = None,
    nodes_values_as_tensor: Tensor | None = None,
    post_transform: str = "NONE",
    target_ids: list[int] | None = None,
    target_nodeids: list[int] | None = None,
    target_treeids: list[int] | None = None,
    target_weights: list[float] | None = None,
    target_weights_as_tensor: Tensor | None = None,
) -> Any:
    """Numbers from trees: the leaves reached are summed, or averaged, or the extreme one taken."""
    targets = n_targets or 1
    values = _floats(nodes_values_as_tensor, nodes_values)
    nodes = {
        "treeids": nodes_treeids, "nodeids": nodes_nodeids, "modes": nodes_modes, "featureids": nodes_featureids,
        "values": values, "truenodeids": nodes_truenodeids, "falsenodeids": nodes_falsenodeids,
        "missing": nodes_missing_value_tracks_true,
    }  # fmt: skip
    leaf = (target_treeids, target_nodeids, target_ids, _floats(target_weights_as_tensor, target_weights))
    forest = _remembered(nodes_modes, lambda: _legacy_forest(nodes, leaf, targets))
    scores, _ = forest.scores(_compared(X, values), aggregate_function)
    base = _floats(base_values_as_tensor, base_values)
    return transform_scores(scores + base if base.size else scores, post_transform).astype(np.float32)


# ---------------------------------------------------------------------- classifier


def _classified_type(
    X: Value,
    /,
    *,
    classlabels_strings: list[str] | None = None,
    classlabels_int64s: list[int] | None = None,
    **_: Any,
) -> tuple[TensorType, TensorType]:
    shape = X.tensor_type.shape
    rows = None if shape is None else 1 if len(shape) == 1 else shape[0]
    count = len(classlabels_strings or classlabels_int64s or [])
    kind = DType.String if classlabels_strings else DType.Int64
    return TensorType(kind, Shape([rows])), TensorType(DType.Float32, Shape([rows, count if count > 1 else None]))


@primitive(since=5, domain=DOMAIN, infer=_classified_type, requires=feature_needs, host=True)
def TreeEnsembleClassifier(
    ops: Any,
    X: Any,
    /,
    *,
    base_values: list[float] | None = None,
    base_values_as_tensor: Tensor | None = None,
    class_ids: list[int] | None = None,
    class_nodeids: list[int] | None = None,
    class_treeids: list[int] | None = None,
    class_weights: list[float] | None = None,
    class_weights_as_tensor: Tensor | None = None,
    classlabels_int64s: list[int] | None = None,
    classlabels_strings: list[str] | None = None,
    nodes_falsenodeids: list[int] | None = None,
    nodes_featureids: list[int] | None = None,
    nodes_hitrates: list[float] | None = None,
    nodes_hitrates_as_tensor: Tensor | None = None,
    nodes_missing_value_tracks_true: list[int] | None = None,
    nodes_modes: list[str] | None = None,
    nodes_nodeids: list[int] | None = None,
    nodes_treeids: list[int] | None = None,
    nodes_truenodeids: list[int] | None = None,
    nodes_values: list[float] | None = None,
    nodes_values_as_tensor: Tensor | None = None,
    post_transform: str = "NONE",
) -> Any:
    """The class the trees vote for, and the scores of all."""
    labels = label_array(classlabels_strings, classlabels_int64s)
    values = _floats(nodes_values_as_tensor, nodes_values)
    weights = _floats(class_weights_as_tensor, class_weights)
    nodes = {
        "treeids": nodes_treeids, "nodeids": nodes_nodeids, "modes": nodes_modes, "featureids": nodes_featureids,
        "values": values, "truenodeids": nodes_truenodeids, "falsenodeids": nodes_falsenodeids,
        "missing": nodes_missing_value_tracks_true,
    }  # fmt: skip
    leaf = (class_treeids, class_nodeids, class_ids, weights)
    forest = _remembered(nodes_modes, lambda: _legacy_forest(nodes, leaf, max(len(labels), 1)))
    scores, seen = forest.scores(_compared(X, values), "SUM")
    base = _floats(base_values_as_tensor, base_values)
    weighed = set(class_ids or [])
    if len(labels) != 2 or len(weighed) != 1 or base.size > 1:
        if base.size:
            scores, seen = scores + base, np.ones_like(seen)
        # A class no leaf spoke of does not win, even over negative scores.
        place = np.where(seen, scores, -np.inf).argmax(axis=1)
        return labels[place], transform_scores(scores, post_transform).astype(np.float32)
    (column,) = weighed
    score = scores[:, column] + (base[0] if base.size else 0.0)
    return _one_sided(score, column, labels, bool((weights >= 0).all()), post_transform)


def _one_sided(score: Array, column: int, labels: Array, positive: bool, post_transform: str) -> tuple[Array, Array]:
    """Two classes, one score: probabilities if no weight is negative, else decision values.

    Weights for column 0 mean the second class all the same, and the first one's score follows from
    them; weights for column 1 leave the first column 0. So do the runtimes that exporters write for.
    """
    won = score > (0.5 if positive else 0.0)
    if column == 0:
        both = two_class_scores(score, complement=positive, post_transform=post_transform)
    else:
        both = transform_scores(np.stack([np.zeros_like(score), score], axis=1), post_transform)
    return labels[won.astype(np.int64)], both.astype(np.float32)


# ---------------------------------------------------------------------- version 5


def _ensemble_type(X: Value, /, *, n_targets: int | None = None, **_: Any) -> TensorType:
    shape = X.tensor_type.shape
    rows = None if shape is None else 1 if len(shape) == 1 else shape[0]
    return TensorType(X.dtype, Shape([rows, n_targets]))


@primitive(since=5, domain=DOMAIN, infer=_ensemble_type, requires=feature_needs, host=True)
def TreeEnsemble(
    ops: Any,
    X: Any,
    /,
    *,
    aggregate_function: int = 1,
    leaf_targetids: list[int],
    leaf_weights: Tensor,
    membership_values: Tensor | None = None,
    n_targets: int | None = None,
    nodes_falseleafs: list[int],
    nodes_falsenodeids: list[int],
    nodes_featureids: list[int],
    nodes_hitrates: Tensor | None = None,
    nodes_missing_value_tracks_true: list[int] | None = None,
    nodes_modes: Tensor,
    nodes_splits: Tensor,
    nodes_trueleafs: list[int],
    nodes_truenodeids: list[int],
    post_transform: int = 0,
    tree_roots: list[int],
) -> Any:
    """Numbers from trees whose leaves are kept apart from their inner nodes."""

    def make() -> Forest:
        inner, leaves = len(nodes_featureids), len(leaf_targetids)
        codes = nodes_modes.raw().astype(np.int64).ravel()

        def joined(ids: list[int], to_leaf: list[int]) -> Array:
            ends = np.asarray(ids, np.int64) + np.where(np.asarray(to_leaf, bool), inner, 0)
            return np.concatenate([ends, inner + np.arange(leaves)])

        weights = np.zeros((inner + leaves, n_targets or 1))
        present = np.zeros(weights.shape, bool)
        rows = inner + np.arange(leaves)
        weights[rows, leaf_targetids] = leaf_weights.raw().ravel()
        present[rows, leaf_targetids] = True
        missing = np.asarray(nodes_missing_value_tracks_true or [0] * inner, bool)
        splits = nodes_splits.raw().ravel()
        return Forest(
            np.asarray(tree_roots, np.int64),
            np.concatenate([codes, np.full(leaves, _LEAF)]),
            np.concatenate([np.asarray(nodes_featureids, np.int64), np.zeros(leaves, np.int64)]),
            np.concatenate([splits, np.zeros(leaves, splits.dtype)]),
            joined(nodes_truenodeids, nodes_trueleafs),
            joined(nodes_falsenodeids, nodes_falseleafs),
            np.concatenate([missing, np.zeros(leaves, bool)]),
            _member_sets(codes, membership_values),
            weights,
            present,
        )

    forest = _remembered(nodes_featureids, make)
    scores, _ = forest.scores(_rows(X, X.dtype == np.float64), _AGGREGATES[aggregate_function])
    return transform_scores(scores, _TRANSFORMS[post_transform]).astype(X.dtype)


def _member_sets(codes: Array, values: Tensor | None) -> dict[int, Array]:
    """Sets of membership tests: NaN ends each, in the order of the nodes."""
    nodes = np.nonzero(codes == _MEMBER)[0]
    if not nodes.size:
        return {}
    if values is None:
        raise InputError("BRANCH_MEMBER needs membership_values")
    flat = values.raw().ravel()
    ends = np.nonzero(np.isnan(flat))[0]
    sets = [part[~np.isnan(part)] for part in np.split(flat, ends)]
    return {int(node): members for node, members in zip(nodes, sets, strict=False)}
