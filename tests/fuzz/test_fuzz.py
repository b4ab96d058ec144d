"""A sample of what ``python -m tests.fuzz.run`` does in full."""

import struct
import zlib
from random import Random

import pytest

from tests.fuzz.corpus import onnx_seeds, pfm_seeds
from tests.fuzz.mutate import mutate_pfm
from tests.fuzz.run import fuzz, main, make


@pytest.mark.parametrize(("kind", "count"), [("pfm", 1200), ("onnx", 800)])
def test_damaged_files_give_typed_errors(kind, count, tmp_path):
    findings = [row for row in fuzz({kind: count}, seed=7, jobs=1, folder=tmp_path) if row[3]]
    assert not findings


def test_there_is_enough_to_start_from():
    assert len(onnx_seeds()) > 90
    assert len(pfm_seeds(1)) > 20
    assert len(pfm_seeds(2)) > 90


def test_runs_depend_on_their_number_alone():
    assert make("pfm", 5, 1) == make("pfm", 5, 1)
    assert len({make("pfm", i, 1) for i in range(20)}) == 20


def test_checksums_are_mended():
    corpus, fitting = pfm_seeds(2), 0
    for i in range(50):
        data = mutate_pfm(Random(i), corpus[0], corpus)
        kind, checksum, length = struct.unpack_from("<IIQ", data.ljust(24), 8)
        fitting += kind == 1 and zlib.crc32(data[24 : 24 + length]) == checksum
    assert fitting > 30


def test_findings_are_kept(monkeypatch, capsys):
    monkeypatch.setattr("tests.fuzz.run.check", lambda data: 1 / 0)
    assert main(["--pfm", "2", "--jobs", "1"]) == 1
    assert "UNTYPED ZeroDivisionError" in capsys.readouterr().out
