import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import pyflame_rt
from pyflame_rt import ImportOptions, import_module
from pyflame_rt.import_module import Importer, ONNXImporter

FLOAT = TensorProto.FLOAT


def model(op="Relu", *, opset=17, weights=0, **attributes):
    names = ["x", "w"] if weights else ["x"]
    graph = helper.make_graph(
        [helper.make_node(op, names, ["y"], "n", **attributes)],
        "g",
        [helper.make_tensor_value_info("x", FLOAT, ["N", 3])],
        [helper.make_tensor_value_info("y", FLOAT, None)],
        [numpy_helper.from_array(np.ones((weights, 3), np.float32), "w")] if weights else [],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9)


@pytest.fixture
def save(tmp_path):
    def write(proto, name="model.onnx"):
        onnx.save(proto, tmp_path / name)
        return tmp_path / name

    return write


def test_result_and_statistics(save):
    result = ONNXImporter().import_model(save(model("Add", weights=1)))
    assert result.success
    assert result
    assert result.error == ""
    assert result.graph.name == "g"
    stats = result.stats
    assert (stats.node_count, stats.initializer_count, stats.parameter_count) == (1, 1, 3)
    assert stats.import_time_ms > 0
    assert stats.warnings == []
    assert result.unwrap() is result.graph


def test_failures_are_reported_or_raised(save, tmp_path):
    (tmp_path / "broken.onnx").write_bytes(b"this is not a model")
    cases = {
        tmp_path / "broken.onnx": pyflame_rt.InvalidModelError,
        tmp_path / "missing.onnx": pyflame_rt.ModelNotFoundError,
        save(model("Nope"), "odd.onnx"): pyflame_rt.UnsupportedOperatorError,
    }
    for path, error in cases.items():
        result = ONNXImporter().import_model(path)
        assert not result
        assert result.graph is None
        assert result.error
        with pytest.raises(error):
            result.unwrap()
        with pytest.raises(error):
            pyflame_rt.from_onnx(path)


def test_validation_can_be_left_out(save):
    broken = model()
    broken.graph.node[0].input[0] = "nowhere"
    path = save(broken)
    result = ONNXImporter().import_model(path)
    assert isinstance(result.exception, pyflame_rt.ValidationError)
    assert ONNXImporter().import_model(path, ImportOptions(validate=False, infer_shapes=False)).success


def test_shapes_are_inferred_or_not(save):
    path = save(model("Transpose"))
    inferred = ONNXImporter().import_model(path).graph
    assert str(inferred.get_tensor_info("y").shape) == "[3, N]"
    bare = ONNXImporter().import_model(path, ImportOptions(infer_shapes=False)).graph
    assert bare.get_tensor_info("y").shape is None


def test_input_shapes(save):
    path = save(model("Transpose"))
    graph = ONNXImporter().import_model(path, ImportOptions(input_shapes={"x": [5, 3]})).graph
    assert graph.get_tensor_info("y").shape == [3, 5]
    result = ONNXImporter().import_model(path, ImportOptions(input_shapes={"z": [1]}))
    assert "'z'" in result.error


def test_nodes_that_do_not_fit_are_warnings_unless_strict(save):
    path = save(model("MatMul", weights=2))
    result = ONNXImporter().import_model(path)
    assert result.success
    assert len(result.stats.warnings) == 1
    assert not ONNXImporter().import_model(path, ImportOptions(strict=True))


def test_strict_asks_the_checker(save):
    odd = model()
    odd.graph.node[0].attribute.append(helper.make_attribute("nonsense", 1))
    path = save(odd)
    result = ONNXImporter().import_model(path, ImportOptions(strict=True))
    assert not result.success


def test_weights_can_be_left_out(save):
    graph = ONNXImporter().import_model(save(model("Add", weights=1000)), ImportOptions(load_initializers=False)).graph
    assert not graph.initializers
    assert [(i.name, i.shape) for i in graph.inputs][1] == ("w", [1000, 3])


def test_unsupported_operators_can_be_let_through(save):
    result = ONNXImporter().import_model(save(model("Nope")), ImportOptions(allow_unsupported=True))
    assert result.graph.nodes[0].op_type == "Nope"


def test_opset_can_be_corrected(save):
    # Softmax flattened its input before opset 13 and does not since.
    path = save(model("Softmax", opset=17))
    feed = {"x": np.ones((2, 3), np.float32)}
    old = ONNXImporter().import_model(path, ImportOptions(opset_version=9)).graph
    assert old.opsets[""] == 9
    assert pyflame_rt.InferenceSession(old).run(None, feed)[0].shape == (2, 3)


def test_optimize(save):
    result = ONNXImporter().import_model(save(model()), ImportOptions(optimize=True))
    assert result.success


def test_opsets(save):
    importer = ONNXImporter()
    path = save(model(opset=13))
    assert importer.get_opset_version(path) == import_module.get_opset_version(model(opset=13)) == 13
    assert importer.is_opset_supported(9)
    assert not importer.is_opset_supported(import_module.MAX_OPSET_VERSION + 1)
    assert importer.supported_opsets() == list(range(1, import_module.MAX_OPSET_VERSION + 1))


def test_newer_ir_and_opset_are_read_when_the_operators_are_known(save):
    newer = model(opset=import_module.MAX_OPSET_VERSION + 5)
    newer.ir_version = 99
    session = pyflame_rt.InferenceSession(newer)
    assert session.run(None, {"x": [[1, 2, 3]]})[0].tolist() == [[1, 2, 3]]


def test_registry_of_importers(save, tmp_path):
    assert "onnx" in import_module.list_importers()
    assert import_module.get_importer("onnx").name == "onnx"
    path = save(model())
    assert import_module.import_model(path).success
    with pytest.raises(pyflame_rt.UnsupportedFormatError, match=r"onnx \(\.onnx\)"):
        import_module.get_importer("model.xyz")
    assert "model.xyz" in import_module.import_model("model.xyz").error

    class Always(Importer):
        name, suffixes = "always", (".always",)

        def read(self, source, options):
            return ONNXImporter().read(path, options)

    from pyflame_rt.importers import registry

    import_module.register_importer("always", Always)
    try:
        (tmp_path / "m.always").write_bytes(b"")
        assert import_module.import_model(tmp_path / "m.always").graph.name == "g"
        assert pyflame_rt.InferenceSession(tmp_path / "m.always").run(None, {"x": [[1, 2, 3]]})
    finally:
        del registry._factories["always"]


def test_alias_and_missing_names():
    assert ONNXImporter.import_file is ONNXImporter.import_model
    with pytest.raises(AttributeError):
        _ = import_module.Nope
