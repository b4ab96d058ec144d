"""Folders that are damaged, hostile or not supported are refused by name; what is read needs no transformers."""

import json
import subprocess
import sys

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from typer.testing import CliRunner

import pyflame_rt
from pyflame_rt.cli import app
from pyflame_rt.generate import Generator, SamplingParams
from pyflame_rt.graph.errors import InputError, InvalidModelError, ModelNotFoundError, UnsupportedFormatError
from tests.unit.importers.huggingface import saved_models

PROMPT = (5, 17, 3)


@pytest.fixture
def folder(tmp_path):
    saved_models.save("llama", tmp_path)
    return tmp_path


def change(folder, **values):
    """Other settings in config.json; None drops one."""
    config = json.loads((folder / "config.json").read_text()) | values
    (folder / "config.json").write_text(json.dumps({k: v for k, v in config.items() if v is not None}))


def tokens(folder):
    return Generator.from_pretrained(folder).generate([PROMPT], SamplingParams(max_new_tokens=8))[0].tokens


def test_nothing_of_transformers_or_torch_is_needed(folder):
    program = f"""
import sys
sys.modules["transformers"] = sys.modules["torch"] = None
from pyflame_rt.generate import Generator, SamplingParams
made = Generator.from_pretrained({str(folder)!r}).generate([{PROMPT}], SamplingParams(max_new_tokens=8))
print(made[0].tokens)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str(tokens(folder))


def test_weights_in_several_files(folder):
    before = tokens(folder)
    arrays = load_file(folder / "model.safetensors")
    names = sorted(arrays)
    parts = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
    for file, listed in parts.items():
        save_file({name: arrays[name] for name in listed}, folder / file)
    (folder / "model.safetensors").unlink()
    weight_map = {name: file for file, listed in parts.items() for name in listed}
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": weight_map}))
    assert tokens(folder) == before
    for hostile in ("../a.safetensors", str(folder / "a.safetensors"), ".."):
        index.write_text(json.dumps({"weight_map": {names[0]: hostile}}))
        with pytest.raises(InvalidModelError, match="not the name of a file beside it"):
            pyflame_rt.InferenceSession(folder)
    index.write_text(json.dumps({"weight_map": {names[0]: "lost.safetensors"}}))
    with pytest.raises(ModelNotFoundError, match=r"lost\.safetensors"):
        pyflame_rt.InferenceSession(folder)


def test_tables_are_apart_where_settings_of_old_do_not_say(folder):
    before = tokens(folder)
    change(folder, tie_word_embeddings=None)
    assert tokens(folder) == before


def test_half_precision_is_read_as_float32(folder):
    arrays = {name: array.astype(np.float16) for name, array in load_file(folder / "model.safetensors").items()}
    save_file(arrays, folder / "model.safetensors")
    session = pyflame_rt.InferenceSession(folder)
    assert {t.dtype.label for t in session.graph().initializers.values()} <= {"float32", "int64", "bool"}
    assert len(tokens(folder)) == 8


@pytest.mark.parametrize(
    ("values", "kind", "told"),
    [
        ({"architectures": ["MambaForCausalLM"]}, UnsupportedFormatError, "MambaForCausalLM"),
        ({"architectures": None}, UnsupportedFormatError, "architecture None"),
        ({"quantization_config": {"quant_method": "gptq"}}, UnsupportedFormatError, "quantization_config"),
        ({"rope_parameters": {"rope_type": "longrope", "factor": 2.0}}, UnsupportedFormatError, "longrope"),
        ({"rope_parameters": {"rope_type": "yarn", "factor": -2.0}}, InvalidModelError, "factor -2"),
        ({"rope_parameters": {"rope_type": "dynamic", "factor": 0.5}}, InvalidModelError, "factor 0.5"),
        ({"rope_parameters": {"partial_rotary_factor": 0.5}}, UnsupportedFormatError, "partial_rotary_factor"),
        ({"hidden_act": "mish"}, UnsupportedFormatError, "mish"),
        ({"num_hidden_layers": 3}, InvalidModelError, r"model\.layers\.2\."),
        ({"num_hidden_layers": 1}, UnsupportedFormatError, r"no place in LlamaForCausalLM: model\.layers\.1"),
        ({"num_hidden_layers": 10**9}, InvalidModelError, "num_hidden_layers"),
        ({"num_attention_heads": 8}, InvalidModelError, "heads of 8"),
        ({"num_attention_heads": "4"}, InvalidModelError, "num_attention_heads is '4'"),
        ({"num_attention_heads": None}, InvalidModelError, "nothing of num_attention_heads"),
        ({"num_key_value_heads": 3}, InvalidModelError, "4 heads, 3 for keys"),
        ({"rms_norm_eps": "small"}, InvalidModelError, "rms_norm_eps"),
    ],
)
def test_settings_that_do_not_fit_are_named(folder, values, kind, told):
    change(folder, **values)
    with pytest.raises(kind, match=told):
        pyflame_rt.InferenceSession(folder)


def test_what_is_damaged_or_missing_is_named(folder, tmp_path_factory):
    empty = tmp_path_factory.mktemp("empty")
    with pytest.raises(InvalidModelError, match=r"without a config\.json"):
        pyflame_rt.InferenceSession(empty)
    with pytest.raises(ModelNotFoundError, match="there is no folder"):
        Generator.from_pretrained(empty / "lost")
    (empty / "config.json").write_text((folder / "config.json").read_text())
    with pytest.raises(ModelNotFoundError, match="no weights"):
        pyflame_rt.InferenceSession(empty)
    data = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(data[: len(data) // 2])
    with pytest.raises(InvalidModelError):
        pyflame_rt.InferenceSession(folder)
    for text in ("{", "[1]", "{" * 100_000):
        (folder / "config.json").write_text(text)
        with pytest.raises(InvalidModelError, match=r"config\.json"):
            pyflame_rt.InferenceSession(folder)


def test_an_extra_weight_is_refused(folder):
    arrays = load_file(folder / "model.safetensors")
    save_file(
        {**arrays, "model.layers.0.self_attn.q_norm.weight": np.ones(8, np.float32)}, folder / "model.safetensors"
    )
    with pytest.raises(
        UnsupportedFormatError, match=r"no place in LlamaForCausalLM: model\.layers\.0\.self_attn\.q_norm"
    ):
        pyflame_rt.InferenceSession(folder)


def test_an_encoder_does_not_generate(tmp_path):
    saved_models.save("bert", tmp_path)
    with pytest.raises(UnsupportedFormatError, match="'BertModel'"):
        Generator.from_pretrained(tmp_path)
    with pytest.raises(InputError, match="cannot generate"):
        Generator(pyflame_rt.InferenceSession(tmp_path))


def test_far_places_of_t5(tmp_path):
    model = saved_models.save("t5", tmp_path)
    session = pyflame_rt.InferenceSession(tmp_path)
    feed = saved_models.feed_for(session, np.random.default_rng(5), length=150)
    wanted = saved_models.answers(model, feed).logits.numpy()
    np.testing.assert_allclose(session.run(["logits"], feed)[0], wanted, rtol=1e-3, atol=1e-4)


def test_the_command_line_converts_and_continues(folder):
    run = CliRunner().invoke
    target = folder / "llama.onnx"
    done = run(app, ["convert", str(folder), str(target), "--json"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.output)["source_bytes"] > 10_000
    ids = ",".join(map(str, PROMPT))
    for source in (folder, target):
        done = run(app, ["generate", str(source), "--tokens", ids, "-n", "8", "--json"])
        assert done.exit_code == 0, done.output
        assert tuple(json.loads(done.output)["tokens"]) == tokens(folder)
