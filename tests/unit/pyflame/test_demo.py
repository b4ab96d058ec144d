"""The parts of the demonstration that are quick enough to run with every change."""

from rich.console import Console

import pyflame as pf
from pyflame import demo


def test_the_wafer_gives_the_answers_of_the_model(tmp_path):
    pf.manual_seed(3)
    console = Console(record=True, width=200)
    assert demo.run_on_wafer(demo.digit_model().eval(), tmp_path, console) == demo.WAFER_IMAGES
    assert (tmp_path / "csl" / "layout.csl").is_file()
    assert "processing elements" in console.export_text()


def test_the_demonstration_serves():
    pf.manual_seed(3)
    console = Console(record=True, width=200)
    assert demo.serve(demo.digit_model().eval(), console) == demo.SERVED_IMAGES
    assert "/v1/predict answered 1 request" in console.export_text()
