"""Signatures are schemas: they say what onnx.defs says."""

import onnx
import pytest

from pyflame_rt.ops import all_ops, find_op
from pyflame_rt.ops.core.signature import REQUIRED

# Attributes our normal form adds: what a subgraph reads from outside is an explicit input.
OURS = {"captured"}
DOMAINS = ("", "ai.onnx.ml", "ai.onnx.preview", "ai.onnx.preview.training")
# Gradient names values of the graph around it; importing replaces it by the gradient's own nodes.
ELSEWHERE = {"Gradient"}
SCHEMAS = [
    s for s in onnx.defs.get_all_schemas() if s.domain in DOMAINS and not s.deprecated and s.name not in ELSEWHERE
]


def default_of(attribute):
    if attribute.required:
        return REQUIRED
    if not attribute.default_value.name:
        return None
    value = onnx.helper.get_attribute_value(attribute.default_value)
    if isinstance(value, bytes):
        return value.decode()
    return [v.decode() if isinstance(v, bytes) else v for v in value] if isinstance(value, list) else value


@pytest.mark.parametrize("schema", SCHEMAS, ids=lambda s: f"{s.domain}::{s.name}")
def test_signature_matches_the_schema(schema):
    op = find_op(schema.name, schema.domain)
    assert op is not None, f"{schema.name} is not declared"
    assert op.since == schema.since_version
    formal = [(i.name, i.optional, i.variadic) for i in op.signature.inputs if i.name != "captures"]
    option = onnx.defs.OpSchema.FormalParameterOption
    wanted = [(i.name, i.option == option.Optional, i.option == option.Variadic) for i in schema.inputs]
    assert [f[1:] for f in formal] == [w[1:] for w in wanted]
    assert [f[0] for f in formal] == [w[0] for w in wanted]
    attributes = {k: v for k, v in op.signature.attributes.items() if k not in OURS}
    assert set(attributes) == set(schema.attributes)
    for name, attribute in schema.attributes.items():
        want = default_of(attribute)
        got = attributes[name]
        assert got is want or got == pytest.approx(want) if isinstance(want, float) else got == want, name


def test_every_primitive_has_its_rules():
    missing = [op.full_name for op in all_ops() if not op.composite and op.infer is None]
    assert not missing
