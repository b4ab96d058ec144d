import functools
import hashlib
import threading
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest

import pyflame as pf
from pyflame import hub
from pyflame.hub.weights import WeightsError


@pytest.fixture
def small(monkeypatch, tmp_path):
    monkeypatch.setenv("PYFLAME_CACHE_DIR", str(tmp_path / "cache"))
    hub.register_model("small", lambda size=3: pf.nn.Linear(size, 2), tags=["test"], aliases=["tiny"])
    yield "small"
    hub.unregister_model("small")


@pytest.fixture
def weights(small, tmp_path):
    model = pf.nn.Linear(3, 2)
    path = tmp_path / "weights.safetensors"
    pf.save(model.state_dict(), path)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    hub.register_weights(small, path.as_uri(), digest, license="CC0")
    yield model, path, digest
    hub.unregister_weights(small)


def test_models_by_name(small):
    assert small in hub.list_models()
    assert hub.list_models(tag="test") == [small]
    assert hub.get_model("tiny", size=5).in_features == 5
    assert hub.model_info("tiny").name == small
    with pytest.raises(ValueError, match="already a model 'tiny'"):
        hub.register_model("tiny", pf.nn.ReLU)
    with pytest.raises(KeyError, match=r"Did you mean.*resnet18"):
        hub.get_model("resnet_18")
    with pytest.raises(TypeError, match="constructor"):
        hub.register_model("x", 3)


@pytest.mark.parametrize("name", ["mobilenet_v2", "vit_tiny", "gpt2"])
def test_models_of_the_package_can_be_made(name):
    settings = {"n_layer": 1, "n_embd": 16, "n_head": 2, "vocab_size": 10} if name == "gpt2" else {}
    assert list(hub.get_model(name, **settings).parameters())
    assert hub.model_info(name).description


def test_weights_are_loaded_and_kept(weights):
    model, path, _ = weights
    assert hub.list_pretrained() == {"small": ["default"]}
    assert hub.weight_info("tiny").license == "CC0"
    loaded = hub.get_model("small", pretrained=True)
    np.testing.assert_array_equal(loaded.weight.numpy(), model.weight.numpy())
    kept = hub.get_weight_path("small")
    path.unlink()
    assert hub.download_weights("small") == kept  # from the cache
    info = hub.cache_info()
    assert (len(info["files"]), info["total_bytes"]) == (1, kept.stat().st_size)
    assert hub.clear_cache("small") == 1
    with pytest.raises(WeightsError, match="cannot be had"):
        hub.download_weights("small")
    assert hub.cache_info()["files"] == []


def test_damaged_and_changed_files_are_not_used(weights):
    _, path, _ = weights
    kept = hub.download_weights("small")
    kept.write_bytes(b"broken")
    assert hub.download_weights("small").read_bytes() == path.read_bytes()
    path.write_bytes(b"something else")
    with pytest.raises(WeightsError, match="digest"):
        hub.download_weights("small", force=True)
    assert not [name for name in hub.cache_info()["files"] if ".part" in name]


def test_files_that_do_not_end_are_cut_off(small, tmp_path):
    path = tmp_path / "long.npz"
    path.write_bytes(bytes(3 << 20))
    hub.register_weights(small, path.as_uri(), "0" * 64, "long", max_bytes=1 << 20)
    with pytest.raises(WeightsError, match="longer than max_bytes"):
        hub.download_weights(small, "long")
    assert hub.cache_info()["files"] == []
    hub.unregister_weights(small, "long")


def test_over_the_network(weights, tmp_path):
    model, path, digest = weights
    handler = functools.partial(SimpleHTTPRequestHandler, directory=str(tmp_path))
    handler.log_message = lambda *_: None
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        url = f"http://127.0.0.1:{server.server_address[1]}/{path.name}"
        hub.register_weights("small", url, digest, "net")
        loaded = hub.get_model("small", pretrained="net")
        np.testing.assert_array_equal(loaded.weight.numpy(), model.weight.numpy())
    finally:
        server.shutdown()
        server.server_close()
        hub.unregister_weights("small", "net")


def test_what_may_be_registered(small):
    for url, digest, name, message in (
        ("ftp://x/y.npz", "0" * 64, "a", "https or from a file"),
        ("http://example.com/y.npz", "0" * 64, "a", "https or from a file"),
        ("https://x/y.pkl", "0" * 64, "a", "end in"),
        ("https://x/y.npz", "zz", "a", "hexadecimal"),
        ("https://x/y.npz", "0" * 64, "../a", "plain file name"),
    ):
        with pytest.raises(ValueError, match=message):
            hub.register_weights(small, url, digest, name)
    with pytest.raises(KeyError, match="none are registered"):
        hub.download_weights(small)
