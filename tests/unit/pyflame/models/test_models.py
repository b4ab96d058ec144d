"""Models: sizes as published, a step that learns, and the same answers after export."""

import numpy as np
import pytest

import pyflame as pf
from pyflame import models, nn
from pyflame.nn import functional as F

IDS = pf.from_numpy(np.random.default_rng(0).integers(0, 20, (2, 6)))
IMAGE = pf.from_numpy(np.random.default_rng(0).normal(size=(2, 3, 32, 32)).astype(np.float32))
SMALL = {
    "resnet": (lambda: models.ResNet(models.ResNetConfig((1, 1, 1, 1), num_classes=5, small_images=True)), IMAGE),
    "bottleneck": (lambda: models.ResNet(models.ResNetConfig((1, 1, 1, 1), bottleneck=True, num_classes=5)), IMAGE),
    "mobilenet": (lambda: models.MobileNetV2(num_classes=5, width_mult=0.25), IMAGE),
    "vit": (lambda: models.vit_tiny(image_size=32, patch_size=8, num_layers=1, num_classes=5), IMAGE),
    "unet": (lambda: models.UNet(3, 5, width=4, depth=2), IMAGE),
    "gpt2": (lambda: models.GPT2(models.GPT2Config(20, 8, 16, 1, 2)), IDS),
    "llama": (lambda: models.Llama(models.LlamaConfig(20, 16, 32, 1, 4, 2, 16)), IDS),
    "lstm": (lambda: models.LSTMLanguageModel(20, 8, 8, 1), IDS),
    "bert": (lambda: models.BertForSequenceClassification(models.BertConfig(20, 16, 1, 2, 32, 16)), IDS),
}


def made(name):
    pf.manual_seed(0)
    build, example = SMALL[name]
    return build(), example


@pytest.mark.parametrize("name", SMALL)
def test_a_few_steps_learn(name):
    model, example = made(name)
    model.eval()  # no dropout; batch statistics stay put
    with pf.no_grad():
        shape = model(example).shape
    axis = 1 if name in ("unet",) else -1
    classes = shape[axis]
    target = pf.from_numpy(
        np.random.default_rng(1).integers(0, classes, [d for i, d in enumerate(shape) if i != axis % len(shape)])
    )
    optimizer = pf.optim.Adam(model.parameters(), lr=3e-3)
    losses = []
    for _ in range(4):
        scores = model(example)
        scores = scores if axis == 1 else scores.reshape([-1, classes])
        loss = F.cross_entropy(scores, target if axis == 1 else target.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    assert all(p.grad is not None or name == "bert" for p in model.parameters())


@pytest.mark.parametrize("name", SMALL)
def test_exported_models_answer_alike(name, tmp_path):
    ort = pytest.importorskip("onnxruntime")
    model, example = made(name)
    model.eval()
    want = model(example).numpy()
    pf.export(model, example, tmp_path / "model.onnx")
    session = ort.InferenceSession(tmp_path / "model.onnx", providers=["CPUExecutionProvider"])
    (got,) = session.run(None, {session.get_inputs()[0].name: example.numpy()})
    np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    ("build", "count"),
    [
        (models.resnet50, 25557032),
        (models.resnext50_32x4d, 25028904),
        (models.wide_resnet50_2, 68883240),
        (models.vit_base, 86567656),
    ],
)
def test_published_sizes(build, count):
    assert sum(int(p.numel) for p in build().parameters()) == count


def test_decoders_do_not_look_ahead():
    for name in ("gpt2", "llama", "lstm"):
        model, example = made(name)
        model.eval()
        changed = example.numpy()
        changed[:, -1] = (changed[:, -1] + 1) % 20
        before, after = model(example).numpy(), model(pf.from_numpy(changed)).numpy()
        np.testing.assert_allclose(before[:, :-1], after[:, :-1], rtol=1e-4, atol=1e-5)
        assert not np.allclose(before[:, -1], after[:, -1])


def test_generation():
    model, example = made("gpt2")
    best = model.generate(example, 5)
    assert best.shape == (2, 11)
    np.testing.assert_array_equal(best, model.generate(example, 5))
    drawn = model.generate(example, 5, temperature=1.0, top_k=3, generator=0)
    assert drawn.shape == (2, 11)
    ended = model.generate(example, 5, eos_token_id=int(best[0, 6]))
    assert (ended[0, 6:] == best[0, 6]).all()
    with pytest.raises(ValueError, match="At most"):
        model(pf.zeros([1, 9], dtype=pf.int64))


SIZES = {"vocab_size": 30, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2}
DECODERS = {
    "gpt2": lambda: models.GPT2(models.GPT2Config(vocab_size=30, n_positions=40, n_embd=16, n_layer=2, n_head=4)),
    "llama": lambda: models.Llama(models.LlamaConfig(num_attention_heads=4, num_key_value_heads=2, **SIZES)),
    "llama tied": lambda: models.Llama(models.LlamaConfig(num_attention_heads=2, tie_word_embeddings=True, **SIZES)),
}


@pytest.mark.parametrize("name", DECODERS)
def test_keys_and_values_that_are_kept_change_no_token(name):
    pf.manual_seed(3)
    model = DECODERS[name]()
    for parameter in model.parameters():
        nn.init.normal_(parameter, 0.3 if len(parameter.shape) == 1 else 0.0, 0.4)
    ids = np.random.default_rng(0).integers(0, 30, (3, 7))
    kept = model.generate(ids, 12)
    whole, model.family = model.family, ""  # all tokens are run again for each one
    np.testing.assert_array_equal(kept, model.generate(ids, 12))
    end = int(kept[1, 10])
    again = model.generate(ids, 12, eos_token_id=end)
    model.family = whole
    np.testing.assert_array_equal(model.generate(ids, 12, eos_token_id=end), again)
    drawn = [model.generate(ids[:1].repeat(8, 0), 4, temperature=2.0, generator=seed) for seed in (1, 1, 2)]
    np.testing.assert_array_equal(drawn[0], drawn[1])
    assert (drawn[0] != drawn[2]).any()
    assert len(np.unique(drawn[0], axis=0)) > 1
    assert model.training


def test_rotary_positions_keep_lengths():
    cos, sin = models.llama.rotary_tables(5, 8, 10000.0)
    x = pf.randn([1, 1, 5, 8])
    y = models.llama.rotated(x, pf.from_numpy(cos), pf.from_numpy(sin))
    np.testing.assert_allclose(np.linalg.norm(x.numpy(), axis=-1), np.linalg.norm(y.numpy(), axis=-1), rtol=1e-5)
