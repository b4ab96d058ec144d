"""OpenAI's own package, unmodified."""

import numpy as np
import pytest

from tests.unit.serving.test_openai import embedder, expected, scene  # noqa: F401 - a fixture

openai = pytest.importorskip("openai", reason="needs OpenAI's package")


@pytest.fixture
def client(scene):  # noqa: F811 - the fixture
    with openai.OpenAI(base_url=scene[0].url + "/v1", api_key="any", max_retries=0, timeout=120) as found:
        yield found, scene[1]


def test_completions_and_events(client):
    asked, tokenizer = client
    want = expected(tokenizer, "hello", max_new_tokens=9).text
    settings = {"model": "gpt", "prompt": "hello", "max_tokens": 9, "temperature": 0}
    whole = asked.completions.create(**settings)
    assert whole.choices[0].text == want
    assert whole.usage is not None
    assert whole.usage.completion_tokens == 9
    pieces = asked.completions.create(**settings, stream=True)
    assert "".join(event.choices[0].text for event in pieces) == want


def test_a_chat_and_its_events(client):
    asked, _ = client
    settings = {"model": "gpt", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 6, "temperature": 0}
    whole = asked.chat.completions.create(**settings)
    events = asked.chat.completions.create(**settings, stream=True)
    text = "".join(event.choices[0].delta.content or "" for event in events)
    assert whole.choices[0].message.content == text


def test_embeddings_and_models(client):
    asked, tokenizer = client
    found = asked.embeddings.create(model="embedder", input=["abc", "de"])  # as base64, which the package prefers
    mean = embedder()[1][tokenizer.encode("abc").ids].astype(np.float64).mean(axis=0)
    np.testing.assert_allclose(found.data[0].embedding, mean / np.linalg.norm(mean), atol=1e-6)
    assert "gpt" in [model.id for model in asked.models.list()]
    assert asked.models.retrieve("gpt").id == "gpt"


def test_refusals_are_the_packages_errors(client):
    asked, _ = client
    with pytest.raises(openai.NotFoundError, match="there is no model 'none'"):
        asked.completions.create(model="none", prompt="x")
    with pytest.raises(openai.BadRequestError, match="temperature"):
        asked.completions.create(model="gpt", prompt="x", temperature=9)
