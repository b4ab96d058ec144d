"""Requests in OpenAI's form, checked (pydantic)."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from pyflame_rt.serving.errors import RequestError

__all__ = ["ChatRequest", "CompletionRequest", "EmbeddingRequest", "checked_request"]

MAX_TOKENS = 32_768


def _whole(value: Any) -> Any:
    return int(value) if isinstance(value, float) and value.is_integer() else value


Whole = Annotated[int, BeforeValidator(_whole)]  # JSON has one kind of number: 5.0 is 5
Texts = Annotated[list[str], Field(min_length=1, max_length=2048)]
Tokens = Annotated[list[Annotated[Whole, Field(ge=0)]], Field(min_length=1, max_length=MAX_TOKENS)]
Count = Annotated[Whole, Field(ge=1, le=MAX_TOKENS)]


class _Request(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    model: str
    user: str | None = None  # whom the client asks for; of no consequence


class _StreamOptions(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    include_usage: bool = False


class _Generation(_Request):
    temperature: Annotated[float, Field(ge=0, le=2)] = 1.0
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    n: Annotated[Whole, Field(ge=1, le=16)] = 1
    stream: bool = False
    stream_options: _StreamOptions | None = None
    stop: str | Annotated[list[Annotated[str, Field(min_length=1)]], Field(max_length=16)] | None = None
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] = 0.0
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] = 0.0
    logit_bias: dict[str, Annotated[float, Field(ge=-100, le=100)]] | None = None
    seed: Annotated[Whole, Field(ge=0, lt=2**63)] | None = None

    def settings(self, count: int) -> dict[str, Any]:
        """Settings of the generator."""
        stop = [self.stop] if isinstance(self.stop, str) else self.stop or []
        try:
            bias = {int(token): value for token, value in (self.logit_bias or {}).items()}
        except ValueError:
            raise RequestError(400, "InvalidRequest", "logit_bias: keys are numbers of tokens") from None
        return {
            "max_new_tokens": count,
            "temperature": self.temperature,
            "top_p": self.top_p,
            "stop": [text for text in stop if text],
            "presence_penalty": self.presence_penalty,
            "frequency_penalty": self.frequency_penalty,
            "logit_bias": bias,
            "seed": self.seed,
        }


class CompletionRequest(_Generation):
    """``/v1/completions``."""

    prompt: str | Tokens | Texts
    max_tokens: Count = 16
    echo: bool = False

    def prompts(self) -> list[str | list[int]]:
        """Each of them, as text or tokens."""
        given = self.prompt
        if isinstance(given, str):
            return [given]
        return [list(given)] if isinstance(given[0], int) else list(given)  # type: ignore[arg-type] - of one kind


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    type: Literal["text"]
    text: str


class _Message(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    role: Literal["system", "developer", "user", "assistant"]
    content: str | list[_Part]
    name: str | None = None

    def plain(self) -> dict[str, str]:
        """Role and text."""
        text = self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)
        return {"role": self.role, "content": text}


class ChatRequest(_Generation):
    """``/v1/chat/completions``."""

    messages: Annotated[list[_Message], Field(min_length=1, max_length=4096)]
    max_tokens: Count | None = None
    max_completion_tokens: Count | None = None

    def count(self) -> int:
        """Tokens to add at most."""
        return self.max_completion_tokens or self.max_tokens or 256


class EmbeddingRequest(_Request):
    """``/v1/embeddings``."""

    input: str | Tokens | Texts
    encoding_format: Literal["float", "base64"] = "float"

    def texts(self) -> list[str | list[int]]:
        """Each of them, as text or tokens."""
        given = self.input
        if isinstance(given, str):
            return [given]
        return [list(given)] if isinstance(given[0], int) else list(given)  # type: ignore[arg-type] - of one kind


def checked_request(kind: Any, body: Any) -> Any:
    """A request of a kind.

    Raises:
        RequestError: It is not of that form.
    """
    try:
        return kind.model_validate(body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or "the body"
        raise RequestError(400, "InvalidRequest", f"{where}: {first['msg']}") from None
