"""Custom operators and plugins."""

import pytest

import pyflame as pf
from pyflame import extend


@pytest.fixture(autouse=True)
def _clean():
    yield
    extend.clear_custom_ops()


def test_custom_operators():
    op = extend.register_custom_op("scale", lambda x, by=2.0: x * by, lambda ctx, g: g * 7, schema={"by": "float"})
    x = pf.tensor([1.0], requires_grad=True)
    op(x, by=3.0).backward()
    assert x.grad.item() == 7
    assert extend.get_custom_op("scale").schema == {"by": "float"}

    @extend.custom_op(name="plain")
    def plain(v):
        return v * v

    x.grad = None
    plain(x).backward()
    assert x.grad.item() == 2
    assert extend.list_custom_ops() == ["plain", "scale"]
    extend.unregister_custom_op("plain")
    with pytest.raises(KeyError, match="scale"):
        extend.get_custom_op("plain")
    with pytest.raises(TypeError, match="callable"):
        extend.register_custom_op("bad", 3)
    with pytest.raises(ValueError, match="name"):
        extend.register_custom_op("", abs)


def test_plugins():
    events = []

    class Half(extend.Plugin):
        def get_info(self):
            return extend.PluginInfo("half", "1.0", dependencies=["base"])

        def on_load(self):
            events.append("load")

        def on_unload(self):
            events.append("unload")

        def get_custom_ops(self):
            return {"halve": (lambda x: x / 2, lambda ctx, g: g / 2)}

    class Base(extend.Plugin):
        def get_info(self):
            return extend.PluginInfo("base")

    manager = extend.PluginManager()
    manager.register(Half())
    manager.register(Base())
    with pytest.raises(RuntimeError, match="needs base"):
        manager.load("half")
    manager.load("base")
    manager.load("half")
    manager.load("half")
    assert extend.get_custom_op("halve")(pf.tensor([4.0])).item() == 2
    manager.unload("half")
    assert events == ["load", "unload"]
    assert extend.list_custom_ops() == []
    assert [info.name for info in manager.list()] == ["base", "half"]
    assert manager.discover_plugins() == []
    with pytest.raises(KeyError, match="half"):
        manager.get("other")


def test_context_keeps_tensors_only():
    ctx = extend.FunctionContext()
    with pytest.raises(TypeError, match="attribute"):
        ctx.save_for_backward(3)
    with pytest.raises(NotImplementedError, match="forward"):
        extend.AutogradFunction.apply(pf.ones([1]))
