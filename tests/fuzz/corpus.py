"""What the fuzzer starts from: small valid models of every kind the readers know."""

from __future__ import annotations

import warnings
from functools import cache

import ml_dtypes
import numpy as np
import onnx
from onnx import TensorProto, helper

from pyflame_rt.format import dumps_model
from pyflame_rt.graph import DType, Graph, Tensor, TensorType
from pyflame_rt.graph.errors import PyFlameRTError, UnsupportedFormatError
from pyflame_rt.importers.onnx_importer import graph_from_proto
from tests.conformance.suite import load_cases

MAX_BYTES = 4000
# Every operator family once or twice; what makes arrays from numbers it reads, more often.
CASES = [
    "test_abs",
    "test_add_bcast",
    "test_and2d",
    "test_argmax_default_axis_example",
    "test_averagepool_2d_pads",
    "test_basic_conv_with_padding",
    "test_batchnorm_example",
    "test_bitshift_left_uint8",
    "test_cast_FLOAT_to_FLOAT8E4M3FN",
    "test_cast_FLOAT_to_STRING",
    "test_castlike_FLOAT_to_DOUBLE",
    "test_center_crop_pad_crop_and_pad",
    "test_clip_example",
    "test_col2im_pads",
    "test_compress_0",
    "test_concat_2d_axis_0",
    "test_constant",
    "test_constantofshape_float_ones",
    "test_constantofshape_int_shape_zero",
    "test_convinteger_with_padding",
    "test_convtranspose_pads",
    "test_cumsum_2d_axis_0",
    "test_deform_conv_with_padding",
    "test_depthtospace_example",
    "test_dequantizelinear_blocked",
    "test_det_2d",
    "test_dft",
    "test_dropout_default",
    "test_dynamicquantizelinear",
    "test_einsum_batch_matmul",
    "test_equal_string",
    "test_expand_dim_changed",
    "test_eyelike_with_dtype",
    "test_flatten_axis2",
    "test_gather_elements_1",
    "test_gathernd_example_float32",
    "test_gelu_tanh_1",
    "test_gemm_all_attributes",
    "test_gridsample_bicubic",
    "test_group_normalization_example",
    "test_gru_defaults",
    "test_hammingwindow",
    "test_if",
    "test_if_seq",
    "test_instancenorm_example",
    "test_isnan",
    "test_layer_normalization_2d_axis0",
    "test_logsoftmax_axis_1",
    "test_loop11",
    "test_loop13_seq",
    "test_loop16_seq_none",
    "test_lppool_2d_pads",
    "test_lrn",
    "test_lstm_with_peepholes",
    "test_matmul_2d",
    "test_maxpool_2d_dilations",
    "test_maxunpool_export_with_output_shape",
    "test_mod_broadcast",
    "test_nllloss_NCd1",
    "test_nonmaxsuppression_identical_boxes",
    "test_nonzero_example",
    "test_onehot_with_axis",
    "test_optional_get_element_sequence",
    "test_pow_bcast_array",
    "test_qlinearmatmul_2D_uint8_float32",
    "test_quantizelinear_axis",
    "test_constant_pad_axes",
    "test_edge_pad",
    "test_reflect_pad",
    "test_wrap_pad",
    "test_range_float_type_positive_delta",
    "test_range_int32_type_negative_delta",
    "test_reduce_sum_negative_axes_keepdims_example",
    "test_regex_full_match_basic",
    "test_reshape_extended_dims",
    "test_reshape_zero_and_negative_dim",
    "test_resize_downsample_scales_cubic",
    "test_resize_upsample_sizes_nearest_axes_2_3",
    "test_reversesequence_batch",
    "test_roialign_aligned_false",
    "test_scan9_sum",
    "test_scatter_elements_with_axis",
    "test_scatternd_add",
    "test_sequence_insert_at_back",
    "test_sequence_map_add_1_sequence_1_tensor",
    "test_shape_start_1_end_2",
    "test_slice",
    "test_slice_neg_steps",
    "test_softmax_axis_0",
    "test_spacetodepth",
    "test_split_equal_parts_1d_opset18",
    "test_split_to_sequence_1",
    "test_squeeze_negative_axes",
    "test_stft",
    "test_string_concat",
    "test_string_split_basic",
    "test_strnormalizer_export_monday_casesensintive_lower",
    "test_tfidfvectorizer_tf_batch_onlybigrams_skip0",
    "test_tile",
    "test_tile_precomputed",
    "test_top_k",
    "test_top_k_negative_axis",
    "test_transpose_default",
    "test_tril_pos",
    "test_unique_sorted_with_axis",
    "test_unsqueeze_three_axes",
    "test_upsample_nearest",
    "test_where_example",
    "test_xor2d",
    "test_attention_4d",
    "test_rotary_embedding",
    "test_rms_normalization_2d_axis0",
    "test_affine_grid_2d",
    "test_ai_onnx_ml_tree_ensemble_set_membership",
    "test_ai_onnx_ml_label_encoder_string_int",
    "test_ai_onnx_ml_array_feature_extractor",
]


@cache
def onnx_seeds() -> tuple[bytes, ...]:
    """Serialized ONNX models; inputs that steer shapes come in as initializers, so that edits reach them."""
    models = [_frozen(case) for case in _cases()]
    models += [_with_functions(), _with_everything()]
    return tuple(m.SerializeToString() for m in models if m.ByteSize() <= MAX_BYTES)


@cache
def pfm_seeds(version: int) -> tuple[bytes, ...]:
    """Files of one version of .pfm."""
    graphs = [_rich_graph()] if version == 2 else []
    graphs += [graph_from_proto(onnx.load_from_string(data)) for data in onnx_seeds()]
    found = []
    for graph in graphs:
        try:
            found.append(dumps_model(graph, version=version))
        except (UnsupportedFormatError, PyFlameRTError):
            continue
    return tuple(found)


def _cases() -> list[object]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        cases = {case.name: case for case in load_cases("node")}
    return [cases[name] for name in CASES if name in cases]


def _frozen(case: object) -> onnx.ModelProto:
    """A case whose small integer inputs are constants."""
    model = onnx.ModelProto()
    model.CopyFrom(case.model)  # type: ignore[attr-defined]
    values = case.data_sets[0][0]  # type: ignore[attr-defined]
    kept = []
    for info, value in zip(list(model.graph.input), values, strict=False):
        if isinstance(value, np.ndarray) and value.dtype.kind in "iu" and value.size <= 16:
            model.graph.initializer.append(onnx.numpy_helper.from_array(value, info.name))
        else:
            kept.append(info)
    del model.graph.input[:]
    model.graph.input.extend(kept)
    return model


def _with_functions() -> onnx.ModelProto:
    inner = helper.make_function(
        "local", "twice", ["a"], ["b"], [helper.make_node("Add", ["a", "a"], ["b"])], [helper.make_opsetid("", 17)]
    )
    outer = helper.make_function(
        "local",
        "scaled",
        ["a"],
        ["b"],
        [helper.make_node("twice", ["a"], ["t"], domain="local"), _ref_node()],
        [helper.make_opsetid("", 17), helper.make_opsetid("local", 1)],
        ["alpha"],
    )
    call = helper.make_node("scaled", ["x"], ["y"], domain="local", alpha=0.5)
    return _model([call], functions=[inner, outer])


def _ref_node() -> onnx.NodeProto:
    node = helper.make_node("LeakyRelu", ["t"], ["b"])
    node.attribute.add(name="alpha", ref_attr_name="alpha", type=onnx.AttributeProto.FLOAT)
    return node


def _with_everything() -> onnx.ModelProto:
    values = helper.make_tensor("v", TensorProto.FLOAT, [2], [1.0, 2.0])
    where = helper.make_tensor("i", TensorProto.INT64, [2], [0, 2])
    sparse = helper.make_sparse_tensor(values, where, [3])
    body = helper.make_graph(
        [helper.make_node("Add", ["x", "w"], ["t"])], "then", [], [helper.make_tensor_value_info("t", 1, [3])]
    )
    other = helper.make_graph(
        [helper.make_node("Identity", ["x"], ["e"])], "else", [], [helper.make_tensor_value_info("e", 1, [3])]
    )
    nodes = [
        helper.make_node("Constant", [], ["c"], value=helper.make_tensor("", TensorProto.BOOL, [], [1])),
        helper.make_node("Constant", [], ["w"], sparse_value=sparse),
        helper.make_node("If", ["c"], ["y"], then_branch=body, else_branch=other),
    ]
    model = _model(nodes)
    model.metadata_props.add(key="author", value="somebody")
    model.graph.initializer.append(helper.make_tensor("s", TensorProto.STRING, [2], [b"a", b"\xc3\xbc"]))
    model.graph.initializer.append(helper.make_tensor("q", TensorProto.INT4, [3], [1, -2, 3]))
    return model


def _model(nodes: list[onnx.NodeProto], **more: object) -> onnx.ModelProto:
    info = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [3]) for name in "xy"]
    graph = helper.make_graph(nodes, "g", info[:1], info[1:])
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("local", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10, **more)


def _rich_graph() -> Graph:
    graph = graph_from_proto(_with_everything())
    graph.doc, graph.metadata = "a model", {"producer_name": "fuzz"}
    attributes = {"t": Tensor(np.array(["a", "ü"], dtype=object)), "ty": TensorType(DType.Bool, None), "raw": b"\0\xff"}
    graph.nodes[0].set_attr("mixed", [1, "two", 3.0])
    for name, value in attributes.items():
        graph.nodes[0].set_attr(name, value)
    for dtype in (ml_dtypes.int4, ml_dtypes.float8_e4m3fn, ml_dtypes.bfloat16, np.bool_, np.complex64):
        graph.add_initializer(f"c_{np.dtype(dtype).name}", np.array([0, 1, 1]).astype(dtype))
    return graph
