# ruff: noqa: ARG001 - every body takes the library, and parameters some backend needs
"""Control flow over arrays, in plain Python, and gradients."""

from collections.abc import Callable, Sequence
from typing import Any

from emberharmony.errors import UnsupportedOpError
from emberharmony.library import Library
from emberharmony.registry import op
from emberharmony.typing import Array, ArrayLike


@op
def cond(
    lib: Library,
    pred: ArrayLike,
    true_fn: Callable[[], Any],
    false_fn: Callable[[], Any],
) -> Any:
    """Call one of two functions.

    >>> ops.cond(True, lambda: 1, lambda: 2)
    1
    """
    return true_fn() if _holds(lib, pred) else false_fn()


def _holds(lib: Library, pred: ArrayLike) -> bool:
    return bool(lib.to_numpy(pred)) if lib.is_array(pred) else bool(pred)


@op
def switch(lib: Library, index: ArrayLike, branches: Sequence[Callable[..., Any]], *operands: Any) -> Any:
    """Call the branch of a number, the nearest one if it is out of range.

    >>> ops.switch(1, [lambda: "a", lambda: "b"])
    'b'
    """
    return branches[min(max(int(index), 0), len(branches) - 1)](*operands)


@op
def while_loop(
    lib: Library,
    cond: Callable[..., Any],
    body: Callable[..., Any],
    loop_vars: Any,
    maximum_iterations: int | None = None,
) -> Any:
    """Repeat a body as long as a condition on the variables holds.

    >>> ops.while_loop(lambda i: i < 3, lambda i: (i + 1,), (0,))
    (3,)
    """
    single = not isinstance(loop_vars, list | tuple)
    values = (loop_vars,) if single else tuple(loop_vars)
    count = 0
    while (maximum_iterations is None or count < maximum_iterations) and _holds(lib, cond(*values)):
        new = body(*values)
        values = tuple(new) if isinstance(new, list | tuple) else (new,)
        count += 1
    return values[0] if single else values


@op
def fori_loop(lib: Library, lower: int, upper: int, body_fun: Callable[[int, Any], Any], init_val: Any) -> Any:
    """Pass a value through a body for each number from `lower` to below `upper`.

    >>> ops.fori_loop(0, 4, lambda i, v: v + i, 0)
    6
    """
    value = init_val
    for i in range(int(lower), int(upper)):
        value = body_fun(i, value)
    return value


def _row(xs: Any, i: int) -> Any:
    return type(xs)(x[i] for x in xs) if isinstance(xs, list | tuple) else xs[i]


def _stacked(lib: Library, rows: list[Any]) -> Any:
    if rows and isinstance(rows[0], list | tuple):
        return tuple(lib.stack(list(column)) for column in zip(*rows, strict=True))
    return None if not rows or rows[0] is None else lib.stack(rows)


@op
def scan(
    lib: Library,
    f: Callable[[Any, Any], tuple[Any, Any]],
    init: Any,
    xs: Any = None,
    length: int | None = None,
    reverse: bool = False,
) -> tuple[Any, Any]:
    """Carry a value along the first axis; the other results are stacked.

    >>> ops.scan(lambda c, x: (c + x, c), 0, np.array([1, 2]))[0].item()
    3
    """
    first = xs[0] if isinstance(xs, list | tuple) else xs
    count = length if first is None else len(first)
    if count is None:
        raise ValueError("scan needs xs or length")
    carry, rows = init, []
    order = range(count - 1, -1, -1) if reverse else range(count)
    for i in order:
        carry, row = f(carry, None if xs is None else _row(xs, i))
        rows.append(row)
    return carry, _stacked(lib, rows[::-1] if reverse else rows)


@op
def map(lib: Library, f: Callable[[Any], Any], xs: Any) -> Any:
    """Call a function on each element of the first axis and stack the results.

    >>> ops.map(lambda x: x * 2, np.array([1, 2]))
    array([2, 4])
    """
    first = xs[0] if isinstance(xs, list | tuple) else xs
    return _stacked(lib, [f(_row(xs, i)) for i in range(len(first))])


@op
def vectorized_map(lib: Library, function: Callable[[Any], Any], elements: Any) -> Any:
    """As `map`, at once where the library can.

    >>> ops.vectorized_map(lambda x: x * 2, np.array([1, 2]))
    array([2, 4])
    """
    return lib.map(function, elements)


@op
def gradients(  # noqa: D417
    lib: Library, target: Callable[..., Array] | Array, xs: Any
) -> Any:
    """Gradients of a scalar towards arrays.

    Args:
        target: A function of the arrays, or (torch only) a result computed from them.
        xs: One array or a sequence of arrays.

    Returns:
        One gradient, or a list of them if `xs` is a sequence.

    Raises:
        UnsupportedOpError: The library has no automatic differentiation.

    >>> ops.gradients(lambda x: x, np.ones(1))
    Traceback (most recent call last):
    emberharmony.errors.UnsupportedOpError: gradients is not available on numpy: ...
    """
    raise UnsupportedOpError("gradients", lib.name, "use arrays of torch or mlx")
