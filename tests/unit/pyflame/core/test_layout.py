"""Layouts on the mesh: tiles, moves, reports."""

import numpy as np
import pytest

import pyflame as pf
from pyflame import MeshLayout, PECoord

LAYOUTS = [
    MeshLayout.single_pe(),
    MeshLayout.row_partition(3),
    MeshLayout.col_partition(4),
    MeshLayout.grid(2, 3),
    MeshLayout.grid(7, 2),
]


@pytest.mark.parametrize("shape", [(5,), (4, 6), (1, 1), (7, 3, 2), (0, 4), ()], ids=str)
@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_tiles_cover_a_tensor_once(layout, shape):
    seen = np.zeros(shape, int)
    for pe in layout.elements():
        tile = layout.tile_of(pe, shape)
        assert seen[tile].shape == layout.tile_shape(pe, shape)
        assert seen[tile].size * 4 <= layout.memory_per_pe(shape, 4)
        if shape or pe == PECoord(0, 0):
            seen[tile] += 1
    assert (seen == 1).all()


def test_a_copy_on_each_element():
    layout = MeshLayout.replicated(2, 2)
    assert layout.tile_shape(PECoord(1, 1), (5, 4)) == (5, 4)
    assert layout.memory_per_pe((5, 4), 4) == 80


@pytest.mark.parametrize("rows", [0, -1, 2.5, True], ids=str)
def test_impossible_grids(rows):
    with pytest.raises(RuntimeError, match="positive"):
        MeshLayout.grid(rows, 2)
    with pytest.raises(RuntimeError, match="outside"):
        MeshLayout.grid(2, 2).tile_of(PECoord(2, 0), (4, 4))


def test_the_left_operand_decides_and_the_other_is_moved():
    rows, cols = MeshLayout.row_partition(8), MeshLayout.col_partition(8)
    a, b = pf.randn([16, 16], layout=rows), pf.randn([16, 16], layout=cols)
    for c in (a + b, pf.matmul(a, b)):
        assert c.layout == rows
        moves = [n for n in pf.get_graph(c).nodes if n.op_type == "pyflame::LayoutTransform"]
        assert [m.attributes for m in moves] == [{"source": "col_partition(8)", "target": "row_partition(8)"}]
    np.testing.assert_array_equal((a + b).numpy(), a.numpy() + b.numpy())
    assert (a + b).eval().layout == rows
    same = a + pf.randn([16, 16], layout=rows)
    assert all(n.op_type != "pyflame::LayoutTransform" for n in pf.get_graph(same).nodes)


def test_layouts_follow_dimensions():
    x = pf.zeros([12, 6], layout=MeshLayout.grid(4, 2))
    assert x.t().layout == MeshLayout.grid(2, 4)
    assert x.sum(dim=1).layout == MeshLayout.row_partition(4)
    assert x.sum(dim=0).layout == MeshLayout.row_partition(2)
    assert x.sum(dim=0, keepdim=True).layout == MeshLayout.col_partition(2)
    assert x.sum().layout == MeshLayout.single_pe()
    assert (x * 2).layout == x.layout
    assert pf.ones([2, 2]).layout == MeshLayout.single_pe()


def test_moving_keeps_values_and_gradients():
    x = pf.tensor([[1.0, 2.0]], requires_grad=True)
    y = x.to_layout(MeshLayout.col_partition(2))
    assert y.layout == MeshLayout.col_partition(2)
    (y * 3).sum().backward()
    assert x.grad.tolist() == [[3, 3]]
    assert x.layout.compatible_with(y.layout)
    assert not MeshLayout.row_partition(2).compatible_with(MeshLayout.col_partition(2))


def test_reports():
    x = pf.zeros([1024, 1024], layout=MeshLayout.grid(4, 4))
    report = pf.memory_report(x + 1)
    assert (report.tile_bytes, report.fits) == (256 * 1024, False)
    assert report.total_bytes >= 2 * x.nbytes
    assert "does not fit" in str(report)
