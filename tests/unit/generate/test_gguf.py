"""Text from GGUF files: weights that stay in blocks, and tokenizers from headers."""

import itertools
import json

import numpy as np
import pytest

import pyflame as pf
import pyflame_rt
from pyflame_rt import InvalidModelError, UnsupportedFormatError
from pyflame_rt.cli.entry import main
from pyflame_rt.generate import Generator, SamplingParams
from pyflame_rt.generate.models import open_model
from pyflame_rt.generate.stored_tokens import stored_tokenizer
from pyflame_rt.importers.gguf.file import GGUFFile, read_gguf
from pyflame_rt.importers.registry import import_model
from tests.unit.importers.gguf_files import gguf, gpt2_file, llama_file

tokenizers = pytest.importorskip("tokenizers")
RopeScalingType = gguf.constants.RopeScalingType
GREEDY = SamplingParams(max_new_tokens=8)


def scores(session, tokens):
    """Of what follows the last token, by a decoder that takes past keys and values."""
    ids = np.array([tokens])
    feed = {"input_ids": ids, "attention_mask": np.ones_like(ids), "position_ids": np.arange(len(tokens))[None]}
    for info in session.graph().required_inputs:
        if info.name not in feed:
            shape = info.type.shape
            feed[info.name] = np.zeros((1, shape[1], 0, shape[3]), np.float32)
    return session.run(["logits"], feed)[0][0, -1]


@pytest.mark.parametrize("kind", ["F32", "F16", "Q8_0", "Q4_0", "Q4_K", "Q6_K"])
@pytest.mark.parametrize("make", [llama_file, gpt2_file])
def test_scores_are_near_those_of_float_weights(make, kind, tmp_path):
    path = tmp_path / "model.gguf"
    model, kept = make(path, kind)
    model.load_state_dict(kept)
    want = model.eval()(pf.from_numpy(np.array([[5, 9, 2, 30]]))).numpy()[0, -1]
    graph = import_model(path).unwrap()
    got = scores(pyflame_rt.InferenceSession(graph), [5, 9, 2, 30])
    bound = 1e-4 if kind in ("F32", "F16") else 0.05  # rows are rounded to 8 bits
    np.testing.assert_allclose(got, want, atol=bound * np.abs(want).max())


@pytest.mark.parametrize("kind", ["Q4_0", "Q6_K"])
def test_tokens_in_place_are_those_of_a_copied_past(kind, tmp_path):
    llama_file(tmp_path / "model.gguf", kind, tied=True)
    (made,) = Generator.from_pretrained(tmp_path / "model.gguf").generate([[5, 9, 2]], GREEDY)
    session, tokens = pyflame_rt.InferenceSession(str(tmp_path / "model.gguf")), [5, 9, 2]
    for _ in range(8):
        tokens.append(int(scores(session, tokens).argmax()))
    assert list(made.tokens) == tokens[3:]


def test_blocks_stay_as_they_are_in_the_file(tmp_path):
    path = tmp_path / "model.gguf"
    llama_file(path, "Q4_0")
    session, _ = open_model(path)

    bytes_ = sum(tensor.size_bytes for tensor in session.graph().initializers.values())
    assert bytes_ < path.stat().st_size + 4096


LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64}
YARN = {"factor": 4.0, "original_max_position_embeddings": 16}


def divisors():
    """What llama.cpp's converter writes for Llama 3.1: plain speeds over those of transformers."""
    functions = pytest.importorskip("transformers.modeling_rope_utils").ROPE_INIT_FUNCTIONS
    stretched, _ = functions["llama3"](transformers_config({"rope_type": "llama3", **LLAMA3}), "cpu")
    return (1 / 5000.0 ** (np.arange(0, 64, 2) / 64) / stretched.double().numpy()).astype(np.float32)


def transformers_config(scaling):
    transformers = pytest.importorskip("transformers")
    return transformers.LlamaConfig(
        vocab_size=32, hidden_size=256, intermediate_size=256, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=64, rms_norm_eps=1e-6, tie_word_embeddings=False,
        rope_parameters={"rope_theta": 5000.0, **scaling},
    )  # fmt: skip


@pytest.mark.parametrize(
    ("scaling", "fields"),
    [
        ({"rope_type": "default"}, {}),
        ({"rope_type": "llama3", **LLAMA3}, {"tensors": divisors}),
        ({"rope_type": "linear", "factor": 4.0}, {"rope_scaling_type": "linear", "rope_scaling_factor": 4.0}),
        (
            {"rope_type": "yarn", **YARN},
            {"rope_scaling_type": "yarn", "rope_scaling_factor": 4.0, "rope_scaling_orig_ctx_len": 16},
        ),
    ],
    ids=["plain", "llama3", "linear", "yarn"],
)
def test_stretched_positions_are_those_of_transformers(scaling, fields, tmp_path):
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    given = dict(fields)
    if "tensors" in given:
        given["tensors"] = {"rope_freqs.weight": divisors()}
    if "rope_scaling_type" in given:
        given["rope_scaling_type"] = RopeScalingType(given["rope_scaling_type"])
    path = tmp_path / "model.gguf"
    _, kept = llama_file(path, "F32", **given | {"context_length": 64})
    model = transformers.LlamaForCausalLM(transformers_config(scaling)).eval()
    named = {n if n.startswith("lm_head") else f"model.{n}": torch.from_numpy(a) for n, a in kept.items()}
    model.load_state_dict(named)
    tokens = np.random.default_rng(0).integers(0, 32, 50)
    with torch.no_grad():
        want = model(torch.from_numpy(tokens)[None]).logits[0, -1].numpy()
    got = scores(pyflame_rt.InferenceSession(import_model(path).unwrap()), tokens.tolist())
    np.testing.assert_allclose(got, want, atol=1e-4 * np.abs(want).max())


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"tensors": {"rope_freqs.weight": np.ones(7, np.float32)}}, "must be 32 numbers above 0"),
        ({"tensors": {"rope_freqs.weight": np.zeros(32, np.float32)}}, "must be 32 numbers above 0"),
        ({"rope_scaling_type": "longrope"}, "not one of linear, none, yarn"),
        ({"rope_scaling_type": "yarn", "rope_scaling_yarn_log_mul": 0.5}, "yarn_log_multiplier is not supported"),
        ({"rope_dimension_count": 32}, "rotary positions for 32 features of 64"),
    ],
)
def test_strange_positions_are_refused(fields, said, tmp_path):
    if "rope_scaling_type" in fields:
        fields = fields | {"rope_scaling_type": RopeScalingType(fields["rope_scaling_type"])}
    llama_file(tmp_path / "model.gguf", "F32", **fields)
    with pytest.raises((InvalidModelError, UnsupportedFormatError), match=said):
        import_model(tmp_path / "model.gguf").unwrap()


def test_rare_formats_are_widened_with_one_warning(tmp_path):
    llama_file(tmp_path / "model.gguf", "Q5_0")
    with pytest.warns(UserWarning, match="16 of Q5_0") as told:
        Generator.from_pretrained(tmp_path / "model.gguf")
    assert len(told) == 1


# ---------------------------------------------------------------------- tokenizers

TEXT = "the cat sat on the mat, then the cat ran off; that mattered 12345 times to the other cats. " * 3


def header(kind, tokens, **more):
    fields = {"tokenizer.ggml.model": kind, "tokenizer.ggml.tokens": tokens}
    return GGUFFile("file", fields | {f"tokenizer.ggml.{name}": value for name, value in more.items()}, {})


@pytest.fixture(scope="module")
def pairs():
    """A tokenizer of merged bytes, and what a header says of it."""
    library = tokenizers.ByteLevelBPETokenizer()
    library.train_from_iterator([TEXT], vocab_size=300, show_progress=False)
    known = json.loads(library.to_str())["model"]
    merges = [m if isinstance(m, str) else " ".join(m) for m in known["merges"]]
    return library, {"tokens": sorted(known["vocab"], key=known["vocab"].get), "merges": merges}


def test_merged_bytes(pairs):
    library, said = pairs
    words = stored_tokenizer(header("gpt2", said["tokens"], merges=said["merges"], pre="gpt-2"))
    for text in ("the cats mattered", "  two spaces, 77 \n ends", "wörld ☃"):
        assert words.encode(text) == library.encode(text).ids
        assert words.decode(words.encode(text)) == text


def test_numbers_are_parted_as_the_file_says(pairs):
    _, said = pairs
    by_three = stored_tokenizer(header("gpt2", said["tokens"], merges=said["merges"], pre="llama-bpe"))
    one = stored_tokenizer(header("gpt2", said["tokens"], merges=said["merges"], pre="qwen2"))
    assert len(one.encode("12345")) == 5 > len(by_three.encode("12345")) or by_three.encode("12") == one.encode("12")
    assert one.decode(one.encode("a 12345")) == by_three.decode(by_three.encode("a 12345")) == "a 12345"
    with pytest.raises(UnsupportedFormatError, match="parted as 'bloom'"):
        stored_tokenizer(header("gpt2", said["tokens"], merges=said["merges"], pre="bloom"))


PIECES = ["<unk>", "<s>", "</s>", *(f"<0x{i:02X}>" for i in range(256)), "▁", "a", "b", "c", "ab", "bc", "▁a", "▁ab"]
SCORES = [0.0] * 259 + [-9.0, -9.0, -9.0, -9.0, -2.0, -1.0, -3.0, -0.5]
TYPES = [2, 3, 3] + [6] * 256 + [1] * 8
MARKS = {"bos_token_id": 1, "eos_token_id": 2, "unknown_token_id": 0}


def by_scores(text):
    """What SentencePiece does: the two neighbours whose piece has the best score become one, the first if equal."""
    parts = list("▁" + text.replace(" ", "▁"))
    while True:
        found = [
            (-SCORES[PIECES.index(a + b)], i) for i, (a, b) in enumerate(itertools.pairwise(parts)) if a + b in PIECES
        ]
        if not found:
            break
        at = min(found)[1]
        parts[at : at + 2] = ["".join(parts[at : at + 2])]
    ids = [[PIECES.index(p)] if p in PIECES else [3 + byte for byte in p.encode()] for p in parts]
    return [1, *(i for part in ids for i in part)]


def test_pieces_are_merged_by_their_scores():
    words = stored_tokenizer(header("llama", PIECES, scores=SCORES, token_type=TYPES, **MARKS))
    rng = np.random.default_rng(0)
    for _ in range(40):
        text = "".join(rng.choice(list("abc é"), 12))
        assert words.encode(text) == by_scores(text), text
        assert words.decode(words.encode(text)) == text
    assert words.encode("ab</s>")[-1] == 2
    assert words.decode([260, 2, 261]) == "ab"
    assert words.eos_token_ids == [2]


@pytest.mark.parametrize(
    ("kind", "more", "error", "said"),
    [
        ("rwkv", {}, UnsupportedFormatError, "'rwkv' is not one of"),
        ("llama", {"scores": [1.0]}, InvalidModelError, "1 scores of 267"),
        ("llama", {"scores": SCORES, "bos_token_id": 999}, InvalidModelError, "bos_token_id is 999"),
        ("gpt2", {"merges": ["a b c"]}, InvalidModelError, "damaged"),
        ("gpt2", {"merges": 5}, InvalidModelError, "merges is a int"),
    ],
)
def test_damaged_tokenizers(kind, more, error, said):
    with pytest.raises(error, match=said):
        stored_tokenizer(header(kind, PIECES, **more))


def test_the_command_reads_text_and_weights_from_one_file(tmp_path, capsys, pairs):
    _, said = pairs
    path = tmp_path / "model.gguf"
    tokens = [t.encode() for t in said["tokens"]]
    llama_file(
        path, "Q4_0", words=len(tokens), tokenizer_model="gpt2", tokenizer_pre="gpt-2", token_list=tokens,
        token_merges=said["merges"],
    )  # fmt: skip
    words = stored_tokenizer(read_gguf(path))
    with pytest.raises(SystemExit) as ended:
        main(["generate", str(path), "--prompt", "the cat", "-n", "5", "--json"])
    assert not ended.value.code
    found = json.loads(capsys.readouterr().out)
    (want,) = Generator.from_pretrained(path).generate(["the cat"], SamplingParams(max_new_tokens=5))
    assert found["tokens"] == list(want.tokens)
    assert found["text"] == want.text == words.decode(want.tokens)
