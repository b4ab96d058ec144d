"""Files and directories that are out of the ordinary: a message each, never a crash."""

import json
import os
import sys

import pytest

from emberharmony.lint import Unreadable, lint_paths, lint_source, main
from emberharmony.lint.source import Module

needs_links = pytest.mark.skipif(sys.platform == "win32", reason="making links needs a privilege there")


def problems(capsys, *arguments):
    status = main([*map(str, arguments), "--json"])
    report = json.loads(capsys.readouterr().out)
    return status, [problem["kind"] for problem in report["problems"]]


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        (b"x = 1\0\n", "binary"),
        (b"\x7fELF\x02\x01\x01\x00", "binary"),
        (b"s = '\xff\xfe'\n", "not-text"),
        (b"# coding: no-such-codec\n", "not-text"),
        (b"# coding: rot13\nk = 1\n", "not-text"),
        (b"\xef\xbb\xbf# coding: latin-1\n", "not-text"),
        (b"# coding: ascii\ns = '\xc3\xa9'\n", "not-text"),
        (b"x = 1\n" * 400_000, "too-large"),
    ],
)
def test_files_that_are_not_source(tmp_path, capsys, content, kind):
    path = tmp_path / "a.py"
    path.write_bytes(content)
    assert problems(capsys, path) == (2, [kind])


@pytest.mark.parametrize(
    "source",
    [
        "x = " + "-" * 50_000 + "1",
        "x = " + "+".join(["a"] * 20_000),
        "x = " + "a." * 20_000 + "b",
        "x = " + "a(" * 150 + ")" * 150,
        "x = " + "[" * 190 + "]" * 190,
        "x = " + "lambda: " * 5_000 + "1",
        "if x: pass\n" + "elif x: pass\n" * 5_000,
        "x = " + "not " * 5_000 + "a",
        "".join(" " * depth + "if x:\n" for depth in range(99)) + " " * 99 + "y = np.pi",
        "x: " + "list[" * 150 + "int" + "]" * 150 + " = 1",
        "".join(f"x{n} = x{n + 1} + 1\n" for n in range(3_000)),
        "f(" + "+".join(["np.exp(a)"] * 900) + ")",
    ],
)
@pytest.mark.parametrize("switch", ["-v", "--operators-only", "--fix"])
def test_deep_nesting(tmp_path, source, switch, capsys):
    path = tmp_path / "a.py"
    path.write_text(source)
    assert main([str(path), switch, "--rules", "all"]) in (0, 1, 2)
    assert "Traceback" not in capsys.readouterr().err


def test_too_deep_is_said(tmp_path, capsys):
    path = tmp_path / "a.py"
    path.write_text("x = " + "+".join(["a"] * 20_000))
    assert problems(capsys, path) == (2, ["too-deep"])


def test_text_that_cannot_be_source():
    with pytest.raises(Unreadable, match="binary"):
        lint_source("x = 1\0")
    with pytest.raises(Unreadable, match="not-text"):
        lint_source("x = '\ud800'")


def test_syntax_errors_are_findings(tmp_path, capsys):
    (tmp_path / "a.py").write_text("def f(:\n")
    (tmp_path / "b.py").write_text("x = 1\n")
    assert main([str(tmp_path), "--json"]) == 1
    (finding,) = json.loads(capsys.readouterr().out)["findings"]
    assert (finding["code"], finding["line"]) == ("EH900", 1)


def test_the_rest_is_checked_beside_a_bad_file(tmp_path, capsys):
    (tmp_path / "a.py").write_bytes(b"\0")
    (tmp_path / "b.py").write_text("import numpy\n")
    assert main([str(tmp_path)]) == 2
    out = capsys.readouterr().out
    assert "EH001" in out
    assert "binary: contains null bytes" in out
    assert "1 path not checked" in out


@needs_links
def test_links(tmp_path, capsys):
    (tmp_path / "loop").symlink_to(tmp_path, target_is_directory=True)
    (tmp_path / "self.py").symlink_to("self.py")
    (tmp_path / "broken.py").symlink_to("nowhere.py")
    (tmp_path / "real.py").write_text("import numpy\n")
    (tmp_path / "again.py").symlink_to("real.py")
    status = main([str(tmp_path), "--json"])
    report = json.loads(capsys.readouterr().out)
    assert status == 2
    assert report["totals"] == {"EH001": 1}
    assert [problem["kind"] for problem in report["problems"]] == ["unreadable"] * 2


@needs_links
def test_a_link_given_by_name_is_followed(tmp_path):
    real = tmp_path / "real"
    real.mkdir()
    (real / "a.py").write_text("import numpy\n")
    (tmp_path / "link").symlink_to(real, target_is_directory=True)
    assert main([str(tmp_path / "link")]) == 1


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes on this system")
def test_a_pipe_is_not_waited_for(tmp_path, capsys):
    os.mkfifo(tmp_path / "a.py")
    assert problems(capsys, tmp_path) == (2, ["unreadable"])


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="every file is readable for root")
def test_no_permission(tmp_path, capsys):
    path = tmp_path / "a.py"
    path.write_text("x = 1")
    path.chmod(0)
    assert problems(capsys, path) == (2, ["unreadable"])


@pytest.mark.parametrize("name", ["", "a\0b", "x" * 5_000])
def test_names_that_are_no_paths(name, capsys):
    assert main([name]) == 2
    assert "1 path not checked" in capsys.readouterr().out


@pytest.mark.skipif(sys.platform != "linux", reason="names there are bytes")
def test_names_that_are_not_text(tmp_path, capsys):
    path = os.fsencode(tmp_path) + b"/\xff.py"
    with open(path, "wb") as file:
        file.write(b"import numpy\n")
    assert main([str(tmp_path)]) == 1
    assert main([str(tmp_path), "--json"]) == 1
    assert "EH001" in capsys.readouterr().out


def test_empty_files_and_directories(tmp_path):
    (tmp_path / "empty.py").write_text("")
    (tmp_path / "blank.py").write_text("\n\n# only this\n")
    (tmp_path / "nothing").mkdir()
    report = lint_paths([tmp_path])
    assert (len(report.files), report.exit_status) == (2, 0)
    assert lint_paths([tmp_path / "nothing"], fix=True).exit_status == 0


@pytest.mark.parametrize("text", ["a = 1\rb = 2\r", "a = 1\r\nb = 2", "a = '\x0c'\n\x0cb = 2\n", "\u2028"])
def test_lines_are_split_as_the_parser_does(text):
    try:
        module = Module("a.py", text)
    except SyntaxError:
        return
    assert [module.segment(node)[0] for node in module.tree.body] == ["a", "b"]
    assert "".join(module.lines) == text


def test_warnings_of_the_checked_code_stay_inside():
    assert lint_source(r"s = '\d' is 1") == []
