"""The page for people and the description for programs."""

import base64
import hashlib
import re
import shutil
import subprocess
from html.parser import HTMLParser

import pytest

from pyflame_rt.serving.page import _page, openapi
from tests.unit.serving.scene import ask, serving


def test_the_page_is_whole_and_needs_no_key():
    with serving(api_keys=["k"]) as server:
        status, answer, text = ask(server, "GET", "/")
        assert (status, answer.getheader("content-type")) == (200, "text/html; charset=utf-8")
        policy = answer.getheader("content-security-policy")
        asked = ask(server, "GET", "/v1/models/m/graph", headers={"X-API-Key": "k"})[2]
    assert asked["nodes"] == [{"name": "mul", "op_type": "Mul", "inputs": ["x", "factor"], "outputs": ["y"]}]
    (script,) = re.findall(r"<script>(.*?)</script>", text.decode(), re.DOTALL)
    assert base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() in policy
    ids = re.findall(r'id="(\w+)"', text.decode())
    assert len(ids) == len(set(ids))
    assert set(re.findall(r'\$\("(\w+)"\)', script)) == set(ids)
    assert not re.findall(r"innerHTML|eval\(|https?://", text.decode())


def test_tags_are_closed():
    class Tags(HTMLParser):
        def __init__(self):
            super().__init__()
            self.open = []

        def handle_starttag(self, tag, attrs):
            if tag not in ("meta", "input"):
                self.open.append(tag)

        def handle_endtag(self, tag):
            assert self.open.pop() == tag

    parser = Tags()
    parser.feed(_page()[0])
    assert parser.open == []


@pytest.mark.skipif(shutil.which("node") is None, reason="needs node to read the script")
def test_the_script_is_javascript(tmp_path):
    (script,) = re.findall(r"<script>(.*?)</script>", _page()[0], re.DOTALL)
    (tmp_path / "page.js").write_text(script)
    subprocess.run(["node", "--check", str(tmp_path / "page.js")], check=True, capture_output=True, timeout=120)


def test_the_description_is_of_what_is_answered():
    with serving(model_control=True) as server:
        found = ask(server, "GET", "/openapi.json")[2]
        assert found["openapi"].startswith("3.1")
        for path, methods in found["paths"].items():
            for method, operation in methods.items():
                asked = path.replace("{model}", "m").replace("{version}", "1").replace("{region}", "r")
                status, _, told = ask(server, method.upper(), asked, b"" if method == "post" else None)
                assert status != 405
                assert status != 404 or told["error_code"] in ("ModelNotFound", "RegionNotFound"), path
                assert status < 500
                assert operation["summary"]
                assert [p["name"] for p in operation["parameters"]] == re.findall(r"{(\w+)}", path)
    assert {"/v1/models/{model}/infer", "/v2/models/{model}/infer", "/v1/chat/completions", "/metrics"} <= set(
        found["paths"]
    )
    assert (
        "messages"
        in found["paths"]["/v1/chat/completions"]["post"]["requestBody"]["content"]["application/json"]["schema"][
            "properties"
        ]
    )
    assert openapi([])["paths"] == {}
