"""The steps of a GRU whose reset gate scales the state before the product: two products a step."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyflame_rt.backends.cpu.ir.loops import loop
from pyflame_rt.backends.cpu.jit.target import host as this_host
from pyflame_rt.backends.cpu.kernels.rnn_timesteps import StepsEmitter
from pyflame_rt.graph.records import dataclass

if TYPE_CHECKING:
    from pyflame_rt.backends.cpu.ir.builder import V
    from pyflame_rt.backends.cpu.jit.target import Host
    from pyflame_rt.backends.cpu.kernels.rnn_timesteps import Element

__all__ = ["GruResetSteps"]


@dataclass(frozen=True)
class GruResetSteps:
    """All steps of a layer.

    bufs: gates, panels of R' for update and reset, panels of R' for the new state, first states, result, last states,
    room for three numbers a hidden unit. params: as `ForwardSteps`. rows: directions x batch.
    """

    elem: Element

    @property
    def key(self) -> str:
        """Equal for kernels of equal structure."""
        return f"steps gru-reset {self.elem}"

    def emit(self, name: str, host: Host | None = None) -> str:
        """The module, as text."""
        return _GruReset("gru", self.elem, name, host or this_host()).emit()


class _GruReset(StepsEmitter):
    buffers = 7

    def _walk(self) -> None:
        b, hidden = self.b, self.p["hidden"]
        gates, for_gates, for_state, first, y, last, room = self.bufs
        wide = self._times(hidden, 3)
        work = b.element(self.elem, room, self._times(self.state, 3))
        # Update and reset; then the product takes the scaled state from the third part and puts its sums in the second.
        sums, product, scaled = ((self._at(work, "0", part), wide) for part in range(3))

        def step(t: str, _: list[V]) -> list[V]:
            time = self._time(t)
            before = self._before(t, self._first(first), y, 1)
            given = self._given(gates, time, 3), self.p["in_row"]
            result = self._line(y, time, 1), self._stride(1)
            self.panels = for_gates
            self._product(before, hidden, self._times(hidden, 2), sums, t, None)
            self._each(self._gates, sums, given, before)
            self.panels = for_state
            self._product(scaled, hidden, hidden, product, t, None)
            self._each(self._state, sums, given, before, result)
            return []

        loop(b, "0", self.p["steps"], 1, [], step)
        end = self._time(self.final)
        self._copy((self._line(y, end, 1), self._stride(1)), (self._first(last), hidden))

    def _gates(self, i: str, mask: V | None, lines: list[str]) -> None:
        sums, given, old = lines
        update, reset = (
            self.sigmoid(self._load(sums, i, mask, part) + self._load(given, i, mask, part)) for part in range(2)
        )
        self._store(update, sums, i, mask)
        self._store(reset * self._load(old, i, mask), sums, i, mask, 2)

    def _state(self, i: str, mask: V | None, lines: list[str]) -> None:
        sums, given, old, y = lines
        new = self.tanh(self._load(sums, i, mask, 1) + self._load(given, i, mask, 2))
        update = self._load(sums, i, mask)
        self._store(self.at.fma(update, self._load(old, i, mask) - new, new), y, i, mask)
