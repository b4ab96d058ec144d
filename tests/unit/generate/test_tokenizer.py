"""Tokenizers of folders, chat templates that may not reach Python, and the command."""

import json

import pytest

from pyflame_rt import InputError, InvalidModelError
from pyflame_rt.cli.entry import main
from pyflame_rt.exporters import export_onnx
from pyflame_rt.generate import Generator, SamplingParams, load_tokenizer
from tests.unit.generate.small_gpt import WORDS, decoder

tokenizers = pytest.importorskip("tokenizers")
TEMPLATE = (
    "{% for m in messages %}{{ m['role'] }} {{ m['content'] }} {% endfor %}{% if add_generation_prompt %}w0{% endif %}"
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A model with a tokenizer: the words w0, w1, ..."""
    place = tmp_path_factory.mktemp("model")
    words = tokenizers.models.WordLevel({f"w{i}": i for i in range(WORDS)}, unk_token="w0")
    library = tokenizers.Tokenizer(words)
    library.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    library.save(str(place / "tokenizer.json"))
    settings = {"eos_token": {"content": "w30"}, "bos_token": "w1", "chat_template": TEMPLATE}
    (place / "tokenizer_config.json").write_text(json.dumps(settings))
    export_onnx(decoder(), place / "model.onnx")
    export_onnx(decoder(5), place / "draft.onnx")
    return place


def call(*arguments):
    with pytest.raises(SystemExit) as ended:
        main([str(a) for a in arguments])
    return ended.value.code or 0


def test_a_folder_has_words_marks_and_a_template(folder):
    words = load_tokenizer(folder)
    assert words.encode("w3 w1 w4") == [3, 1, 4]
    assert words.decode([3, 1]) == "w3 w1"
    assert words.eos_token_ids == [30]
    assert words.chat([{"role": "w5", "content": "w6 w7"}]) == "w5 w6 w7 w0"


@pytest.mark.parametrize(
    "template",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{{ raise_exception('no system role') }}",
        "{% for %}",
        "{{ messages[0]['role'] + 1 }}",
    ],
)
def test_templates_that_misbehave_are_refused(folder, tmp_path, template):
    (tmp_path / "tokenizer.json").write_bytes((folder / "tokenizer.json").read_bytes())
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": template}))
    with pytest.raises(InputError, match="chat template refuses"):
        load_tokenizer(tmp_path).chat([{"role": "user", "content": "hello"}])


def test_damaged_files_are_errors(tmp_path, folder):
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(InvalidModelError, match="no tokenizer"):
        load_tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_bytes((folder / "tokenizer.json").read_bytes())
    (tmp_path / "tokenizer_config.json").write_text("[1]")
    with pytest.raises(InvalidModelError, match="no settings"):
        load_tokenizer(tmp_path)
    (tmp_path / "tokenizer_config.json").unlink()
    assert load_tokenizer(tmp_path).chat([{"role": "user", "content": "w1"}]) == "user: w1\nassistant: "
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [3, 4]}')
    assert load_tokenizer(tmp_path).eos_token_ids == [3, 4]
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": "w3"}')
    with pytest.raises(InvalidModelError, match="eos_token_id is 'w3'"):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize("more", [(), ("--draft", "draft.onnx")], ids=["alone", "with a draft"])
def test_the_command_streams_what_the_generator_gives(folder, capsys, more):
    import pyflame_rt

    model = folder / "model.onnx"
    generator = Generator(pyflame_rt.InferenceSession(str(model)), load_tokenizer(folder))
    (want,) = generator.generate(["w3 w1 w4"], SamplingParams(max_new_tokens=7, eos_token_id=30))
    more = tuple(folder / part if part.endswith(".onnx") else part for part in more)
    assert call("generate", model, "-p", "w3 w1 w4", "-n", 7, *more) == 0
    out = capsys.readouterr().out
    assert out.splitlines()[0].split() == want.text.split()
    assert f"{len(want.tokens)} tokens" in out
    assert call("generate", model, "--tokens", "3,1,4", "-n", 7, "--json", *more) == 0
    assert tuple(json.loads(capsys.readouterr().out)["tokens"]) == want.tokens
    assert call("generate", model, "-p", "w3 w1 w4", "-n", 3, "--beams", 3, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert len(found) == 3
    assert found[0]["score"] >= found[1]["score"] >= found[2]["score"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "give a prompt"),
        (("-p", "w1", "--tokens", "1"), "give a prompt"),
        (("--tokens", "1,x"), "tokens are numbers"),
        (("-p", "w1", "--top-p", "2"), "top_p must be"),
        (("-p", "w1", "--beams", "2", "--temperature", "1"), "--beams"),
        (("-p", "w1", "--tokenizer", "missing"), "no tokenizer.json"),
    ],
)
def test_the_command_refuses(folder, capsys, arguments, said):
    assert call("generate", folder / "model.onnx", *arguments) == 1
    assert said in " ".join(capsys.readouterr().err.split())
