"""Step by step: a model whose state goes from the outputs of one run to the inputs of the next."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

import numpy as np

from pyflame_rt.arrays import host_array
from pyflame_rt.graph import Dim, Tensor, TensorType
from pyflame_rt.graph.arguments import expect_callable, expect_graph_of
from pyflame_rt.graph.errors import InputError, SessionClosedError, ShapeMismatchError
from pyflame_rt.graph.named_arguments import names_arguments
from pyflame_rt.streaming.states import blank_state, state_pairs

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import TracebackType

    from pyflame_rt.session import InferenceSession

__all__ = ["StreamingInference"]

Array = np.ndarray[Any, Any]


class StreamingInference:
    """Feeds a model token by token (or frame by frame), and carries its state.

    States are pairs of an output and the input that takes it in the next step: ``present*`` and ``past*``,
    ``*_out`` and ``*_in``, ``stateN`` and ``state``, ``h_n`` and ``h_0`` and the like, or what ``state_map`` says. A
    state that was not given begins as zeros. The token goes to the first input that is no
    state (of those that must be fed, where there are any). A model without
    state whose second axis may vary is given the sequence so far, with the token at its end.

    Other inputs keep the value that :meth:`start` was given. In a model with a growing state, a mask (batch by
    length) is extended by ones and ``position_ids`` count on.

    Args:
        session: the model.
        state_map: pairs of output and input, in place of those found by name.
        max_outputs: how many outputs :meth:`get_outputs` keeps, the latest; None for all.

    Example:
        >>> import pyflame_rt
        >>> g = pyflame_rt.Graph("running sum")
        >>> _ = g.add_input("x", [1]), g.add_input("sum_in", [1])
        >>> _ = g.add_node("n", "Add", ["x", "sum_in"], ["sum_out"]), g.add_node("m", "Identity", ["sum_out"], ["y"])
        >>> _ = g.add_output("y", [1]), g.add_output("sum_out", [1])
        >>> with StreamingInference(pyflame_rt.InferenceSession(g)) as stream:
        ...     [float(stream.step([x])[0]) for x in (1.0, 2.0, 3.0)]
        [1.0, 3.0, 6.0]
    """

    @names_arguments
    def __init__(
        self,
        session: InferenceSession,
        state_map: Mapping[str, str] | None = None,
        *,
        max_outputs: int | None = None,
    ) -> None:
        self.session = session
        graph = expect_graph_of(session, "a StreamingInference")
        self._inputs = {info.name: info for info in graph.inputs}
        self._required = {info.name for info in graph.required_inputs}
        self._names = [info.name for info in graph.outputs]
        self.state_pairs = state_pairs(graph, state_map)
        self._states = set(self.state_pairs.values())
        shown = [name for name in self._names if name not in self.state_pairs] or self._names
        self.output_name = shown[0]
        self._outputs: deque[Array] = deque(maxlen=max_outputs)
        self._callback: Callable[[Array], object] | None = None
        self._feed: dict[str, Any] | None = None
        self._entry = ""
        self._sequence: Array | None = None

    def set_step_callback(self, callback: Callable[[Array], object] | None) -> None:
        """Have a function called with the output of every step."""
        if callback is not None:
            expect_callable(callback, "callback")
        self._callback = callback

    @property
    def running(self) -> bool:
        """Whether :meth:`start` was called and :meth:`stop` was not."""
        return self._feed is not None

    @property
    def input_name(self) -> str:
        """The input that tokens go to; "" before :meth:`start`."""
        return self._entry

    @property
    def state(self) -> dict[str, Array]:
        """The state, by input; to begin with it again, give it to :meth:`start`."""
        return {name: value for name, value in self._active().items() if name in self._states}

    # ------------------------------------------------------------------ steps

    def start(self, initial: Mapping[str, Any] | None = None) -> Array | None:
        """Begin, forgetting what was before.

        Args:
            initial: values of inputs: states, settings, and the first of the sequence, which is run at once.

        Returns:
            The output of what was run; None when there was nothing to run.
        """
        given = dict(initial or {})
        for name in given:
            if name not in self._inputs:
                raise InputError(f"the model has no input {name!r}. Inputs: {', '.join(self._inputs)}")
        self._outputs.clear()
        self._sequence = None
        free = [name for name in self._inputs if name not in self._states and not self._helps(name)]
        # Where all have defaults, the one that is given.
        first = [name for name in free if name in self._required] or [name for name in free if name in given] or free
        if not first:
            raise InputError("every input of the model is a state: there is none for tokens")
        self._entry = first[0]
        token = given.pop(self._entry, None)
        self._feed = {name: self._array(value, name) for name, value in given.items()}
        return None if token is None else self._step(self._array(token, self._entry))

    def step(self, token: Any) -> Array:
        """Feed one token, or several; the output of the model.

        Args:
            token: an array, a Tensor or a number; axes that are missing in front are added.
        """
        if self._feed is None:
            raise SessionClosedError("the stream is not running: call start() first")
        return self._step(self._array(token, self._entry))

    def get_outputs(self) -> list[Array]:
        """The outputs of all steps since :meth:`start`."""
        return list(self._outputs)

    def stop(self) -> None:
        """End, and let go of the state; the outputs can still be asked for."""
        self._feed = self._sequence = None

    def __enter__(self) -> StreamingInference:
        if self._feed is None:
            self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    # ------------------------------------------------------------------ what a step feeds

    def _active(self) -> dict[str, Any]:
        if self._feed is None:
            raise SessionClosedError("the stream is not running: call start() first")
        return self._feed

    def _array(self, value: Any, name: str) -> Array:
        kind = self._inputs[name].type
        dtype = kind.dtype.numpy if isinstance(kind, TensorType) else None
        found = value.raw() if isinstance(value, Tensor) else host_array(value)
        try:
            array = np.asarray(value, dtype) if found is None else found
        except (TypeError, ValueError, OverflowError) as error:
            raise InputError(f"input {name!r} is {kind}: {error}") from None
        rank = kind.rank if isinstance(kind, TensorType) else None
        if rank is not None and array.ndim > rank:
            raise ShapeMismatchError(f"input {name!r} is {kind}, got shape {list(array.shape)}")
        return array if rank is None else array.reshape((1,) * (rank - array.ndim) + array.shape)

    def _step(self, token: Array) -> Array:
        feed = self._active()
        value = self._appended(token)
        fed = {**feed, self._entry: value}
        sizes, rows = self._sizes(value), value.shape[0] if value.ndim else 1
        for name in self._states - set(fed):
            fed[name] = blank_state(self._inputs[name], sizes, rows, growing=name.startswith("past"))
        self._extend(fed, token)
        results = dict(zip(self._names, self.session.run(None, fed), strict=True))
        for name, target in self.state_pairs.items():
            fed[target] = results[name]
        self._sequence = value if self._appends() else None
        self._feed = {name: array for name, array in fed.items() if name != self._entry}
        output = results[self.output_name]
        self._outputs.append(output)
        if self._callback is not None:
            self._callback(output)
        return output

    def _appends(self) -> bool:
        """Whether the model has no memory of its own, and takes sequences of any length."""
        kind = self._inputs[self._entry].type
        shape = kind.shape if isinstance(kind, TensorType) else None
        return not self._states and shape is not None and len(shape) > 1 and not isinstance(shape[1], int)

    def _appended(self, token: Array) -> Array:
        if self._sequence is None or not self._appends():
            return token
        return np.concatenate([self._sequence, token.astype(self._sequence.dtype, copy=False)], axis=1)

    def _sizes(self, token: Array) -> dict[str, int]:
        """What the token says of symbolic sizes: the batch."""
        kind = self._inputs[self._entry].type
        shape = kind.shape if isinstance(kind, TensorType) else None
        if not shape or len(shape) != token.ndim:
            return {}
        pairs = zip(shape, token.shape, strict=True)
        return {str(dim): size for dim, size in pairs if isinstance(dim, Dim) and dim.symbols() == {str(dim)}}

    def _helps(self, name: str) -> bool:
        """Whether an input follows from the others: it is extended with every step."""
        kind = self._inputs[name].type
        flat = isinstance(kind, TensorType) and kind.rank == 2
        return flat and self._growing() and ("mask" in name.lower() or name.lower() == "position_ids")

    def _growing(self) -> bool:
        return any(name.startswith("past") for name in self._states)

    def _extend(self, fed: dict[str, Any], token: Array) -> None:
        """Masks and positions of what a growing state has seen, and of the token."""
        if not self._growing():
            return
        for name, info in self._inputs.items():
            if name not in self._states and self._helps(name) and isinstance(info.type, TensorType):
                dtype, known = info.type.dtype.numpy, fed.get(name)
                if "mask" in name.lower():
                    more = np.ones(token.shape[:2], dtype)
                    fed[name] = more if known is None else self._mask(known, token, more)
                else:
                    fed[name] = self._positions(known, token, dtype)

    def _mask(self, known: Array, token: Array, more: Array) -> Array:
        first = not self._outputs
        return known if first and known.shape[1] >= token.shape[1] else np.concatenate([known, more], axis=1)

    def _positions(self, known: Array | None, token: Array, dtype: np.dtype[Any]) -> Array:
        if known is not None and not self._outputs:
            return known
        begin = 0 if known is None else known[:, -1:] + 1
        return (begin + np.broadcast_to(np.arange(token.shape[1]), token.shape[:2])).astype(dtype)
