"""Dynamic axes as torch writes them: names of sizes by input and axis, some of them with bounds."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from pyflame.compiling.trees import flatten

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["Axes", "DynamicAxes", "by_input", "dynamic_axes"]

# Which inputs have which dynamic size: name of the size -> (number of the input, axis).
Axes = dict[str, list[tuple[int, int]]]
Bounds = tuple[int, "int | None"]


class DynamicAxes(NamedTuple):
    """Sizes that are open.

    Attributes:
        axes: where each has its places.
        bounds: the least and the most of those that have any.
    """

    axes: Axes
    bounds: dict[str, Bounds]


def by_input(model: Callable[..., Any], arguments: Sequence[Any], given: Any, names: Sequence[str]) -> Any:
    """Sizes by the parameters of the model, or in the structure of its arguments, as one entry for each tensor.

    Args:
        model: that is exported.
        arguments: the example.
        given: as the caller wrote it; by name of the input it stays as it is.
        names: of inputs and outputs.
    """
    if isinstance(given, Mapping):
        if set(given) <= set(names):
            return given
        parameters = list(inspect.signature(getattr(model, "forward", model)).parameters)
        unknown = sorted(str(name) for name in set(given) - set(parameters))
        if unknown:
            raise ValueError(
                f"there is no input or output {unknown[0]!r}. Inputs and outputs: {', '.join(names)}; "
                f"parameters of the model: {', '.join(parameters)}"
            )
        given = [given.get(name) for name in parameters[: len(arguments)]]
    if len(given) != len(arguments):
        return given
    return [spec for argument, part in zip(arguments, given, strict=True) for spec in _leaves(argument, part)]


def _leaves(argument: Any, given: Any) -> list[Any]:
    """An entry for each tensor of an argument."""
    tensors: list[Any] = []
    flatten(argument, tensors)
    if given is None or len(tensors) == 0:
        return [None] * len(tensors)
    if isinstance(argument, Mapping):
        return [spec for key, value in argument.items() for spec in _leaves(value, given.get(key))]
    if isinstance(argument, (list, tuple)):
        parts = list(given.values()) if isinstance(given, Mapping) else list(given)
        if len(parts) != len(argument):
            raise ValueError(f"dynamic shapes for {len(argument)} parts of an argument are needed, got {len(parts)}")
        return [spec for value, part in zip(argument, parts, strict=True) for spec in _leaves(value, part)]
    return [given]


def dynamic_axes(
    given: Any, names: Sequence[str], shapes: Sequence[Sequence[int]], outputs: Sequence[str] = ()
) -> DynamicAxes:
    """Dynamic axes as torch writes them, checked.

    Args:
        given: By input name, or one for each input: ``{axis: size}``, a list of axes, or a size (or None) per axis. A
            size is a name, ``(name, least, most)``, or one of torch's (``torch.export.Dim``, ``Dim.AUTO``).
        names: Of the inputs.
        shapes: Of the inputs.
        outputs: Names that may appear too; their axes follow from the inputs'.

    Example:
        >>> dynamic_axes({"x": {0: ("batch", 1, 8)}, "y": [0]}, ["x", "y"], [(2, 3), (4,)])
        DynamicAxes(axes={'batch': [(0, 0)], 'y_axis_0': [(1, 0)]}, bounds={'batch': (1, 8)})
    """
    if not isinstance(given, Mapping):
        if len(given) != len(names):
            raise ValueError(f"dynamic shapes for {len(names)} inputs are needed. Received: {len(given)}")
        given = dict(zip(names, given, strict=True))
    unknown = set(given) - set(names) - set(outputs)
    if unknown:
        raise ValueError(f"there is no input or output {sorted(unknown)[0]!r}. Inputs: {', '.join(names)}")
    found: Axes = {}
    bounds: dict[str, Bounds] = {}
    for number, (name, shape) in enumerate(zip(names, shapes, strict=True)):
        for axis, text, room in _named_axes(name, given.get(name)):
            if not -len(shape) <= axis < len(shape):
                raise ValueError(f"input {name!r} has {len(shape)} axes, no axis {axis}")
            found.setdefault(text, []).append((number, axis % len(shape)))
            if room is not None and bounds.setdefault(text, room) != room:
                raise ValueError(f"{text!r} has two bounds: {bounds[text]} and {room}")
    for text, places in found.items():
        _check_example(text, {shapes[number][axis] for number, axis in places}, bounds.get(text))
    return DynamicAxes(found, bounds)


def _check_example(text: str, sizes: set[int], room: Bounds | None) -> None:
    if len(sizes) > 1:
        raise ValueError(f"{text!r} stands for different sizes in the example: {sorted(sizes)}")
    low, high = room or (0, None)
    if min(sizes) < low or (high is not None and min(sizes) > high):
        raise ValueError(f"{text!r} is {min(sizes)} in the example, and from {low} to {high} by its bounds")


def _named_axes(name: str, axes: Any) -> list[tuple[int, str, Bounds | None]]:
    if not axes:
        return []
    if isinstance(axes, Mapping):
        pairs = list(axes.items())
    elif all(isinstance(axis, int) for axis in axes):
        pairs = [(axis, f"{name}_axis_{axis}") for axis in axes]
    else:
        pairs = list(enumerate(axes))
    named = [(axis, _size(size, f"{name}_axis_{axis}")) for axis, size in pairs]
    return [(axis, *found) for axis, found in named if found is not None]


def _size(given: Any, usual: str) -> tuple[str, Bounds | None] | None:
    """The name and the bounds of a size; None for one that stays as it is in the example."""
    if given is None:
        return None
    text, *room = _entries(given)
    if isinstance(text, str) and text and len(room) in (0, 2):
        return text, _room(text, *room) if room else None
    kind = type(given).__name__
    if kind == "_DimHint":  # torch.export.Dim.AUTO, DYNAMIC and STATIC
        return None if "STATIC" in str(given) else (usual, _room(usual, given.min, given.max))
    if kind == "_DerivedDim":
        raise ValueError(f"{given.__name__} is derived from another size. Name the axis on its own")
    text = getattr(given, "__name__", None)
    if not isinstance(text, str) or not hasattr(given, "min"):
        raise ValueError(f"a dynamic axis is called by a text, or (text, least, most). Received: {given!r}")
    return text, _room(text, given.min, given.max)


def _entries(given: Any) -> list[Any]:
    return list(given) if isinstance(given, tuple) and given else [given]


def _room(text: str, low: Any, high: Any) -> Bounds | None:
    least, most = (x if isinstance(x, int) else None for x in (low, high))  # torch has an infinity of its own
    if (least is not None and least < 0) or (most is not None and most < (least or 0)):
        raise ValueError(f"the bounds of {text!r} are {low} and {high}")
    return None if most is None and not least else (least or 0, most)
