"""Every operation exists on every library, with one signature and an example."""

import inspect

import pytest

import emberharmony
from emberharmony import backend, library, ops, tensor
from emberharmony.declared import DECLARED, PRIMITIVES
from emberharmony.registry import public_signature


def parameters(signature):
    return [(p.name, p.kind, p.default) for p in signature.parameters.values()]


@pytest.mark.parametrize("op", sorted(DECLARED))
def test_signatures_agree(op, name):
    resolved = getattr(library(name), op)
    native = library(name)._backend.NATIVE.get(op)
    if native is not None:
        assert parameters(inspect.signature(native)) == parameters(public_signature(DECLARED[op]))
    assert callable(resolved)


def test_primitives_are_native_everywhere(name):
    assert sorted(PRIMITIVES - library(name)._backend.NATIVE.keys()) == []


def test_backends_define_nothing_undeclared(name):
    assert sorted(library(name)._backend.NATIVE.keys() - DECLARED.keys()) == []


@pytest.mark.parametrize("op", sorted(DECLARED))
def test_public_function_keeps_its_face(op):
    function = getattr(ops, op)
    assert function.__name__ == op
    assert ">>> " in function.__doc__
    assert "lib" not in inspect.signature(function).parameters


@pytest.mark.parametrize("module", [emberharmony, ops, backend, tensor])
def test_exports(module):
    assert sorted(set(module.__all__)) == sorted(module.__all__)
    assert [n for n in module.__all__ if not hasattr(module, n)] == []


def test_every_operation_is_exported():
    assert sorted(DECLARED.keys() - set(ops.__all__)) == []


def test_late_operation_reaches_loaded_libraries(name):
    lib = library(name)
    body = lambda lib, x: lib.add(x, 1)  # noqa: E731
    DECLARED["plus_one"] = body
    try:
        assert int(lib.to_numpy(lib.plus_one(lib.as_array(1)))) == 2
    finally:
        del DECLARED["plus_one"]
        del lib.__dict__["plus_one"]
    with pytest.raises(AttributeError, match="plus_one"):
        lib.plus_one  # noqa: B018
