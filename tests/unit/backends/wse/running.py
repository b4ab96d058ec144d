"""Generates a program, runs it in the simulator in strict mode and compares it with the reference."""

import numpy as np

from pyflame_rt.backends.wse import CodeGenOptions, CSLCodeGenerator
from pyflame_rt.backends.wse.emit.package import package
from pyflame_rt.backends.wse.generator import make_plan, reference
from pyflame_rt.backends.wse.plan.op_support import KNOWN
from pyflame_rt.backends.wse.plan.primitives import flatten
from pyflame_rt.backends.wse.simulate import simulate
from pyflame_rt.graph import DType, Graph

GRIDS = [(1, 1), (1, 3), (3, 1), (2, 3)]
LOOSE = {np.dtype(np.float32): 2e-5, np.dtype(np.float16): 4e-3}


def graph_of(op, shapes, dtype=np.float32, *, constants=(), domain="", **attributes):
    """A graph of one node; inputs are called a, b, ..."""
    graph = Graph(op)
    names = [chr(ord("a") + i) for i in range(len(shapes))]
    for name, shape in zip(names, shapes, strict=True):
        graph.add_input(name, shape, DType.of(np.dtype(dtype)))
    for i, array in enumerate(constants):
        graph.add_initializer(f"c{i}", np.asarray(array))
        names.append(f"c{i}")
    graph.add_node("node", op, names, ["y"], attributes, domain=domain)
    graph.add_output("y", None, DType.of(np.dtype(dtype)))
    return graph


def feeds_for(graph, seed=0, low=None, high=None):
    """Random contents for the inputs."""
    rng = np.random.default_rng(seed)
    feeds = {}
    for info in graph.inputs:
        shape = [int(d) for d in info.type.shape]
        made = rng.standard_normal(shape) if low is None else rng.uniform(low, high, shape)
        feeds[info.name] = made.astype(info.type.dtype.numpy)
    return feeds


def planned(graph, grid=None, **options):
    """Sources, manifest and plan."""
    given = CodeGenOptions(**options)
    if grid is not None:
        given.fabric_height, given.fabric_width = grid
    plan = make_plan(flatten(graph, KNOWN), given)
    return (*package(plan, given), plan)


def check(graph, grid, feeds=None, arch="wse3", loose=None, **options):
    """The simulated program gives what the reference gives."""
    feeds = feeds_for(graph) if feeds is None else feeds
    sources, manifest, plan = planned(graph, grid, target=arch, **options)
    got = simulate(sources, manifest, {**plan.constants, **feeds}, arch)
    for name, want in reference(graph, feeds).items():
        assert got[name].shape == want.shape
        assert got[name].dtype == want.dtype
        bound = LOOSE.get(want.dtype, 0.0) if loose is None else loose
        np.testing.assert_allclose(
            got[name].astype(np.float64), want.astype(np.float64), rtol=bound, atol=bound, err_msg=f"{name} on {grid}"
        )
    return plan


__all__ = ["GRIDS", "CSLCodeGenerator", "check", "feeds_for", "graph_of", "planned"]
