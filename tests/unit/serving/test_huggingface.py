"""Folders of Hugging Face behind the server."""

import pytest

from pyflame_rt.generate import Generator, SamplingParams
from pyflame_rt.generate.in_place import InPlaceDecoder
from pyflame_rt.serving import ModelConfig
from pyflame_rt.serving.folders import find_models
from tests.unit.serving.scene import ask, saved, serving
from tests.unit.serving.test_openai import write_tokenizer

saved_models = pytest.importorskip("tests.unit.importers.huggingface.saved_models", reason="needs transformers")
BODY = {"model": "llama", "prompt": "hello", "max_tokens": 8, "temperature": 0}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder of models with llama among them."""
    root = tmp_path_factory.mktemp("models")
    (root / "llama").mkdir()
    saved_models.save("llama", root / "llama")
    write_tokenizer(root / "llama")
    saved(root / "llama" / "onnx" / "model.onnx")  # exports of the same model, as hubs have them
    saved(root / "scale" / "1" / "model.onnx")
    return root


def test_a_folder_is_a_model(folder):
    assert [(config.name, config.version) for config in find_models(folder)] == [("llama", "1"), ("scale", "1")]


def test_text_is_generated_in_place(folder):
    """As the generator alone does; tensors of the model are answered in its usual form."""
    want = Generator.from_pretrained(folder / "llama").generate(["hello"], SamplingParams(max_new_tokens=8))[0]
    with serving({}, model_dir=str(folder)) as server:
        status, _, found = ask(server, "POST", "/v1/completions", BODY)
        assert status == 200, found
        assert found["choices"][0]["text"] == want.text
        facts = ask(server, "GET", "/v1/models/llama")[2]
        assert facts["generates_text"]
        assert "attention_mask" in {tensor["name"] for tensor in facts["inputs"]}
        text = server.registry().get_latest("llama").text
        assert isinstance(text._generator.decoder, InPlaceDecoder)


def test_a_folder_that_generates_nothing_still_answers(tmp_path):
    saved_models.save("bert", tmp_path)
    write_tokenizer(tmp_path)
    with serving({}) as server:
        server.registry().register_model(ModelConfig(name="bert", model_path=str(tmp_path), warmup_requests=0))
        status, _, found = ask(server, "POST", "/v1/completions", {**BODY, "model": "bert"})
        assert status == 400
        assert "no model of text" in found["error"]["message"]
        assert ask(server, "POST", "/v1/embeddings", {"model": "bert", "input": "hello"})[0] == 200
