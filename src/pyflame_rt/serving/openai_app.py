"""OpenAI's completions, chats and embeddings, for models with a tokenizer; answers also as server-sent events."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import os
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson
from starlette.responses import Response, StreamingResponse

from pyflame_rt.serving.bodies import until_gone
from pyflame_rt.serving.errors import RequestError, as_request_error
from pyflame_rt.serving.openai_requests import ChatRequest, CompletionRequest, EmbeddingRequest, checked_request
from pyflame_rt.serving.service import answered
from pyflame_rt.serving.text import TextModel, sampling

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from starlette.requests import Request

    from pyflame_rt.serving.app import Application
    from pyflame_rt.serving.instance import ModelInstance
    from pyflame_rt.serving.text import Stream

__all__ = ["OpenAI"]

MAX_PROMPT = 32_768


class _Answers:
    """The sequences of one request, and what comes of them in the order it comes."""

    def __init__(self, text: TextModel, prompts: list[list[int]], settings: dict[str, Any], copies: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._queue: asyncio.Queue[tuple[int, Any]] = asyncio.Queue()
        self.prompts = prompts
        self.streams: list[Stream] = []
        seed = settings.get("seed")
        try:
            for i, prompt in enumerate(p for p in prompts for _ in range(copies)):
                own = {**settings, "seed": None if seed is None else seed + i}
                self.streams.append(text.submit(prompt, sampling(own, text.files), self._deliver(i)))
        except BaseException:
            self.cancel()
            raise

    def _deliver(self, index: int) -> Any:
        def deliver(piece: Any) -> None:
            with contextlib.suppress(RuntimeError):  # the server has ended
                self._loop.call_soon_threadsafe(self._queue.put_nowait, (index, piece))

        return deliver

    async def pieces(self, seconds: float) -> AsyncIterator[tuple[int, str | None]]:
        """Pieces of text with the number of their answer; None when one has ended."""
        left = len(self.streams)
        while left:
            try:
                index, piece = await asyncio.wait_for(self._queue.get(), seconds)
            except TimeoutError:
                raise RequestError(504, "Timeout", f"no token came within {seconds:g} s") from None
            if isinstance(piece, BaseException):
                raise piece
            left -= piece is None
            yield index, piece

    def cancel(self) -> None:
        """Generate no more."""
        for stream in self.streams:
            stream.cancel()

    def reason(self, index: int) -> str:
        """Why an answer ended."""
        return self.streams[index].reason

    def usage(self) -> dict[str, int]:
        """Tokens."""
        asked = sum(map(len, self.prompts))
        made = sum(stream.count for stream in self.streams)
        return {"prompt_tokens": asked, "completion_tokens": made, "total_tokens": asked + made}


class _EventStream(StreamingResponse):
    """Server-sent events; what makes them ends with the response, also where nobody has heard the first of them.

    Args:
        answers: what comes.
        writer: its form.
        usage: end with the count of tokens.
        seconds: how long a token may take.
        done: called when all was sent.
        held: ends what was begun for the request.
    """

    def __init__(
        self,
        answers: _Answers,
        writer: _Writer,
        *,
        usage: bool,
        seconds: float,
        done: Callable[[], None],
        held: contextlib.ExitStack,
    ) -> None:
        super().__init__(self._events(), media_type="text/event-stream", headers={"cache-control": "no-store"})
        self._answers, self._writer, self._usage, self._seconds = answers, writer, usage, seconds
        self._done, self._held = done, held
        self._failure: Exception | None = None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Send them."""
        with self._held:
            await super().__call__(scope, receive, send)
            if self._failure is not None:
                raise self._failure  # to be counted: the client was told

    async def _events(self) -> AsyncIterator[bytes]:
        """An error that comes after the first event is one of them."""
        writer = self._writer
        try:
            for index in range(len(self._answers.streams)):
                for first in writer.first(index):
                    yield _event(first)
            async for index, piece in self._answers.pieces(self._seconds):
                yield _event(writer.piece(index, piece))
            if self._usage:
                yield _event(writer.last())
            self._done()
            yield b"data: [DONE]\n\n"
        except Exception as error:  # noqa: BLE001 - the status is sent already: the client is told in the stream
            self._failure, refused = error, as_request_error(error)
            yield _event({"error": {"message": str(refused), "type": refused.code, "code": refused.status}})


class OpenAI:
    """The routes, added to an application.

    Args:
        app: the application.
    """

    def __init__(self, app: Application) -> None:
        self.app, self.service = app, app.service
        app.add("POST", "/v1/completions", self.completions)
        app.add("POST", "/v1/chat/completions", self.chat)
        app.add("POST", "/v1/embeddings", self.embeddings)

    # ------------------------------------------------------------------ text

    async def completions(self, request: Request) -> Response:
        """Continue prompts."""
        asked = checked_request(CompletionRequest, await self.app.read_json(request))
        return await self._generate(request, asked, lambda _: asked.prompts(), asked.max_tokens)

    async def chat(self, request: Request) -> Response:
        """Answer a conversation."""
        asked = checked_request(ChatRequest, await self.app.read_json(request))
        messages = [message.plain() for message in asked.messages]
        return await self._generate(request, asked, lambda words: [words.chat(messages)], asked.count())

    async def _generate(self, request: Request, asked: Any, prompts: Any, count: int) -> Response:
        chat, seconds, begun = isinstance(asked, ChatRequest), self.service.timeout_ms / 1e3, time.perf_counter()
        with contextlib.ExitStack() as held:
            held.enter_context(self.service.counted(asked.model))
            instance = await self.service.acquire(asked.model)
            held.callback(instance.release)
            text = _text_of(instance)
            given = prompts(text.files)
            encoded = [text.files.encode(p) if isinstance(p, str) else p for p in given]
            _check_lengths(encoded, _words(instance))
            answers = _Answers(text, encoded, asked.settings(count), asked.n)
            held.callback(answers.cancel)
            writer = _Writer(asked.model, answers, chat=chat, echo=[] if chat or not asked.echo else given)

            def done() -> None:
                instance.count(len(answers.streams), begun)

            if asked.stream:
                usage = asked.stream_options is not None and asked.stream_options.include_usage
                own = held.pop_all()
                return _EventStream(answers, writer, usage=usage, seconds=seconds, done=done, held=own)
            texts = asyncio.ensure_future(_texts(answers, seconds))
            found = writer.whole(await answered(texts, lambda: until_gone(request)))
            done()
            return self.app.json(found)

    # ------------------------------------------------------------------ embeddings

    async def embeddings(self, request: Request) -> Response:
        """Vectors of texts: an output with one vector a row, else the mean of its tokens' vectors, of length 1."""
        asked = checked_request(EmbeddingRequest, await self.app.read_json(request))
        with self.service.counted(asked.model):
            instance = await self.service.acquire(asked.model)
            try:
                files = instance.tokenizer
                if files is None:
                    raise _no_text(instance)
                encoded = [files.encode(t) if isinstance(t, str) else t for t in asked.texts()]
                _check_lengths(encoded, 0)
                runs = [self.service.run(instance, _feed(instance, tokens)) for tokens in encoded]
                vectors = [_pooled(answer.outputs) for answer in await asyncio.gather(*runs)]
            finally:
                instance.release()
        total = sum(map(len, encoded))
        data = [
            {"object": "embedding", "index": i, "embedding": _written(vector, asked.encoding_format)}
            for i, vector in enumerate(vectors)
        ]
        usage = {"prompt_tokens": total, "total_tokens": total}
        return self.app.json({"object": "list", "data": data, "model": asked.model, "usage": usage})


async def _texts(answers: _Answers, seconds: float) -> list[str]:
    texts = [""] * len(answers.streams)
    async for index, piece in answers.pieces(seconds):
        texts[index] += piece or ""
    return texts


class _Writer:
    """Answers in OpenAI's form."""

    def __init__(self, model: str, answers: _Answers, *, chat: bool, echo: list[Any]) -> None:
        self._model, self._answers, self._chat, self._echo = model, answers, chat, echo
        self._copies = len(answers.streams) // len(answers.prompts)
        kind = "chatcmpl" if chat else "cmpl"
        self._id, self._created = f"{kind}-{os.urandom(12).hex()}", int(time.time())

    def _head(self, chunk: bool) -> dict[str, Any]:
        kind = ("chat.completion.chunk" if chunk else "chat.completion") if self._chat else "text_completion"
        return {"id": self._id, "object": kind, "created": self._created, "model": self._model}

    def _before(self, index: int) -> str:
        prompt = self._echo[index // self._copies] if self._echo else ""
        return prompt if isinstance(prompt, str) else ""

    def whole(self, texts: list[str]) -> dict[str, Any]:
        """An answer in one piece."""
        choices = []
        for i, text in enumerate(texts):
            said: dict[str, Any] = (
                {"message": {"role": "assistant", "content": text}} if self._chat else {"text": self._before(i) + text}
            )
            choices.append({"index": i, **said, "logprobs": None, "finish_reason": self._answers.reason(i)})
        return {**self._head(False), "choices": choices, "usage": self._answers.usage()}

    def first(self, index: int) -> list[dict[str, Any]]:
        """What comes before the text."""
        if self._chat:
            return [self._chunk(index, {"delta": {"role": "assistant", "content": ""}}, None)]
        before = self._before(index)
        return [self._chunk(index, {"text": before}, None)] if before else []

    def piece(self, index: int, piece: str | None) -> dict[str, Any]:
        """A piece of text, or the end."""
        reason = self._answers.reason(index) if piece is None else None
        if self._chat:
            return self._chunk(index, {"delta": {} if piece is None else {"content": piece}}, reason)
        return self._chunk(index, {"text": piece or ""}, reason)

    def _chunk(self, index: int, said: dict[str, Any], reason: str | None) -> dict[str, Any]:
        return {**self._head(True), "choices": [{"index": index, **said, "logprobs": None, "finish_reason": reason}]}

    def last(self) -> dict[str, Any]:
        """The count of tokens."""
        return {**self._head(True), "choices": [], "usage": self._answers.usage()}


def _event(value: dict[str, Any]) -> bytes:
    return b"data: " + orjson.dumps(value) + b"\n\n"


def _text_of(instance: ModelInstance) -> TextModel:
    if instance.text is None:
        raise _no_text(instance)
    return instance.text


def _no_text(instance: ModelInstance) -> RequestError:
    why = instance.text_problem or "there is no tokenizer.json beside it"
    return RequestError(400, "InvalidRequest", f"model {instance.name!r} is no model of text: {why}")


def _words(instance: ModelInstance) -> int:
    """How many tokens there are, where the model says."""
    shape = getattr(instance.graph.outputs[0].type, "shape", None)
    return shape[-1] if shape and isinstance(shape[-1], int) else 0


def _check_lengths(prompts: list[list[int]], words: int) -> None:
    for tokens in prompts:
        if not 0 < len(tokens) <= MAX_PROMPT:
            raise RequestError(
                400, "InvalidRequest", f"a prompt needs from 1 to {MAX_PROMPT} tokens, got {len(tokens)}"
            )
        if words and max(tokens) >= words:
            raise RequestError(400, "InvalidRequest", f"token {max(tokens)} is not one of the model's {words}")


def _feed(instance: ModelInstance, tokens: list[int]) -> dict[str, Any]:
    """Tokens, and a mask and types where the model takes them."""
    found: dict[str, Any] = {}
    for info in instance.graph.required_inputs:
        name = info.name.lower()
        row = [1] * len(tokens) if "mask" in name else [0] * len(tokens) if "type" in name else tokens
        found[info.name] = np.array([row], getattr(info.type, "dtype", None) and info.type.dtype.numpy)  # type: ignore[union-attr]
    return found


def _pooled(outputs: dict[str, Any]) -> np.ndarray[Any, Any]:
    flat = next((a for a in outputs.values() if getattr(a, "ndim", 0) == 2), None)
    if flat is None:
        deep = next((a for a in outputs.values() if getattr(a, "ndim", 0) == 3), None)
        if deep is None:
            raise RequestError(400, "InvalidRequest", "the model has no output of vectors")
        flat = deep.astype(np.float64).mean(axis=1)
    vector = flat[0].astype(np.float64)
    length = float(np.linalg.norm(vector))
    return (vector / length if length else vector).astype(np.float32)


def _written(vector: np.ndarray[Any, Any], form: str) -> Any:
    return vector.tolist() if form == "float" else base64.b64encode(vector.tobytes()).decode()
