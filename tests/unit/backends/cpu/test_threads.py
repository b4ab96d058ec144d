import os

import pytest

from pyflame_rt.backends.cpu.run import threads
from pyflame_rt.backends.cpu.run.threads import available_threads, use_threads

CORES = len(os.sched_getaffinity(0))


def tree(tmp_path, member, files):
    for name, text in files.items():
        path = tmp_path / "cg" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (tmp_path / "self").write_text(member)
    return available_threads(tmp_path / "cg", tmp_path / "self")


@pytest.mark.parametrize(
    ("member", "files", "limit"),
    [
        ("0::/app/job\n", {"app/job/cpu.max": "50000 100000\n"}, 1),
        ("0::/app/job\n", {"app/job/cpu.max": "max 100000\n", "app/cpu.max": "150000 100000\n"}, 2),
        ("0::/app/job\n", {"cpu.max": "max 100000\n"}, 10**6),
        (
            "4:cpu,cpuacct:/x\n",
            {"cpu,cpuacct/x/cpu.cfs_quota_us": "100000", "cpu,cpuacct/x/cpu.cfs_period_us": "100000"},
            1,
        ),
        ("4:cpu:/x\n", {"cpu/x/cpu.cfs_quota_us": "-1", "cpu/x/cpu.cfs_period_us": "100000"}, 10**6),
        ("0::/nowhere\n", {}, 10**6),
        ("nonsense", {}, 10**6),
    ],
)
def test_quotas_of_fake_cgroups(tmp_path, member, files, limit):
    assert tree(tmp_path, member, files) == min(CORES, limit)


def test_the_setting_comes_back():
    from pyflame_rt.backends.cpu.run.gomp import load_gomp

    gomp = load_gomp()
    if gomp is None:
        pytest.skip("no OpenMP runtime")
    before = gomp.omp_get_max_threads()
    with use_threads(before + 1):
        assert gomp.omp_get_max_threads() == before + 1
    assert gomp.omp_get_max_threads() == before


def test_the_quota_is_read_once_in_a_while_and_the_affinity_each_time(monkeypatch):
    read, cores = [], [{0, 1, 2}, {0}]
    monkeypatch.setattr(threads, "_quota", lambda *_: read.append(1) or 2.5)
    monkeypatch.setattr(threads.time, "monotonic", lambda: 1e9)
    monkeypatch.setattr(threads.os, "sched_getaffinity", lambda _: cores.pop(0), raising=False)
    assert [available_threads(), available_threads()] == [3, 1]
    assert read == [1]
    monkeypatch.setattr(threads.time, "monotonic", lambda: 1e9 + 1)
    cores.append({0, 1, 2, 3})
    assert available_threads() == 3
    assert read == [1, 1]
    threads._remembered.cache_clear()
