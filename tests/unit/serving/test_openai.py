"""OpenAI's form of completions, chats and embeddings, judged by the generator itself."""

import base64
import json
import string
import threading

import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

import pyflame_rt
from pyflame_rt.generate import Generator, SamplingParams
from pyflame_rt.graph import DType
from pyflame_rt.serving import ModelConfig
from tests.unit.generate.small_gpt import WORDS, decoder
from tests.unit.serving.scene import ask, scaled, serving

LETTERS = (string.ascii_lowercase + " :.\n!")[:WORDS]


def write_tokenizer(folder):
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = Tokenizer(models.WordLevel({letter: i for i, letter in enumerate(LETTERS)}, unk_token="!"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.save(str(folder / "tokenizer.json"))
    return tokenizer


def embedder():
    """Vectors of tokens: rows of a table."""
    graph = pyflame_rt.Graph("embedder")
    table = np.random.default_rng(1).standard_normal((WORDS, 4)).astype(np.float32)
    graph.add_input("input_ids", ["N", "L"], DType.Int64)
    graph.add_input("attention_mask", ["N", "L"], DType.Int64)
    graph.add_initializer("table", table)
    graph.add_node("gather", "Gather", ["table", "input_ids"], ["rows"])
    graph.add_node("mask", "Cast", ["attention_mask"], ["kept"], attrs={"to": 1})
    graph.add_initializer("last", np.array([2]))
    graph.add_node("unsqueeze", "Unsqueeze", ["kept", "last"], ["wide"])
    graph.add_node("mul", "Mul", ["rows", "wide"], ["hidden"])
    graph.add_output("hidden", ["N", "L", 4])
    return graph, table


@pytest.fixture(scope="module")
def scene(tmp_path_factory):
    folder = tmp_path_factory.mktemp("text")
    tokenizer = write_tokenizer(folder)
    with serving({"plain": scaled()}) as server:
        for name, graph in (("gpt", decoder()), ("embedder", embedder()[0])):
            server.load_model(name, graph, config=ModelConfig(tokenizer=str(folder), warmup_requests=0))
        yield server, tokenizer


def expected(tokenizer, prompt, **settings):
    generator = Generator(pyflame_rt.InferenceSession(decoder()), tokenizer)
    return generator.generate([prompt], SamplingParams(**settings))[0]


def events(text):
    found = [line[6:] for line in text.decode().split("\n\n") if line]
    assert found[-1] == "[DONE]"
    return [json.loads(line) for line in found[:-1]]


def test_a_completion(scene):
    server, tokenizer = scene
    want = expected(tokenizer, "hello", max_new_tokens=9)
    body = {"model": "gpt", "prompt": "hello", "max_tokens": 9, "temperature": 0}
    status, _, found = ask(server, "POST", "/v1/completions", body)
    assert status == 200, found
    (choice,) = found["choices"]
    assert (choice["text"], choice["finish_reason"]) == (want.text, "length")
    assert found["usage"] == {"prompt_tokens": 5, "completion_tokens": 9, "total_tokens": 14}
    assert found["object"] == "text_completion"
    _, _, echoed = ask(server, "POST", "/v1/completions", {**body, "echo": True, "n": 2})
    assert [c["text"] for c in echoed["choices"]] == ["hello" + want.text] * 2
    tokens = tokenizer.encode("hello").ids
    _, _, by_tokens = ask(server, "POST", "/v1/completions", {**body, "prompt": tokens})
    assert by_tokens["choices"][0]["text"] == want.text
    _, _, several = ask(server, "POST", "/v1/completions", {**body, "prompt": ["hello", "abc"]})
    assert [c["text"] for c in several["choices"]] == [want.text, expected(tokenizer, "abc", max_new_tokens=9).text]


def test_events_add_up_to_the_whole(scene):
    server, tokenizer = scene
    want = expected(tokenizer, "hello", max_new_tokens=12)
    body = {"model": "gpt", "prompt": "hello", "max_tokens": 12, "temperature": 0, "stream": True}
    status, answer, text = ask(server, "POST", "/v1/completions", {**body, "stream_options": {"include_usage": True}})
    assert (status, answer.getheader("content-type")) == (200, "text/event-stream; charset=utf-8")
    found = events(text)
    assert "".join(c["text"] for event in found for c in event["choices"]) == want.text
    assert [c["finish_reason"] for event in found for c in event["choices"]][-1] == "length"
    assert found[-1]["usage"]["completion_tokens"] == 12
    assert len(found) > 5


def test_a_text_to_stop_at_is_never_shown(scene):
    server, tokenizer = scene
    whole = expected(tokenizer, "hello", max_new_tokens=16).text
    stop = whole[6:9]
    want = whole[: whole.index(stop)]
    body = {"model": "gpt", "prompt": "hello", "max_tokens": 16, "temperature": 0, "stop": stop}
    _, _, found = ask(server, "POST", "/v1/completions", body)
    assert (found["choices"][0]["text"], found["choices"][0]["finish_reason"]) == (want, "stop")
    shown = events(ask(server, "POST", "/v1/completions", {**body, "stream": True})[2])
    assert "".join(c["text"] for event in shown for c in event["choices"]) == want


def test_a_chat(scene):
    server, tokenizer = scene
    messages = [{"role": "system", "content": "be"}, {"role": "user", "content": [{"type": "text", "text": "hello"}]}]
    want = expected(tokenizer, "system: be\nuser: hello\nassistant: ", max_new_tokens=6).text
    body = {"model": "gpt", "messages": messages, "max_completion_tokens": 6, "temperature": 0}
    status, _, found = ask(server, "POST", "/v1/chat/completions", body)
    assert status == 200, found
    assert found["choices"][0]["message"] == {"role": "assistant", "content": want}
    shown = events(ask(server, "POST", "/v1/chat/completions", {**body, "stream": True})[2])
    deltas = [c["delta"] for event in shown for c in event["choices"]]
    assert deltas[0]["role"] == "assistant"
    assert "".join(delta.get("content", "") for delta in deltas) == want


def test_templates_and_ends_beside_the_tokenizer(tmp_path):
    tokenizer = write_tokenizer(tmp_path)
    template = "{% for m in messages %}{{ m.content }}{% endfor %}{{ eos_token }}"
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": template, "eos_token": "."}))
    first = expected(tokenizer, "hello.", max_new_tokens=8)
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [first.tokens[3]]}))
    want = expected(tokenizer, "hello.", max_new_tokens=8, eos_token_id=first.tokens[3])
    pyflame_rt.export_onnx(decoder(), str(tmp_path / "model.onnx"))
    with serving({}) as server:
        server.registry().load_from_path("gpt", tmp_path / "model.onnx")  # the tokenizer is beside it
        body = {"model": "gpt", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 8, "temperature": 0}
        _, _, found = ask(server, "POST", "/v1/chat/completions", body)
        assert found["choices"][0]["message"]["content"] == want.text
        assert found["choices"][0]["finish_reason"] == "stop"


def test_seeds_repeat(scene):
    server, _ = scene
    body = {"model": "gpt", "prompt": "hello", "max_tokens": 12, "temperature": 1.5, "seed": 4}
    first, second = (ask(server, "POST", "/v1/completions", body)[2]["choices"][0]["text"] for _ in range(2))
    assert first == second
    texts = {ask(server, "POST", "/v1/completions", {**body, "seed": s})[2]["choices"][0]["text"] for s in range(9)}
    assert len(texts) > 1


def test_many_at_a_time(scene):
    server, tokenizer = scene
    prompts = [LETTERS[i : i + 5] for i in range(12)]
    want = [expected(tokenizer, prompt, max_new_tokens=10).text for prompt in prompts]
    found = [""] * len(prompts)

    def work(i):
        body = {"model": "gpt", "prompt": prompts[i], "max_tokens": 10, "temperature": 0, "stream": i % 2 == 1}
        answer = ask(server, "POST", "/v1/completions", body)[2]
        shown = events(answer) if i % 2 else [answer]
        found[i] = "".join(c["text"] for event in shown for c in event["choices"])

    threads = [threading.Thread(target=work, args=(i,)) for i in range(len(prompts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert found == want


@pytest.mark.parametrize("form", ["float", "base64"])
def test_embeddings(scene, form):
    server, tokenizer = scene
    _, table = embedder()
    body = {"model": "embedder", "input": ["hello", "abc"], "encoding_format": form}
    status, _, found = ask(server, "POST", "/v1/embeddings", body)
    assert status == 200, found
    for text, item in zip(body["input"], found["data"], strict=True):
        mean = table[tokenizer.encode(text).ids].astype(np.float64).mean(axis=0)
        got = item["embedding"]
        vector = np.frombuffer(base64.b64decode(got), np.float32) if form == "base64" else got
        np.testing.assert_allclose(vector, mean / np.linalg.norm(mean), rtol=1e-5)
    assert found["usage"]["total_tokens"] == 8


@pytest.mark.parametrize(
    ("path", "body", "status", "message"),
    [
        ("completions", {"model": "none", "prompt": "a"}, 404, "there is no model"),
        ("completions", {"model": "plain", "prompt": "a"}, 400, "no model of text"),
        ("completions", {"model": "embedder", "prompt": "a"}, 400, "no model of text"),
        ("completions", {"model": "gpt"}, 400, "prompt"),
        ("completions", {"model": "gpt", "prompt": ""}, 400, "from 1 to"),
        ("completions", {"model": "gpt", "prompt": [WORDS]}, 400, "not one of"),
        ("completions", {"model": "gpt", "prompt": "a", "max_tokens": 0}, 400, "max_tokens"),
        ("completions", {"model": "gpt", "prompt": "a", "temperature": 9}, 400, "temperature"),
        ("completions", {"model": "gpt", "prompt": "a", "tools": []}, 400, "tools"),
        ("completions", {"model": "gpt", "prompt": "a", "logit_bias": {"x": 1}}, 400, "logit_bias"),
        ("completions", {"model": "gpt", "prompt": "a", "logit_bias": {str(WORDS): 1}}, 400, "logit_bias"),
        ("completions", {"model": "gpt", "prompt": "a", "logit_bias": {"-1": 1}}, 400, "logit_bias"),
        ("chat/completions", {"model": "gpt", "messages": []}, 400, "messages"),
        ("chat/completions", {"model": "gpt", "messages": [{"role": "king", "content": "a"}]}, 400, "role"),
        ("embeddings", {"model": "plain", "input": "a"}, 400, "no model of text"),
        ("embeddings", {"model": "embedder", "input": []}, 400, "input"),
        ("embeddings", [], 400, "body"),
    ],
)
def test_bad_requests_are_told_why(scene, path, body, status, message):
    got, _, found = ask(scene[0], "POST", f"/v1/{path}", body)
    assert got == status
    assert message in found["error"]["message"]
    assert found["error_message"] == found["error"]["message"]


def test_a_text_ends_where_the_model_reads_no_further(scene):
    """This model has 200 places: an answer ends there, and a longer prompt is an error of the client."""
    server, _ = scene
    body = {"model": "gpt", "prompt": "hello", "max_tokens": 500, "temperature": 0}
    status, _, found = ask(server, "POST", "/v1/completions", body)
    assert (status, found["choices"][0]["finish_reason"]) == (200, "length")
    assert found["usage"]["total_tokens"] == 201
    text = ask(server, "POST", "/v1/completions", {**body, "stream": True})[2]
    assert b'"finish_reason":"length"' in text.replace(b" ", b"")
    long = {**body, "prompt": "hello " * 300}
    status, _, found = ask(server, "POST", "/v1/completions", long)
    assert (status, "longer than" in found["error"]["message"]) == (400, True)
    assert b'"error"' in ask(server, "POST", "/v1/completions", {**long, "stream": True})[2]
    assert ask(server, "POST", "/v1/completions", {**body, "max_tokens": 4})[0] == 200


def test_a_tokenizer_that_is_none(tmp_path):
    (tmp_path / "tokenizer.json").write_text("{}")
    with serving({}) as server:
        for given in (tmp_path, tmp_path / "none.json"):
            with pytest.raises(pyflame_rt.InvalidModelError, match="tokenizer"):
                server.load_model("gpt", decoder(), config=ModelConfig(tokenizer=str(given)))


def counts(server, model="gpt"):
    found = ask(server, "GET", f"/v1/models/{model}/stats")[2]
    text = ask(server, "GET", "/metrics")[2].decode()
    label = f'pyflame_request_total{{model="{model}",status="success"}} '
    metric = next((float(line.removeprefix(label)) for line in text.splitlines() if line.startswith(label)), 0.0)
    return np.array([found["completed_requests"], found["total_rows"], metric])


def test_texts_are_counted(scene):
    """As other requests are, and as long as they take: so the page shows them."""
    server, _ = scene
    body = {"model": "gpt", "prompt": "abc", "max_tokens": 3}
    before = counts(server)
    assert ask(server, "POST", "/v1/completions", {**body, "n": 2})[0] == 200
    events(ask(server, "POST", "/v1/completions", {**body, "stream": True})[2])
    np.testing.assert_array_equal(counts(server) - before, [2, 3, 2])
    assert ask(server, "GET", "/v1/models/gpt/stats")[2]["p50_latency_us"] > 0
