import numpy as np
import pytest

import pyflame as pf
import pyflame_rt


@pytest.fixture(autouse=True)
def back_to_the_cpu():
    yield
    pf.set_device("cpu")


def test_the_simulator_evaluates_graphs():
    x = np.arange(-4, 4, dtype=np.float32).reshape(2, 4)

    @pf.compile
    def f(t):
        return pf.relu(t * 2.0)

    on_cpu = f(x).numpy()
    pf.set_device("cerebras:simulator")
    assert pf.get_device() == "cerebras:simulator"
    assert pf.device_info()["provider"] == "WSEExecutionProvider"
    np.testing.assert_array_equal(pf.relu(pf.tensor(x) * 2.0).numpy(), on_cpu)
    np.testing.assert_array_equal(f(x).numpy(), on_cpu)
    assert f.trace_count == 2
    pf.set_device("cpu")
    np.testing.assert_array_equal(f(x).numpy(), on_cpu)
    assert f.trace_count == 2


@pytest.mark.parametrize("name", ["wse2", "wse3"])
def test_a_small_model_runs_and_learns_on_the_simulated_wafer(name):
    pf.manual_seed(0)
    model = pf.nn.Sequential(pf.nn.Linear(6, 5), pf.nn.ReLU(), pf.nn.Linear(5, 3))
    x, target = np.linspace(-1, 1, 24, dtype=np.float32).reshape(4, 6), np.array([0, 2, 1, 0])

    def step():
        loss = pf.nn.functional.cross_entropy(model(pf.tensor(x)), pf.tensor(target))
        model.zero_grad()
        loss.backward()
        return [loss.numpy(), *[p.grad.numpy() for p in model.parameters()]]

    want = step()
    pf.set_device(name)
    assert pf.get_device() == name
    assert pf.device_info()["provider"] == "WSEExecutionProvider"
    for found, expected in zip(step(), want, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)


def test_devices_that_are_not_here_are_refused():
    for name in ("cerebras", "rocm", "rocm:3"):
        with pytest.raises(RuntimeError, match=r"not available.*Devices: cpu, cerebras:simulator"):
            pf.set_device(name)
    for name in ("abacus", "rocm:x", "cerebras:2"):
        with pytest.raises(ValueError, match="no device"):
            pf.set_device(name)
    assert pf.get_device() == "cpu"
    assert not pf.rocm_is_available()
    assert (pf.rocm_device_count(), pf.rocm_get_device()) == (0, -1)
    for call in (pf.rocm_get_device_info, pf.rocm_synchronize):
        with pytest.raises(RuntimeError, match="no ROCm device"):
            call()
    with pytest.raises(RuntimeError, match="no ROCm device 1"):
        pf.rocm_set_device(1)


def test_a_registered_backend_is_a_device():
    class Doubler(pyflame_rt.Backend):
        name = "gpu"

        def get_supported_ops(self):
            return ["Add"]

        def execute(self, graph, input_feed, output_names=()):
            return [sum(np.asarray(t.raw()) for t in input_feed.values())]

    pyflame_rt.register_backend("ROCMExecutionProvider", Doubler)
    try:
        assert pf.rocm_is_available()
        pf.rocm_set_device(0)
        assert (pf.get_device(), pf.rocm_get_device()) == ("rocm:0", 0)
        assert pf.rocm_get_device_info()["type"] == "rocm"
        total = pf.tensor([1.0, 2.0]) + pf.tensor([3.0, 4.0])
        assert total.numpy().tolist() == [4.0, 6.0]
        pf.rocm_synchronize()
        with pytest.raises(RuntimeError, match="does not run Relu"):
            pf.eval(pf.relu(total))
    finally:
        pf.set_device(pf.Backend.CPU)
        pyflame_rt.unregister_backend("ROCMExecutionProvider")
    pf.synchronize()


def _trained(optimizer, *, by_trainer):
    """Losses of five steps, and the weights after them."""
    pf.manual_seed(0)
    model = pf.nn.Sequential(pf.nn.Linear(4, 6), pf.nn.ReLU(), pf.nn.Linear(6, 2))
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(10, 4)).astype(np.float32), rng.normal(size=(10, 2)).astype(np.float32)
    made, loss_fn = optimizer(model.parameters()), pf.nn.MSELoss()
    if by_trainer:
        config = pf.training.TrainerConfig(max_epochs=5, progress=False)
        data = pf.data.DataLoader(pf.data.TensorDataset(x, y), batch_size=10)
        losses = pf.training.Trainer(model, made, loss_fn, config).fit(data).steps
    else:
        losses = []
        for _ in range(5):
            made.zero_grad()
            loss = loss_fn(model(pf.tensor(x)), pf.tensor(y))
            loss.backward()
            made.step()
            losses.append(loss.item())
    return [np.array(losses), *(p.numpy() for p in model.parameters())]


@pytest.mark.parametrize(
    ("optimizer", "by_trainer", "device"),
    [
        (lambda p: pf.optim.SGD(p, lr=0.1, momentum=0.9, dampening=0.1), False, "cerebras:simulator"),
        (lambda p: pf.optim.Adam(p, lr=0.05), False, "wse2"),
        (lambda p: pf.optim.AdamW(p, lr=0.05), True, "cerebras:simulator"),
    ],
)
def test_training_on_the_simulated_wafer(optimizer, by_trainer, device):
    """Rates and counters are doubles, which the wafer has not: the host computes what is made of them alone."""
    want = _trained(optimizer, by_trainer=by_trainer)
    pf.set_device(device)
    found = _trained(optimizer, by_trainer=by_trainer)
    assert want[0][-1] < want[0][0]
    for ours, theirs in zip(found, want, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)


def test_doubles_that_come_from_the_wafer_are_refused_by_name():
    pf.set_device("cerebras:simulator")
    x = pf.tensor(np.ones(4, np.float32))
    with pytest.raises(pyflame_rt.PyFlameRTError, match="float64"):
        (pf.relu(x).to(pf.float64) * 2.0).numpy()
