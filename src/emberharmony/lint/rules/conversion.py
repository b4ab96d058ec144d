"""EH2xx: conversions between tensors and NumPy arrays."""

import ast
from collections.abc import Iterator

from emberharmony.lint.names import names
from emberharmony.lint.registry import Found, found, rule
from emberharmony.lint.source import Module

__all__ = ["array_conversion", "numpy_method"]

_CONVERTERS = names(
    "numpy.array numpy.asarray numpy.asanyarray numpy.ascontiguousarray",
    "numpy.asfortranarray numpy.from_dlpack numpy.frombuffer numpy.fromiter",
    "torch.from_numpy torch.from_dlpack torch.utils.dlpack.from_dlpack",
)


@rule("EH201", "numpy-method", groups=["conversion"])
def numpy_method(module: Module) -> Iterator[Found]:
    """`.numpy()` or `.__array__()` turns a tensor into a NumPy array."""
    for call in module.calls():
        match call.func:
            case ast.Attribute(attr="numpy" | "__array__" as method) if module.dotted(call.func) is None:
                yield found(call, f".{method}() converts to NumPy; stay with ops on the tensor")
            case _:
                pass


@rule("EH202", "array-conversion", groups=["conversion", "numpy"])
def array_conversion(module: Module) -> Iterator[Found]:
    """`np.array`, `np.asarray`, `torch.from_numpy` and their relatives."""
    for call in module.calls():
        dotted = module.dotted(call.func)
        if dotted in _CONVERTERS:
            yield found(call.func, f"converts with {dotted}; use ops.convert_to_tensor")
