"""Keras 3 files: equal to Keras's own predictions, at several batch sizes, and as ONNX in ONNX Runtime."""

import os
import subprocess
import sys
import zipfile

import numpy as np
import onnx
import onnxruntime
import pytest

import pyflame_rt
from pyflame_rt.exporters import export_onnx
from pyflame_rt.graph.errors import UnsupportedFormatError
from pyflame_rt.import_module import ImportOptions, KerasImporter
from pyflame_rt.importers.detection import detect
from tests.tolerances import within
from tests.unit.importers.torchscript.saving import torch

pytestmark = pytest.mark.filterwarnings("ignore")  # Keras and torch warn of each other
PARTS = ("metadata.json", "config.json", "model.weights.h5")


def _archive(path):
    with zipfile.ZipFile(path, "w") as file:
        for name in PARTS:
            file.writestr(name, "{}")
    return path


def test_a_file_is_known_by_its_content(tmp_path):
    assert detect(_archive(tmp_path / "model.zip")) == "keras"


def test_where_keras_is_missing_the_error_says_so(tmp_path):
    program = f"""
import sys
sys.modules["keras"] = None
import pyflame_rt
try:
    pyflame_rt.InferenceSession({str(_archive(tmp_path / "model.keras"))!r})
except pyflame_rt.graph.errors.MissingExtra as error:
    print(error)
"""
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert "pip install keras" in run.stdout, run.stderr


@pytest.fixture(scope="module")
def keras():
    os.environ.setdefault("KERAS_BACKEND", "torch")
    package = pytest.importorskip("keras")
    if package.backend.backend() != "torch":
        pytest.skip("Keras runs on another backend in this process")
    package.utils.set_random_seed(0)
    return package


def _cnn(keras):
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input((12, 12, 3)),
            layers.Conv2D(4, 3, activation="relu", padding="same"),
            layers.BatchNormalization(),
            layers.MaxPooling2D(),
            layers.DepthwiseConv2D(3),
            layers.Conv2D(5, 3, strides=2, padding="same"),
            layers.GlobalAveragePooling2D(),
            layers.Dropout(0.5),
            layers.Dense(5, activation="softmax"),
        ]
    )


def _residual(keras):
    """Two inputs, two outputs."""
    layers = keras.layers
    image, extra = keras.Input((6, 6, 4), name="image"), keras.Input((3,), name="extra")
    x = layers.Activation("gelu")(layers.LayerNormalization()(layers.Conv2D(4, 3, padding="same")(image)))
    x = layers.Concatenate()([layers.Flatten()(layers.Add()([x, image])), extra])
    scores, chance = layers.Dense(3, name="scores")(x), layers.Dense(1, activation="sigmoid", name="chance")(x)
    return keras.Model([image, extra], [scores, chance])


def _recurrent(keras):
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input((4,)),
            layers.Embedding(20, 6),
            layers.LSTM(5, return_sequences=True),
            layers.Bidirectional(layers.GRU(4)),
            layers.Dense(2),
        ]
    )


def _attention(keras):
    layers = keras.layers
    x = keras.Input((6, 8))
    return keras.Model(x, layers.LayerNormalization()(layers.Add()([layers.MultiHeadAttention(2, 4)(x, x), x])))


@pytest.mark.parametrize("make", [_cnn, _residual, _recurrent, _attention], ids=lambda make: make.__name__.strip("_"))
def test_models(make, keras, tmp_path):
    model = make(keras)
    model.save(tmp_path / "model.keras")
    session = pyflame_rt.InferenceSession(tmp_path / "model.keras")
    export_onnx(session.graph(), tmp_path / "model.onnx")
    onnx.checker.check_model(tmp_path / "model.onnx", full_check=True)
    peer = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    draw = np.random.default_rng(0)
    for rows in (1, 2, 5):
        given = [draw.uniform(0, 9, (rows, *tensor.shape[1:])).astype(np.float32) for tensor in model.inputs]
        given = [np.floor(x) for x in given]  # also rows of a table
        want = model.predict(given if len(given) > 1 else given[0], verbose=0)
        feed = dict(zip([node.name for node in session.get_inputs()], given, strict=True))
        wanted = want if isinstance(want, list) else [want]
        for got, theirs, one in zip(session.run(None, feed), peer.run(None, feed), wanted, strict=True):
            np.testing.assert_allclose(got, one, **within("sums"))
            np.testing.assert_allclose(theirs, one, **within("sums"))


def test_names_are_those_of_keras(keras, tmp_path):
    _residual(keras).save(tmp_path / "model.keras")
    session = pyflame_rt.InferenceSession(tmp_path / "model.keras")
    assert [node.name for node in session.get_inputs()] == ["image", "extra"]
    assert [node.name for node in session.get_outputs()] == ["scores", "chance"]


def test_sizes_that_cannot_stay_open_are_given(keras, tmp_path):
    x = keras.Input((None, 4), name="steps")
    keras.Model(x, keras.layers.LSTM(3)(x)).save(tmp_path / "model.keras")
    with pytest.raises(UnsupportedFormatError, match="input_shapes"):
        pyflame_rt.InferenceSession(tmp_path / "model.keras")
    result = KerasImporter().import_model(tmp_path / "model.keras", ImportOptions(input_shapes={"steps": [None, 5, 4]}))
    session = pyflame_rt.InferenceSession(result.unwrap())
    assert session.run(None, {"steps": np.zeros((3, 5, 4), np.float32)})[0].shape == (3, 3)


def test_code_in_a_file_is_not_run(keras, tmp_path):
    keras.Sequential([keras.Input((3,)), keras.layers.Lambda(lambda x: x + 1)]).save(tmp_path / "model.keras")
    assert "Lambda" in KerasImporter().import_model(tmp_path / "model.keras").error


def test_layers_that_are_not_known_are_named(keras, tmp_path):
    class Twice(keras.Layer):
        def call(self, x):
            return 2 * x

    keras.Sequential([keras.Input((3,)), Twice()]).save(tmp_path / "model.keras")
    assert "Twice" in KerasImporter().import_model(tmp_path / "model.keras").error


def test_torch_is_what_keras_runs_on(keras):
    assert isinstance(keras.ops.ones(1), torch.Tensor)
