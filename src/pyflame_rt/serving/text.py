"""Text models: one thread steps all sequences of a model together, and hands tokens out as they come."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Any

from pyflame_rt.generate import Generator, SamplingParams
from pyflame_rt.graph.errors import QueueFullError, SessionClosedError

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyflame_rt.generate import Sequence, Tokenizer
    from pyflame_rt.session import InferenceSession

__all__ = ["Stream", "TextModel"]

log = logging.getLogger("pyflame_rt.serving")
UNFINISHED = "\ufffd"  # what decoders write for a character whose bytes are not all there yet


class Stream:
    """One answer on its way: text that is safe to show, piece by piece.

    Args:
        prompt: tokens to continue.
        params: how.
        deliver: called with each piece of text, and with None or an exception at the end, by another thread.
    """

    def __init__(
        self, prompt: list[int], params: SamplingParams, deliver: Callable[[str | BaseException | None], None]
    ) -> None:
        self._prompt, self._params, self._deliver = prompt, params, deliver
        self.sequence: Sequence | None = None
        self._cancelled = False
        stops = [len(stop) for stop in params.stop if isinstance(stop, str)]
        self._hold = max(stops, default=1) - 1  # as much may turn out to be part of a text to stop at
        self._sent = 0

    def begin(self, generator: Generator) -> None:
        """Have the prompt continued by the steps to come."""
        self.sequence = generator.add(self._prompt, self._params)
        if self._cancelled:
            self.sequence.cancel()

    def cancel(self) -> None:
        """Generate no more."""
        self._cancelled = True
        if self.sequence is not None:
            self.sequence.cancel()

    @property
    def reason(self) -> str:
        """Why it ended; "" as long as it goes on."""
        return "" if self.sequence is None else self.sequence.finish_reason

    @property
    def count(self) -> int:
        """Tokens that were added."""
        return 0 if self.sequence is None else len(self.sequence.tokens)

    def advance(self) -> None:
        """Hand out what is new."""
        text, ended = "" if self.sequence is None else self.sequence.text, bool(self.reason)
        if not ended:
            text = text[: len(text) - self._hold].rstrip(UNFINISHED)
        if len(text) > self._sent:
            self._deliver(text[self._sent :])
            self._sent = len(text)
        if ended:
            self._deliver(None if self.sequence is None else self.sequence.error)

    def fail(self, error: BaseException) -> None:
        """Tell that there will be no more."""
        self._deliver(error)


class TextModel:
    """Generates text for many clients at a time.

    Args:
        session: a decoder.
        files: its tokenizer.
        capacity: sequences that may wait.
        owned: close the session at the end.

    Raises:
        InputError: The model is no decoder.
    """

    def __init__(
        self, session: InferenceSession, files: Tokenizer, capacity: int = 1000, *, owned: bool = False
    ) -> None:
        self.files = files
        self._session, self._capacity, self._owned = session, capacity, owned
        self._generator = Generator(session, files)
        self._changed = threading.Condition()
        self._new: list[Stream] = []
        self._streams: list[Stream] = []  # of the thread that steps
        self._thread: threading.Thread | None = None
        self._closed = False

    def submit(
        self, prompt: list[int], params: SamplingParams, deliver: Callable[[str | BaseException | None], None]
    ) -> Stream:
        """Have a prompt continued; returns at once.

        Raises:
            QueueFullError: Too many wait.
            SessionClosedError: The model was unloaded.
        """
        stream = Stream(prompt, params, deliver)
        with self._changed:
            if self._closed:
                raise SessionClosedError("the model was unloaded")
            waiting = len(self._new) + len(self._streams)
            if waiting >= self._capacity:
                raise QueueFullError(f"{waiting} sequences are generated, queue_capacity allows {self._capacity}")
            self._new.append(stream)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="pyflame-rt-text", daemon=True)
                self._thread.start()
            self._changed.notify()
        return stream

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._new or self._streams or self._closed)
                fresh, self._new = self._new, []
                if self._closed and not fresh and not self._streams:
                    return
            for stream in fresh:
                self._begin(stream)
            try:
                self._generator.step()
            except Exception as error:  # noqa: BLE001 - whoever waits gets it
                log.warning("a step of text generation failed: %s", error)
                self._fail(error)
                continue
            for stream in self._streams:
                stream.advance()
            self._streams = [stream for stream in self._streams if not stream.reason]

    def _begin(self, stream: Stream) -> None:
        try:
            stream.begin(self._generator)
        except Exception as error:  # noqa: BLE001 - a prompt or settings that cannot be: told who asked
            stream.fail(error)
        else:
            self._streams.append(stream)

    def _fail(self, error: Exception) -> None:
        """A step failed: for whom is not known, so that all are told, and those to come begin anew."""
        streams, self._streams = self._streams, []
        self._generator = Generator(self._session, self.files)
        for stream in streams:
            stream.fail(error)

    def close(self) -> None:
        """Finish what was asked, and end."""
        with self._changed:
            self._closed = True
            self._changed.notify()
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()
        if self._owned:
            self._session.close()


def sampling(settings: dict[str, Any], files: Tokenizer) -> SamplingParams:
    """Settings of a request, with the tokens that end an answer."""
    return SamplingParams(eos_token_id=files.eos_token_ids or None, **settings).checked()
