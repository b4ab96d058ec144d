"""The scalar language: what primitives say, and what each generator of code can write."""

from pyflame_rt.backends.cpu.graph.scalar_exprs import has_rule
from pyflame_rt.backends.wse.emit.scalar_csl import RULES
from pyflame_rt.ops import all_ops
from pyflame_rt.ops.core.scalar import FUNCTIONS


def test_primitives_name_functions_of_the_language():
    named = {op.scalar for op in all_ops() if op.scalar and op.domain in ("", "pyflame", "com.microsoft")}
    assert named == set(FUNCTIONS)


def test_functions_take_as_many_operands_as_their_operators():
    for op in all_ops():
        if op.scalar in FUNCTIONS:
            assert op.elementwise
            assert not op.composite
            assert op.signature.max_inputs == FUNCTIONS[op.scalar], op


def test_loops_have_every_function():
    assert [word for word in FUNCTIONS if not has_rule(word)] == []


def test_what_the_wafer_lacks():
    assert {word for word in FUNCTIONS if word not in RULES} == {"bitand", "bitnot", "bitor", "bitxor", "shift"}


def test_no_generator_has_a_function_that_nobody_names():
    assert set(RULES) <= set(FUNCTIONS)
