"""Lazy tensors to CSL: grids from layouts, data into files, refusals in the result."""

import numpy as np
import pytest

import pyflame as pf
from pyflame_rt.backends.wse.simulate import simulate
from pyflame_rt.graph.errors import InputError


def run(result, arch="wse3"):
    """The program's first output, from the files that were written."""
    arrays = {}
    for name in ("weights.npz", "inputs.npz"):
        for path in result.generated_files:
            if path.endswith(name):
                arrays |= dict(np.load(path))
    return next(iter(simulate(result.sources, result.manifest, arrays, arch).values()))


@pytest.mark.parametrize(
    "layout",
    [
        None,
        pf.MeshLayout.grid(2, 2),
        pf.MeshLayout.row_partition(3),
        pf.MeshLayout.col_partition(3),
        pf.MeshLayout.grid(2, 3),
    ],
)
def test_a_layer_with_any_layout(layout, tmp_path):
    rng = np.random.default_rng(0)
    x = pf.tensor(rng.standard_normal((6, 8)).astype(np.float32), **({} if layout is None else {"layout": layout}))
    w = pf.tensor(rng.standard_normal((8, 5)).astype(np.float32))
    b = pf.tensor(rng.standard_normal(5).astype(np.float32))
    y = pf.relu(x @ w + b).mean(dim=1)
    result = pf.compile_to_csl(y, tmp_path)
    assert result.success, result.error_message
    wanted = (1, 1) if layout is None else (layout.pe_rows, layout.pe_cols)
    assert (result.manifest["grid"]["rows"], result.manifest["grid"]["cols"]) == wanted
    np.testing.assert_allclose(run(result), y.numpy(), rtol=1e-5, atol=1e-5)


def test_operands_in_different_layouts_meet(tmp_path):
    a = pf.ones([6, 6], layout=pf.MeshLayout.grid(2, 2)) * 3
    b = pf.ones([6, 6], layout=pf.MeshLayout.row_partition(2)) + 1
    y = a - b
    result = pf.compile_to_csl(y, pf.CodeGenOptions(output_dir=tmp_path))
    np.testing.assert_array_equal(run(result), y.numpy())


def test_a_module(tmp_path):
    model = pf.nn.Sequential(pf.nn.Linear(12, 9), pf.nn.LayerNorm(9), pf.nn.GELU(), pf.nn.Linear(9, 4))
    x = pf.randn([5, 12])
    y = pf.softmax(model(x), dim=-1)
    options = pf.CodeGenOptions(fabric_width=2, fabric_height=2)
    result = pf.compile_to_csl(y, options, tmp_path)
    assert result.success, result.error_message
    np.testing.assert_allclose(run(result), y.numpy(), rtol=1e-4, atol=1e-5)


def test_too_large_a_tile_is_refused_with_the_grid_that_fits(tmp_path):
    x = pf.zeros([4096, 4096], layout=pf.MeshLayout.grid(16, 16))
    result = pf.compile_to_csl(pf.relu(x), pf.CodeGenOptions(max_passes=1), tmp_path / "out")
    assert not result.success
    assert "262148 bytes on each of 16 x 16 PEs" in result.error_message
    assert "42 x 42" in result.error_message
    assert not (tmp_path / "out").exists()


def test_too_large_a_tile_goes_through_in_passes(tmp_path):
    x = pf.zeros([512, 512], layout=pf.MeshLayout.grid(2, 2))
    y = pf.relu(x - 2) + 1
    result = pf.compile_to_csl(y, tmp_path)
    assert result.success, result.error_message
    assert result.manifest["fold"]["passes"] == 7
    assert "7 passes" in result.sources["README.md"]
    np.testing.assert_array_equal(run(result), np.ones((512, 512), np.float32))


def test_the_generator_takes_graphs_of_both_packages(tmp_path):
    graph = pf.get_graph(pf.relu(pf.randn([4, 4])))
    sources = pf.CSLCodeGenerator().generate_source(graph)
    assert pf.CSLCodeGenerator().generate_source(graph.to_runtime()) == sources
    assert pf.CSLCodeGenerator().generate(graph, pf.CodeGenOptions(output_dir=tmp_path)).success


def test_misuse():
    y = pf.relu(pf.ones([2]))
    with pytest.raises(TypeError, match="CodeGenOptions"):
        pf.compile_to_csl(y, 3)
    with pytest.raises(TypeError, match="takes a tensor"):
        pf.compile_to_csl([])
    with pytest.raises(InputError, match="twice"):
        pf.compile_to_csl(y, "a", "b")
    with pytest.raises(InputError, match="evaluated"):
        pf.compile_to_csl(pf.eval(y), "a")


def test_a_transformer_block_equals_the_cpu(tmp_path):
    pf.manual_seed(0)
    block = pf.models.TransformerEncoderLayer(64, 4, 128)
    block.eval()
    y = block(pf.randn([1, 32, 64]))
    result = pf.compile_to_csl(y, pf.CodeGenOptions(fabric_width=8, fabric_height=8), tmp_path)
    assert result.success, result.error_message
    np.testing.assert_allclose(run(result), y.numpy(), rtol=1e-4, atol=1e-5)


def outputs(result, arch="wse3"):
    """All outputs of the program that was written."""
    arrays = {}
    for path in result.generated_files:
        if path.endswith(("weights.npz", "inputs.npz")):
            arrays |= dict(np.load(path))
    return list(simulate(result.sources, result.manifest, arrays, arch).values())


def mse(y, _):
    return ((y - pf.ones([8, 5])) ** 2).mean()


@pytest.mark.parametrize("loss_of", [mse, pf.nn.functional.cross_entropy], ids=["mse", "cross_entropy"])
@pytest.mark.parametrize("grid", [(2, 2), (2, 3)])
def test_a_training_step(loss_of, grid, tmp_path):
    pf.manual_seed(0)
    model = pf.nn.Sequential(pf.nn.Linear(16, 12), pf.nn.ReLU(), pf.nn.Linear(12, 5))
    loss = loss_of(model(pf.randn([8, 16])), pf.tensor(np.arange(8) % 5))
    loss.backward()
    after = [loss, *[p - 0.1 * p.grad for p in model.parameters()]]
    result = pf.compile_to_csl(after, pf.CodeGenOptions(fabric_width=grid[1], fabric_height=grid[0]), tmp_path)
    assert result.success, result.error_message
    for found, want in zip(outputs(result), after, strict=True):
        np.testing.assert_allclose(found, want.numpy(), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("grid", [(1, 1), (2, 3)])
def test_an_embedding_and_its_gradient(grid, tmp_path):
    pf.manual_seed(0)
    table = pf.nn.Embedding(11, 6)
    found = table(pf.tensor(np.array([[3, 10, 3], [0, 7, 3]])))
    (found * found).sum().backward()
    after = [found, table.weight - 0.1 * table.weight.grad]
    result = pf.compile_to_csl(after, pf.CodeGenOptions(fabric_width=grid[1], fabric_height=grid[0]), tmp_path)
    assert result.success, result.error_message
    for got, want in zip(outputs(result), after, strict=True):
        np.testing.assert_allclose(got, want.numpy(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("count", [20, pytest.param(100, marks=pytest.mark.slow)])
def test_a_trained_mlp_finds_the_digits_as_on_the_cpu(count, tmp_path):
    digits = pf.data.load_digits()
    pf.manual_seed(0)
    model = pf.nn.Sequential(pf.nn.Flatten(), pf.nn.Linear(64, 32), pf.nn.ReLU(), pf.nn.Linear(32, 10))
    step = pf.optim.Adam(model.parameters(), lr=1e-2)
    x, t = pf.tensor(digits.train_images), pf.tensor(digits.train_labels)
    for _ in range(40):
        step.zero_grad()
        pf.nn.functional.cross_entropy(model(x), t).backward()
        step.step()
    found = []
    for first in range(0, count, 20):
        scores = model(pf.tensor(digits.test_images[first : first + 20]))
        options = pf.CodeGenOptions(fabric_width=4, fabric_height=4, output_dir=tmp_path)
        result = pf.compile_to_csl([scores, scores.argmax(dim=1)], options)
        assert result.success, result.error_message
        got, label = outputs(result)
        np.testing.assert_allclose(got, scores.numpy(), rtol=1e-4, atol=1e-5)
        found.append(label)
        assert label.tolist() == scores.numpy().argmax(1).tolist()
    assert (np.concatenate(found) == digits.test_labels[:count]).mean() > 0.85
