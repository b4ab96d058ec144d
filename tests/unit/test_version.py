"""One distribution, one version."""

import tomllib
from pathlib import Path

import pytest

import emberharmony
import pyflame
import pyflame_rt
import pyflame_rt.ort
import wsesim
from pyflame_rt.cli import main as runtime_main
from wsesim.cli import main as simulator_main

ROOT = Path(__file__).resolve().parents[2]


def test_four_packages_have_one_version():
    versions = {package.__version__ for package in (emberharmony, pyflame, pyflame_rt, wsesim)}
    assert versions == {pyflame_rt.__version__}
    assert pyflame.__version_info__ == (1, 0, 0, "alpha")
    assert "{}.{}.{}-{}".format(*pyflame.__version_info__) == pyflame.__version__
    assert pyflame.__version__ in pyflame_rt.ort.get_build_info()


def test_the_build_reads_that_version():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    path = ROOT / settings["tool"]["hatch"]["version"]["path"]
    assert f'__version__ = "{pyflame_rt.__version__}"' in path.read_text("utf-8")


def test_commands_print_it(capsys):
    with pytest.raises(SystemExit):
        runtime_main(["--version"])
    assert capsys.readouterr().out.strip() == pyflame_rt.__version__
    assert simulator_main(["--version"]) == 0
    assert capsys.readouterr().out.strip() == wsesim.__version__


def test_usage_of_the_simulator(capsys):
    assert simulator_main(["--help"]) == 0
    assert "cs_python" in capsys.readouterr().out
    assert simulator_main(["nonsense"]) == 2
    assert "'nonsense'" in capsys.readouterr().err
