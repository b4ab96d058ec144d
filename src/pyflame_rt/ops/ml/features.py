"""ai.onnx.ml: scaling, encoding and linear models."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from pyflame_rt.graph import DType, MapType, Node, SequenceType, Shape, Tensor, TensorType
from pyflame_rt.graph.errors import InputError, ShapeMismatchError, UndeterminedError
from pyflame_rt.ops.core.guards import Within, has_rank, same_size
from pyflame_rt.ops.core.registry import operator, primitive
from pyflame_rt.ops.core.type_rules import same, static_size
from pyflame_rt.ops.core.upgrade import Upgrade, upgrade
from pyflame_rt.ops.core.value import Value, constant
from pyflame_rt.ops.ml.scores import feature_needs
from pyflame_rt.ops.onnx.activation import Sigmoid, Softmax
from pyflame_rt.ops.onnx.arithmetic import Abs
from pyflame_rt.ops.onnx.cast import Cast
from pyflame_rt.ops.onnx.index import Gather
from pyflame_rt.ops.onnx.logic import Equal, Greater, Where
from pyflame_rt.ops.onnx.math import Exp, IsNaN, Sqrt
from pyflame_rt.ops.onnx.matmul import MatMul
from pyflame_rt.ops.onnx.reduce import ArgMax, ReduceMax, ReduceSum
from pyflame_rt.ops.onnx.shape import Reshape
from pyflame_rt.ops.onnx.slicing import Concat, Pad, Slice

if TYPE_CHECKING:
    from collections.abc import Iterator

DOMAIN = "ai.onnx.ml"

# ---------------------------------------------------------------------- features


def _extractor_needs(X: Value, Y: Value, /) -> Iterator[Within]:
    size = X.shape[-1] if X.rank else 1
    yield Within("Y", Y, 0, None if size is None else size - 1)


@operator(since=1, domain=DOMAIN, requires=_extractor_needs)
def ArrayFeatureExtractor(X: Value, Y: Value, /) -> Value:
    """Chosen elements of the last axis."""
    x = Reshape(X, [1, -1]) if X.rank == 1 else X
    return Gather(x, Reshape(Y, [-1]), axis=x.rank - 1)


@operator(since=1, domain=DOMAIN)
def Binarizer(X: Value, /, *, threshold: float = 0.0) -> Value:
    """1 above the threshold, else 0."""
    return Cast(Greater(X, constant(threshold, X)), to=X.dtype)


@operator(since=1, domain=DOMAIN)
def Scaler(X: Value, /, *, offset: list[float] | None = None, scale: list[float] | None = None) -> Value:
    """``(x - offset) * scale``, for each feature or for all."""
    y = Cast(X, to=DType.Float32)
    if offset:
        y = y - constant(offset, DType.Float32)
    return y * constant(scale, DType.Float32) if scale else y


@operator(since=1, domain=DOMAIN)
def Imputer(
    X: Value,
    /,
    *,
    imputed_value_floats: list[float] | None = None,
    imputed_value_int64s: list[int] | None = None,
    replaced_value_float: float = 0.0,
    replaced_value_int64: int = 0,
) -> Value:
    """Replace one value (or NaN) by others, for each feature or for all."""
    if X.dtype.is_integer:
        imputed, missing = imputed_value_int64s, Equal(X, constant(replaced_value_int64, X))
    else:
        imputed, nan = imputed_value_floats, math.isnan(replaced_value_float)
        missing = IsNaN(X) if nan else Equal(X, constant(replaced_value_float, X))
    if not imputed:
        raise InputError(f"no imputed values are given for a tensor of {X.dtype.label}")
    return Where(missing, constant(imputed if len(imputed) > 1 else imputed[0], X), X)


@operator(since=1, domain=DOMAIN)
def Normalizer(X: Value, /, *, norm: str = "MAX") -> Value:
    """Rows divided by their maximum, sum of absolute values, or length."""
    x = Cast(X, to=DType.Float32)
    last = [x.rank - 1]
    match norm:
        case "MAX":
            length = ReduceMax(x, last)
        case "L1":
            length = ReduceSum(Abs(x), last)
        case "L2":
            length = Sqrt(ReduceSum(x * x, last))
        case _:
            raise InputError(f"norm is {norm!r}; known: MAX, L1, L2")
    return x / _unless_zero(length)


def _unless_zero(x: Value) -> Value:
    """``x``, with 1 in place of 0: safe to divide by."""
    return Where(Equal(x, 0.0), constant(1.0, x), x)


@operator(since=1, domain=DOMAIN)
def FeatureVectorizer(*X: Value, inputdimensions: list[int] | None = None) -> Value:
    """Features side by side, each cut or filled up with zeros to its size."""
    columns = []
    if inputdimensions and len(inputdimensions) != len(X):
        raise InputError(f"inputdimensions are {len(inputdimensions)} numbers, but there are {len(X)} inputs")
    for i, x in enumerate(X):
        flat = Cast(Reshape(x, [1 if x.rank == 1 else x.shape[0], -1]), to=DType.Float32)
        if inputdimensions:
            have, want = static_size(flat.shape[1]), inputdimensions[i]
            if have > want:
                flat = Slice(flat, [0], [want], [1])
            elif have < want:
                flat = Pad(flat, [0, 0, 0, want - have])
        columns.append(flat)
    return Concat(*columns, axis=1)


# ---------------------------------------------------------------------- linear models


@primitive(
    since=1,
    domain="pyflame",
    infer=same,
    vjp=lambda g, y, x: (g * Exp(y * y * 0.5) * math.sqrt(2 * math.pi),),
    elementwise=True,
    types="T:float > T",
)
def Probit(ops: Any, X: Any, /) -> Any:
    """The inverse of the normal distribution function."""
    return ops.multiply(ops.erfinv(ops.subtract(ops.multiply(X, 2.0), 1.0)), math.sqrt(2.0))


def transformed(scores: Value, kind: str) -> Value:
    """Scores after one of ONNX's post transforms."""
    match kind:
        case "NONE":
            return scores
        case "LOGISTIC":
            return Sigmoid(scores)
        case "SOFTMAX":
            return Softmax(scores, axis=-1)
        case "SOFTMAX_ZERO":
            top = ReduceMax(scores, [scores.rank - 1])
            near = Abs(scores) < 1e-7
            grown = Where(near, scores * Exp(-top), Exp(scores - top))
            return grown / ReduceSum(grown, [scores.rank - 1])
        case "PROBIT":
            return Probit(scores)
        case _:
            raise InputError(f"post_transform is {kind!r}; known: NONE, LOGISTIC, SOFTMAX, SOFTMAX_ZERO, PROBIT")


def _linear(X: Value, coefficients: list[float], intercepts: list[float] | None, rows: int) -> Value:
    """``x @ coefficients.T + intercepts`` with one row of coefficients for each output."""
    x = Cast(Reshape(X, [1, -1]) if X.rank == 1 else X, to=DType.Float32)
    weights = np.asarray(coefficients, np.float32).reshape(rows, -1).T
    y = MatMul(x, constant(np.ascontiguousarray(weights)))
    return y + constant(np.asarray(intercepts, np.float32)) if intercepts else y


@operator(since=1, domain=DOMAIN, requires=feature_needs)
def LinearRegressor(
    X: Value,
    /,
    *,
    coefficients: list[float] | None = None,
    intercepts: list[float] | None = None,
    post_transform: str = "NONE",
    targets: int = 1,
) -> Value:
    """Linear functions of the features."""
    if not coefficients:
        raise InputError("coefficients are needed")
    return transformed(_linear(X, coefficients, intercepts, targets), post_transform)


@operator(since=1, domain=DOMAIN, requires=feature_needs)
def LinearClassifier(
    X: Value,
    /,
    *,
    classlabels_ints: list[int] | None = None,
    classlabels_strings: list[str] | None = None,
    coefficients: list[float],
    intercepts: list[float] | None = None,
    multi_class: int = 0,
    post_transform: str = "NONE",
) -> tuple[Value, Value]:
    """The class with the largest linear score, and the scores."""
    labels: list[Any] = classlabels_strings or classlabels_ints or []
    features = static_size(X.shape[-1])
    rows = len(coefficients) // features
    if rows * features != len(coefficients):
        raise ShapeMismatchError(f"{len(coefficients)} coefficients do not fit {features} features")
    scores = _linear(X, coefficients, intercepts, rows)
    if rows > 1:
        place = ArgMax(scores, axis=1, keepdims=0)
        return Gather(_labels(labels), place), transformed(scores, post_transform)
    if not labels:
        labels = [0, 1]
    place = Cast(Reshape(scores, [-1]) > 0.0, to=DType.Int64)
    if len(labels) == 1:  # the one class, or not it
        labels = [labels[0], 1] if isinstance(labels[0], int) else [labels[0], "1"]
        return Gather(_labels(labels), place), transformed(scores, post_transform)
    return Gather(_labels(labels), place), _second_class(scores, post_transform)


def _second_class(score: Value, kind: str) -> Value:
    """Scores of both classes from the one of the positive class; softmax leaves them alone."""
    if kind == "LOGISTIC":
        return Sigmoid(Concat(-score, score, axis=1))
    both = Concat(1.0 - score, score, axis=1)
    return Probit(both) if kind == "PROBIT" else both


def _labels(labels: list[Any]) -> Value:
    return constant(labels, DType.String if isinstance(labels[0], str) else DType.Int64)


# ---------------------------------------------------------------------- categories


def _mapped_type(X: Value, /, **_: Any) -> TensorType:
    return TensorType(DType.Int64 if X.dtype is DType.String else DType.String, X.tensor_type.shape)


@primitive(since=1, domain=DOMAIN, infer=_mapped_type, host=True)
def CategoryMapper(
    ops: Any,
    X: Any,
    /,
    *,
    cats_int64s: list[int] | None = None,
    cats_strings: list[str] | None = None,
    default_int64: int = -1,
    default_string: str = "_Unused",
) -> Any:
    """Strings to integers, or back."""
    ints, strings = cats_int64s or [], cats_strings or []
    if X.dtype.kind in "OUST":
        return _looked_up(X, strings, ints, default_int64, np.dtype(np.int64))
    return _looked_up(X, ints, strings, default_string, np.dtype(object))


def _looked_up(x: Any, keys: Any, values: Any, default: Any, dtype: np.dtype[Any]) -> Any:
    if len(keys) != len(values):
        raise InputError(f"{len(keys)} keys do not match {len(values)} values")
    table = {_key(k): v for k, v in zip(keys, values, strict=True)}
    found = np.empty(x.size, dtype)
    found[:] = [table.get(_key(v), default) for v in x.ravel().tolist()]
    return found.reshape(x.shape)


def _key(value: Any) -> Any:
    """Keys compare as Python values do, and NaN equals NaN."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "surrogateescape")
    return "nan" if isinstance(value, float) and math.isnan(value) else value


_ENCODED = {"strings": DType.String, "int64s": DType.Int64, "floats": DType.Float32}


def _encoded_type(X: Value, /, **attributes: Any) -> TensorType:
    tensor = attributes.get("values_tensor")
    if tensor is not None:
        return TensorType(tensor.dtype, X.tensor_type.shape)
    for name, dtype in _ENCODED.items():
        if attributes.get(f"values_{name}") is not None:
            return TensorType(dtype, X.tensor_type.shape)
    raise InputError("LabelEncoder needs values")


@primitive(since=4, domain=DOMAIN, infer=_encoded_type, host=True)
def LabelEncoder(
    ops: Any,
    X: Any,
    /,
    *,
    default_float: float = -0.0,
    default_int64: int = -1,
    default_string: str = "_Unused",
    default_tensor: Tensor | None = None,
    keys_floats: list[float] | None = None,
    keys_int64s: list[int] | None = None,
    keys_strings: list[str] | None = None,
    keys_tensor: Tensor | None = None,
    values_floats: list[float] | None = None,
    values_int64s: list[int] | None = None,
    values_strings: list[str] | None = None,
    values_tensor: Tensor | None = None,
) -> Any:
    """Values of a table of keys."""
    keys = _first(keys_tensor, keys_strings, keys_int64s, keys_floats)
    values = _first(values_tensor, values_strings, values_int64s, values_floats)
    if keys is None or values is None:
        raise InputError("LabelEncoder needs keys and values")
    if keys_floats is not None:  # attributes are float32 numbers held as Python floats
        keys = np.asarray(keys, np.float32).astype(X.dtype).tolist()
    dtype = _encoded_type_of(values_tensor, values_strings, values_int64s)
    defaults = {"O": default_string, "i": default_int64, "f": default_float}
    default = default_tensor.raw().ravel()[0] if default_tensor is not None else defaults.get(dtype.kind, 0)
    return _looked_up(X, keys, values, default, dtype)


def _first(tensor: Tensor | None, *lists: list[Any] | None) -> list[Any] | None:
    if tensor is not None:
        return tensor.raw().ravel().tolist()
    return next((values for values in lists if values is not None), None)


def _encoded_type_of(tensor: Tensor | None, strings: Any, int64s: Any) -> np.dtype[Any]:
    if tensor is not None:
        return tensor.raw().dtype
    return np.dtype(object) if strings is not None else np.dtype(np.int64 if int64s is not None else np.float32)


@upgrade("LabelEncoder", to=2, domain=DOMAIN)
def label_encoder_got_two_tables(node: Node, up: Upgrade) -> Node:
    """Version 1 numbered a list of strings, in either direction: what CategoryMapper does."""
    classes = list(node.get_attr("classes_strings", []))
    attributes = {k: v for k, v in node.attributes.items() if k != "classes_strings"}
    attributes |= {"cats_strings": classes, "cats_int64s": list(range(len(classes)))}
    return node.replace(op_type="CategoryMapper", attributes=attributes)


def _one_hot_type(
    X: Value, /, *, cats_int64s: list[int] | None = None, cats_strings: list[str] | None = None, zeros: int = 1
) -> TensorType:
    shape = X.tensor_type.shape
    count = len(cats_strings or cats_int64s or [])
    return TensorType(DType.Float32, None if shape is None else Shape([*shape, count]))


@primitive(since=1, domain=DOMAIN, infer=_one_hot_type, host=True)
def OneHotEncoder(
    ops: Any,
    X: Any,
    /,
    *,
    cats_int64s: list[int] | None = None,
    cats_strings: list[str] | None = None,
    zeros: int = 1,
) -> Any:
    """A new last axis with a 1 at the category; all zeros for others, or an error."""
    strings = X.dtype.kind in "OUST"
    cats: list[Any] = (cats_strings if strings else cats_int64s) or []
    flat = X.ravel().tolist() if strings else X.ravel().astype(np.int64).tolist()
    table = {c: i for i, c in enumerate(cats)}
    result = np.zeros((X.size, len(cats)), np.float32)
    for row, value in enumerate(flat):
        place = table.get(_key(value))
        if place is not None:
            result[row, place] = 1.0
        elif not zeros:
            raise InputError(f"{value!r} is none of the {len(cats)} categories, and zeros is 0")
    return result.reshape(*X.shape, len(cats))


# ---------------------------------------------------------------------- maps


def _vector_type(X: Any, /, **attributes: Any) -> Any:
    # The element type is the map's, which tensors' rules do not see.
    raise UndeterminedError("the type of a map's values is only known when running")


@primitive(since=1, domain=DOMAIN, infer=_vector_type, host=True)
def DictVectorizer(
    ops: Any, X: Any, /, *, int64_vocabulary: list[int] | None = None, string_vocabulary: list[str] | None = None
) -> Any:
    """Values of a map in the order of a vocabulary, 0 for those it lacks."""
    words: list[Any] = string_vocabulary or int64_vocabulary or []
    rows = X if isinstance(X, list) else [X]
    values = [[row.get(w) for w in words] for row in rows]
    example = next((v for row in rows for v in row.values()), 0.0)
    if isinstance(example, str):
        return np.array([["" if v is None else v for v in row] for row in values], dtype=object)
    dtype = np.float32 if isinstance(example, float) else np.asarray(example).dtype
    return np.array([[0 if v is None else v for v in row] for row in values], dtype=dtype)


_CASTS = {"TO_FLOAT": np.dtype(np.float32), "TO_INT64": np.dtype(np.int64), "TO_STRING": np.dtype(object)}


def _cast_type(X: Any, /, *, cast_to: str = "TO_FLOAT", map_form: str = "DENSE", max_map: int = 1) -> TensorType:
    return TensorType(DType.of(_CASTS[cast_to]), Shape([1, None if map_form == "DENSE" else max_map]))


@primitive(since=1, domain=DOMAIN, infer=_cast_type, host=True)
def CastMap(ops: Any, X: Any, /, *, cast_to: str = "TO_FLOAT", map_form: str = "DENSE", max_map: int = 1) -> Any:
    """Values of a map from integers, in the order of the keys or at the places they name."""
    dtype = _CASTS[cast_to]
    values = [_cast_value(X[key], dtype) for key in sorted(X)]
    if map_form == "DENSE":
        return np.array([values], dtype=dtype)
    row = np.full(max_map, "0" if dtype.kind == "O" else 0, dtype=dtype)
    for key, value in zip(sorted(X), values, strict=True):
        if 0 <= key < max_map:
            row[key] = value
    return row[None]


def _cast_value(value: Any, dtype: np.dtype[Any]) -> Any:
    if dtype.kind == "O":
        return value if isinstance(value, str) else f"{float(value):f}"
    return float(value) if dtype.kind == "f" else int(float(value))


def _zipped_type(X: Value, /, *, classlabels_strings: list[str] | None = None, **_: Any) -> SequenceType:
    key = DType.String if classlabels_strings else DType.Int64
    return SequenceType(MapType(key, TensorType(DType.Float32, Shape([]))))


def _zip_needs(
    X: Value, /, *, classlabels_int64s: list[int] | None = None, classlabels_strings: list[str] | None = None
) -> None:
    has_rank("X", X, 1, 2)
    count = len(classlabels_strings or classlabels_int64s or [])
    same_size("the number of columns", X.shape[-1], count, "that of the labels")


@primitive(since=1, domain=DOMAIN, infer=_zipped_type, requires=_zip_needs, host=True)
def ZipMap(
    ops: Any, X: Any, /, *, classlabels_int64s: list[int] | None = None, classlabels_strings: list[str] | None = None
) -> Any:
    """A list with a map from labels to values for each row."""
    labels: list[Any] = classlabels_strings or classlabels_int64s or []
    rows = X.reshape(-1, len(labels)).tolist() if labels else []
    return [dict(zip(labels, row, strict=True)) for row in rows]
