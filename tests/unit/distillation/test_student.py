"""Students: narrower, shorter, with fewer heads, and the teacher's weights."""

import numpy as np
import pytest

from pyflame_rt.distillation import StudentConfig, create_student_model
from pyflame_rt.distillation.depth import blocks_of
from pyflame_rt.graph.errors import InputError
from pyflame_rt.pruning import PruningWarning
from tests.unit.pruning.nets import Build, mlp, run


def tower(blocks=4):
    b = Build(["N", 3, 6, 6])
    x = b.node("Relu", [b.conv("input", "stem", 8, 3)])
    for i in range(blocks):
        y = b.conv(b.node("Relu", [b.conv(x, f"block{i}.a", 8, 8)]), f"block{i}.b", 8, 8)
        x = b.node("Add", [x, y])
    x = b.node("Flatten", [b.node("GlobalAveragePool", [x])])
    return b.done(b.linear(x, "fc", 5, 8), ["N", 5])


def test_half_of_the_channels_with_the_teachers_weights():
    teacher = mlp()
    student = create_student_model(teacher, StudentConfig.half_size())
    assert list(student.get_initializer("fc2.weight").shape) == [16, 16]
    rows = {row.tobytes() for row in teacher.get_initializer("fc1.weight").numpy()}
    assert all(row.tobytes() in rows for row in student.get_initializer("fc1.weight").numpy())
    assert run(student).shape == run(teacher).shape


def test_blocks_are_left_out_evenly():
    teacher = tower()
    assert [block.end for block in blocks_of(teacher)] == [n.outputs[0] for n in teacher.nodes if n.op_type == "Add"]
    student = create_student_model(teacher, StudentConfig(num_layers_ratio=0.5))
    left = {name.split(".")[0] for name in student.initializers if name.startswith("block")}
    assert left == {"block0", "block3"}
    assert run(student).shape == run(teacher).shape


def test_what_is_left_out_is_skipped():
    teacher = tower(2)
    student = create_student_model(teacher, StudentConfig(num_layers_ratio=0.5))
    zeroed = teacher.copy()
    for name in ("block1.b.weight", "block1.b.bias"):
        zeroed.add_initializer(name, np.zeros_like(teacher.get_initializer(name).numpy()))
    np.testing.assert_allclose(run(student), run(zeroed), rtol=1e-5, atol=1e-6)


def test_new_weights():
    config = StudentConfig(hidden_dim_ratio=0.5, student_init="random", seed=3)
    one, two = (create_student_model(tower(), config) for _ in range(2))
    weight = one.get_initializer("block0.a.weight").numpy()
    np.testing.assert_array_equal(weight, two.get_initializer("block0.a.weight").numpy())
    assert weight.shape == (4, 4, 3, 3)
    assert not one.get_initializer("fc.bias").numpy().any()


def test_a_ratio_that_nothing_can_follow_is_told():
    b = Build(["N", 4])
    only = b.done(b.linear("input", "only", 6, 4), ["N", 6])
    with pytest.warns(PruningWarning, match="hidden_dim_ratio changes nothing"):
        create_student_model(only, StudentConfig(hidden_dim_ratio=0.5))
    with pytest.warns(PruningWarning, match="num_layers_ratio changes nothing"):
        create_student_model(only, StudentConfig(num_layers_ratio=0.5))


@pytest.mark.parametrize(
    "changes", [{"hidden_dim_ratio": 0}, {"num_heads_ratio": 1.5}, {"num_layers_ratio": "x"}, {"student_init": "zero"}]
)
def test_settings_that_mean_nothing(changes):
    with pytest.raises(InputError):
        create_student_model(mlp(), StudentConfig(**changes))


def test_only_graphs_have_students():
    with pytest.raises(InputError, match="a teacher is a Graph"):
        create_student_model("teacher.onnx")
