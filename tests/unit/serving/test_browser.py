"""The page in a browser: models, a run, a refusal, an image, a chat and the graph (Chromium without a window)."""

import base64
import os
import re
import shutil

import numpy as np
import pytest

import pyflame_rt
from pyflame_rt.serving import ModelConfig
from tests.unit.generate.small_gpt import decoder
from tests.unit.serving.scene import scaled, serving
from tests.unit.serving.test_openai import write_tokenizer

playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")
PICTURE = """
async () => {
  const canvas = document.createElement("canvas");
  canvas.width = canvas.height = 16;
  const context = canvas.getContext("2d");
  context.fillStyle = "rgb(255, 0, 51)";
  context.fillRect(0, 0, 16, 16);
  const blob = await new Promise(done => canvas.toBlob(done));
  const files = new DataTransfer();
  files.items.add(new File([blob], "red.png", {type: "image/png"}));
  document.getElementById("drop").dispatchEvent(new DragEvent("drop", {dataTransfer: files, cancelable: true}));
}
"""


def means():
    """The mean of each channel of an image."""
    graph = pyflame_rt.Graph("means")
    graph.add_input("image", ["N", 3, 8, 8])
    graph.add_node("mean", "GlobalAveragePool", ["image"], ["y"])
    graph.add_output("y", ["N", 3, 1, 1])
    return graph


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    folder = tmp_path_factory.mktemp("text")
    write_tokenizer(folder)
    with (
        serving({"m": scaled(), "image": means()}, api_keys=["sesame"]) as server,
        playwright.sync_playwright() as play,
    ):
        server.load_model("talker", decoder(), config=ModelConfig(tokenizer=str(folder), warmup_requests=0))
        browser = play.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        found = browser.new_page(viewport={"width": 1000, "height": 900})
        found.set_default_timeout(60_000)
        problems = []
        found.on("pageerror", lambda error: problems.append(error))
        found.goto(server.url)
        playwright.expect(found.locator("#state")).to_contain_text("API key", timeout=60_000)  # it says what is missing
        found.fill("#key", "sesame")
        found.dispatch_event("#key", "change")
        playwright.expect(found.locator("#models tr")).to_have_count(3, timeout=60_000)
        yield found
        shot = os.environ.get("PYFLAME_SCREENSHOT")
        if shot:
            found.screenshot(path=shot, full_page=True)
        browser.close()
        assert not problems


def answer(page, text):
    playwright.expect(page.locator("#answer")).to_contain_text(text, timeout=60_000)
    return page.text_content("#answer")


def test_a_run_and_its_refusal(page):
    page.select_option("#model", "m")
    playwright.expect(page.locator("#facts")).to_contain_text("x: float32[-1,3]", timeout=60_000)
    page.fill("#inputs", '{"inputs": {"x": {"shape": [1, 3], "dtype": "float32", "data": [1, 2, 3]}}}')
    page.click("#go")
    assert "6" in answer(page, '"success": true')
    page.fill("#inputs", '{"inputs": {"x": {"shape": [1, 4], "dtype": "float32", "data": [1, 2, 3, 4]}}}')
    page.click("#go")
    answer(page, '"success": false')
    assert page.get_attribute("#answer", "class") == "bad"


def test_statistics_come_by_themselves(page):
    row = page.locator("#models tr", has_text="m1ready")
    playwright.expect(row.locator("td").nth(3)).not_to_have_text("0", timeout=60_000)


def test_an_image_is_dropped(page):
    page.select_option("#model", "image")
    playwright.expect(page.locator("#drop")).to_be_visible(timeout=60_000)
    page.evaluate(PICTURE)
    text = answer(page, '"success": true')
    data = text.split('"data": "')[1].split('"')[0]
    values = np.frombuffer(base64.b64decode(data), np.float32)
    np.testing.assert_allclose(values, [1.0, 0.0, 0.2], atol=1e-6)


def test_a_model_that_talks(page):
    page.select_option("#model", "talker")
    playwright.expect(page.locator("#chat")).to_be_visible(timeout=60_000)
    page.fill("#prompt", "hello")
    page.click("#send")
    said = page.locator("#answer")
    playwright.expect(said).to_have_text(re.compile(r"^.{100,}$", re.DOTALL), timeout=60_000)
    page.fill("#prompt", "hello " * 300)  # it reads 200 tokens
    page.click("#send")
    playwright.expect(said).to_contain_text("longer than", timeout=60_000)
    page.select_option("#model", "m")
    playwright.expect(said).to_have_text("", timeout=60_000)  # of another model


def test_the_graph(page):
    page.select_option("#model", "image")
    playwright.expect(page.locator("#facts")).to_contain_text("image", timeout=60_000)
    page.click("#show")
    playwright.expect(page.locator("#graph")).to_contain_text("GlobalAveragePool", timeout=60_000)
