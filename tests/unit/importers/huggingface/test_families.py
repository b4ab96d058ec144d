"""Folders of every family: what transformers answers, within 1e-4."""

import numpy as np
import onnxruntime
import pytest

import pyflame_rt
from pyflame_rt.generate import Generator, SamplingParams
from tests.unit.importers.huggingface import saved_models

CAUSAL = ["gpt2", "llama", "llama 3", "llama yarn", "qwen2", "qwen2 window", "mistral", "gemma", "phi"]


def compared(name, session, model, feed):
    """Differences of every output that transformers has too, where tokens are no padding."""
    wanted, found = saved_models.answers(model, feed), session.run(None, feed)
    worst = 0.0
    for info, mine in zip(session.get_outputs(), found, strict=True):
        if info.name.startswith("present"):
            continue
        theirs = wanted[info.name].numpy()
        assert mine.shape == theirs.shape, info.name
        difference = np.abs(mine - theirs)
        mask = feed.get("attention_mask")
        if mask is not None and mine.shape[:2] == mask.shape and not info.name.startswith("decoder"):
            difference = (
                difference[mask > 0] if "decoder_input_ids" not in feed or "encoder" in info.name else difference
            )
        worst = max(worst, float(difference.max()) / max(1.0, float(np.abs(theirs).max())))
        assert np.abs(theirs).max() > 1e-2, f"{name}: {info.name} says nothing"
    return worst


@pytest.mark.parametrize("name", saved_models.MODELS)
def test_answers_are_those_of_transformers(name, tmp_path):
    model = saved_models.save(name, tmp_path)
    session = pyflame_rt.InferenceSession(tmp_path)
    feed = saved_models.feed_for(session, np.random.default_rng(1))
    if name.startswith("clip"):
        feed["input_ids"][:, 7] = 98
    if name.startswith("roberta"):
        feed["input_ids"][1, -3:] = 1
    assert compared(name, session, model, feed) < 1e-4


@pytest.mark.parametrize("name", CAUSAL)
def test_a_past_read_in_pieces_gives_the_same_scores(name, tmp_path):
    saved_models.save(name, tmp_path)
    session = pyflame_rt.InferenceSession(tmp_path)
    feed = saved_models.feed_for(session, np.random.default_rng(2))
    whole = session.run(["logits"], feed)[0]
    names = [info.name for info in session.get_outputs()]
    first = {k: v[:, :7] if v.ndim == 2 else v for k, v in feed.items()}
    given = dict(zip(names, session.run(None, first), strict=True))
    rest = {k: v[:, 7:] if v.ndim == 2 else v for k, v in feed.items()} | {"attention_mask": feed["attention_mask"]}
    rest |= {n.replace("present", "past_key_values"): v for n, v in given.items() if n.startswith("present")}
    last = session.run(["logits"], rest)[0]
    seen = feed["attention_mask"][:, 7:] > 0
    np.testing.assert_allclose(last[seen], whole[:, 7:][seen], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("in_place", [True, False])
@pytest.mark.parametrize("name", CAUSAL)
def test_greedy_tokens_are_those_of_transformers(name, in_place, tmp_path):
    model = saved_models.save(name, tmp_path)
    if in_place:
        generator = Generator.from_pretrained(tmp_path, page=16)
    else:
        generator = Generator(pyflame_rt.InferenceSession(tmp_path), page=16)
    prompts = [(5, 17, 3), (40, 41, 42, 43, 44, 45, 46, 47), (9,)]
    made = generator.generate(prompts, SamplingParams(max_new_tokens=24))
    for prompt, completion in zip(prompts, made, strict=True):
        assert list(completion.tokens) == saved_models.greedy(model, prompt, 24)


@pytest.mark.parametrize("name", ["bert", "gpt2", "qwen2 window", "t5", "clip", "whisper", "resnet"])
def test_folders_become_onnx_files_that_onnxruntime_runs(name, tmp_path):
    saved_models.save(name, tmp_path)
    session = pyflame_rt.InferenceSession(tmp_path)
    feed = saved_models.feed_for(session, np.random.default_rng(3))
    pyflame_rt.export_onnx(session.graph(), tmp_path / "model.onnx")
    other = onnxruntime.InferenceSession(str(tmp_path / "model.onnx"), providers=["CPUExecutionProvider"])
    for mine, theirs in zip(session.run(None, feed), other.run(None, feed), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-4)
