"""Versions that come and go while requests are answered."""

import threading
import time

import numpy as np
import pytest

import pyflame_rt
from pyflame_rt.serving import ModelClient, ModelConfig, ModelRegistry
from pyflame_rt.serving.errors import RequestError
from pyflame_rt.serving.folders import find_models
from tests.unit.serving.scene import ask, saved, scaled, serving, tensor

X = np.ones((1, 3), np.float32)


def until(condition, seconds=60.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


@pytest.fixture
def registry():
    made = ModelRegistry()
    yield made
    made.unload_all()


def factor_of(instance):
    return float(instance.infer({"x": X})["y"][0, 0])


def test_the_latest_is_the_greatest_as_people_count(registry):
    for version, factor in (("v9", 9.0), ("v10", 10.0), ("v1.10", 1.0)):
        registry.add_model("m", scaled(factor), version)
    assert factor_of(registry.get_latest("m")) == 10.0
    assert [v.version for v in registry.list_versions("m")] == ["v1.10", "v9", "v10"]
    assert registry.get("m", "v9") is not None
    assert registry.get("m", "v8") is None
    assert registry.has("m", "v9")
    assert not registry.has("m", "v8")
    registry.unload("m", "v10")
    assert factor_of(registry.get_latest("m")) == 9.0
    for name, version in (("none", None), ("m", "v10")):
        with pytest.raises(RequestError, match=r"there is no|has no version") as caught:
            registry.unload(name, version)
        assert caught.value.status == 404


def test_folders_of_models(tmp_path, registry):
    saved(tmp_path / "first.pfm", 1.0)
    saved(tmp_path / "second" / "2" / "model.onnx", 2.0)
    saved(tmp_path / "second" / "10" / "model.onnx", 10.0)
    saved(tmp_path / "third" / "model.onnx", 3.0)
    (tmp_path / "second" / "config.yaml").write_text("max_batch_size: 4\nwarmup_requests: 0\n")
    (tmp_path / "second" / "10" / "config.yaml").write_text("enable_batching: false\n")
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "model.onnx").write_bytes(b"no model")
    (tmp_path / "notes.txt").write_text("none")
    found = registry.load_from_directory(tmp_path)
    assert {(v.name, v.version, v.ready) for v in found} == {
        ("first", "1", True), ("second", "2", True), ("second", "10", True), ("third", "1", True),
        ("broken", "1", False),
    }  # fmt: skip
    assert factor_of(registry.get_latest("second")) == 10.0
    assert registry.config("second", "2").max_batch_size == 4
    assert not registry.config("second", "10").enable_batching
    assert "broken" in registry.list_models()
    with pytest.raises(RequestError, match="not ready") as caught:
        registry.acquire("broken")
    assert caught.value.status == 503
    with pytest.raises(pyflame_rt.ModelNotFoundError):
        registry.load_from_directory(tmp_path / "none")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("max_batch_size: many", "must be a int"),
        ("max_batch_size: 0", "at least 1"),
        ("enable_batching: 1", "must be a bool"),
        ("max_batch: 3", "no setting 'max_batch'"),
        ("- 3", "must hold settings"),
        ("a: [", "cannot be read"),
        ("preferred_batch_sizes: [x]", "must be a list"),
        ("weight: -1", "weight"),
        ("!!python/object/apply:os.system [echo]", "cannot be read"),
    ],
)
def test_settings_beside_a_model_are_checked(tmp_path, text, message):
    saved(tmp_path / "m" / "1" / "model.onnx")
    (tmp_path / "m" / "config.yaml").write_text(text)
    (found,) = find_models(tmp_path)
    assert isinstance(found, pyflame_rt.InputError)
    assert message in str(found)


def test_a_reload_swaps_and_tells(tmp_path, registry):
    path = saved(tmp_path / "m.onnx", 2.0)
    registry.load_from_path("m", path, "v1")
    seen = []
    registry.set_reload_callback(lambda *what: seen.append(what))
    old = registry.get("m", "v1")
    saved(path, 5.0)
    registry.reload("m", "v1")
    assert seen == [("m", "v1")]
    assert factor_of(registry.get("m", "v1")) == 5.0
    assert not old.is_ready()
    path.write_bytes(b"no model")
    with pytest.raises(pyflame_rt.InvalidModelError):
        registry.reload("m", "v1")
    assert factor_of(registry.get("m", "v1")) == 5.0  # the old one stays


def test_files_are_watched(tmp_path, registry):
    path = saved(tmp_path / "models" / "m" / "1" / "model.onnx", 1.0)
    registry.load_from_directory(tmp_path / "models")
    registry.enable_hot_reload(True)
    saved(path, 7.0)
    until(lambda: factor_of(registry.get("m", "1")) == 7.0)
    saved(tmp_path / "models" / "m" / "2" / "model.onnx", 8.0)
    until(lambda: registry.has("m", "2"))
    (tmp_path / "models" / "m" / "3").mkdir()
    (tmp_path / "models" / "m" / "3" / "model.onnx").write_bytes(b"no model")
    until(lambda: [v for v in registry.list_versions("m") if v.version == "3"])
    registry_latest = registry.acquire("m")  # what is broken is not chosen
    assert factor_of(registry_latest) == 8.0
    registry_latest.release()
    for version in ("2", "3"):
        (tmp_path / "models" / "m" / version / "model.onnx").unlink()
    until(lambda: not registry.has("m", "2"))
    registry.enable_hot_reload(False)


def test_what_changes_before_the_watch_begins_is_seen(tmp_path, registry):
    path = saved(tmp_path / "models" / "m" / "1" / "model.onnx", 1.0)
    registry.load_from_directory(tmp_path / "models")
    alone = saved(tmp_path / "alone.onnx", 2.0)
    registry.load_from_path("alone", alone)
    saved(path, 7.0)
    saved(alone, 8.0)
    saved(tmp_path / "models" / "m" / "2" / "model.onnx", 9.0)
    registry.enable_hot_reload(True)
    until(lambda: factor_of(registry.get("m", "1")) == 7.0)
    until(lambda: factor_of(registry.get("alone", "1")) == 8.0)
    until(lambda: registry.has("m", "2"))


def test_a_folder_that_cannot_be_read_for_a_while_is_looked_at_again(tmp_path, registry, monkeypatch):
    saved(tmp_path / "m" / "1" / "model.onnx", 1.0)
    registry.load_from_directory(tmp_path)
    refused = []

    def refusing(*arguments):
        if not refused:
            refused.append(arguments)
            raise FileNotFoundError("gone while it was read")
        return find_models(*arguments)

    monkeypatch.setattr("pyflame_rt.serving.hot_reload.find_models", refusing)
    registry.enable_hot_reload(True)
    saved(tmp_path / "m" / "2" / "model.onnx", 2.0)
    until(lambda: registry.has("m", "2"))
    assert refused


def test_weights_share_requests(registry):
    for version, weight in (("1", 1.0), ("2", 3.0), ("3", 0.0)):
        registry.add_model("m", scaled(float(version)), version, config=ModelConfig(weight=weight, warmup_requests=0))
    seen = {"1": 0, "2": 0, "3": 0}
    for _ in range(400):
        instance = registry.acquire("m")
        seen[instance.version] += 1
        instance.release()
    assert seen["3"] == 0
    assert 40 < seen["1"] < 180
    registry.set_weight("m", "1", 0.0)
    assert {registry.acquire("m").version for _ in range(10)} == {"2"}
    with pytest.raises(pyflame_rt.InputError):
        registry.set_weight("m", "1", -1.0)


def test_memory_has_a_budget():
    def large(factor):
        graph = scaled(factor)
        graph.add_initializer("unused", np.zeros(1000, np.float32))
        graph.add_node("more", "ReduceSum", ["unused"], ["sum"], keepdims=0)
        graph.add_output("sum", [])
        return graph

    config = ModelConfig(warmup_requests=0, enable_batching=False)
    registry = ModelRegistry(max_memory=9000)
    for name in ("a", "b"):
        registry.add_model(name, large(1.0), config=config)
    registry.acquire("a").release()
    registry.add_model("c", large(1.0), config=config)
    assert registry.get_latest("b") is None  # asked longest ago
    assert registry.get_latest("a") is not None
    assert registry.memory_used() <= 9000
    assert registry.has("b")
    instance = registry.acquire("b")  # it comes back
    assert factor_of(instance) == 1.0
    instance.release()
    assert registry.memory_used() <= 9000
    huge = scaled()
    huge.add_initializer("weights", np.zeros(5000, np.float32))
    huge.add_node("more", "ReduceSum", ["weights"], ["sum"], keepdims=0)
    huge.add_output("sum", [])
    with pytest.raises(pyflame_rt.MemoryLimitError):
        registry.add_model("d", huge, config=config)
    registry.unload_all()


@pytest.mark.parametrize(("reloads", "clients"), [(12, 4)])
def test_reloads_under_load_lose_and_mix_nothing(tmp_path, reloads, clients):
    """Every answer is that of one version as a whole: rows of a request are never of two."""
    path = saved(tmp_path / "m.onnx", 1.0)
    with serving({}) as server:
        server.registry().register_model(ModelConfig(name="m", model_path=str(path), warmup_requests=1))
        end, problems, counts = threading.Event(), [], [0] * clients

        def work(number):
            with ModelClient(server.url, timeout=120, max_retries=0) as client:
                while not end.is_set():
                    rows = np.full((1 + number, 3), 1.0 + counts[number] % 7, np.float32)
                    answer = client.infer("m", {"x": rows})
                    got = answer.outputs["y"] / rows if answer.success else None
                    if got is None or got.min() != got.max() or got.flat[0] not in range(1, reloads + 2):
                        problems.append(answer)
                    counts[number] += 1

        threads = [threading.Thread(target=work, args=(n,)) for n in range(clients)]
        for thread in threads:
            thread.start()
        for factor in range(2, reloads + 2):
            saved(path, float(factor))
            server.registry().reload("m", "1")
        last = ModelClient(server.url).infer("m", {"x": X}).outputs["y"]
        end.set()
        for thread in threads:
            thread.join(120)
        assert not problems
        assert min(counts) > 0
        assert last[0, 0] == reloads + 1


def test_clients_load_and_unload(tmp_path):
    saved(tmp_path / "m" / "1" / "model.onnx", 1.0)
    with serving({}, model_dir=str(tmp_path), model_control=True) as server:
        assert ask(server, "POST", "/v1/models/m/unload", b"")[0] == 200
        assert ask(server, "POST", "/v1/models/m/infer", {"inputs": {"x": tensor(X)}})[0] == 404
        assert ask(server, "POST", "/v1/models/m/unload", b"")[0] == 404
        saved(tmp_path / "m" / "2" / "model.onnx", 2.0)
        status, _, found = ask(server, "POST", "/v1/models/m/load", b"")
        assert (status, found["versions"]) == (200, ["1", "2"])
        _, _, answer = ask(server, "POST", "/v1/models/m/infer", {"inputs": {"x": [[1.0, 1.0, 1.0]]}})
        assert answer["outputs"]["y"]["data"] == [[2.0, 2.0, 2.0]]
        (tmp_path / "m" / "2" / "model.onnx").write_bytes(b"broken")
        assert 400 <= ask(server, "POST", "/v1/models/m/load", b"")[0] < 500
        assert ask(server, "POST", "/v1/models/none/load", b"")[0] == 404
        assert ask(server, "POST", "/v1/models/..%2Fx/load", b"")[0] == 404


@pytest.mark.parametrize("error", [FileNotFoundError("No path was found."), OSError("OS file watch limit reached.")])
def test_files_are_looked_at_where_nobody_tells_of_changes(tmp_path, registry, monkeypatch, error):
    """Such as when a folder went before it was watched, or there are more than the system watches."""
    refused = []

    def refusing(*paths, **settings):
        refused.append(paths)
        raise error

    monkeypatch.setattr("pyflame_rt.serving.hot_reload.watch", refusing)
    saved(tmp_path / "m" / "1" / "model.onnx", 1.0)
    registry.load_from_directory(tmp_path)
    registry.enable_hot_reload(True)
    for version in ("2", "3"):
        saved(tmp_path / "m" / version / "model.onnx", 2.0)
        until(lambda v=version: registry.has("m", v))
    assert len(refused) > 1
