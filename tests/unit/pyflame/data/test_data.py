"""Datasets, samplers, loaders with and without workers, and transforms."""

import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pyflame as pf
from pyflame import data
from pyflame.data import transforms

PROC = Path("/proc/self/stat").exists()


class Squares(data.Dataset):
    def __init__(self, size):
        self.size = size

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        return np.full(2, index**2, np.float32), index


class Stream(data.IterableDataset):
    """Numbers below `size`, shared out among workers."""

    def __init__(self, size):
        self.size = size

    def __iter__(self):
        info = data.get_worker_info()
        start, step = (0, 1) if info is None else (info.id, info.num_workers)
        return iter(range(start, self.size, step))


class Dies(Squares):
    def __getitem__(self, index):
        if index == 3:
            os._exit(13)
        return super().__getitem__(index)


class Fails(Squares):
    def __getitem__(self, index):
        if index == 3:
            raise KeyError("sample three is missing")
        return super().__getitem__(index)


class Noise(Squares):
    def __getitem__(self, index):
        return np.random.rand(), index  # noqa: NPY002 - what users write


def contents(loader):
    return [[np.asarray(part).tolist() for part in batch] for batch in loader]


@given(st.integers(1, 20), st.integers(1, 7), st.booleans())
@settings(max_examples=40, deadline=None)
def test_every_sample_comes_once(size, batch, drop_last):
    loader = data.DataLoader(Squares(size), batch_size=batch, shuffle=True, drop_last=drop_last, generator=1)
    seen = [int(y) for _, ys in loader for y in ys.numpy()]
    assert len(seen) == len(set(seen)) == (size // batch * batch if drop_last else size)
    assert len(loader) == (size // batch if drop_last else -(-size // batch))


def test_shuffles_follow_the_seed():
    def order():
        pf.manual_seed(5)
        return contents(data.DataLoader(Squares(9), batch_size=2, shuffle=True))

    assert order() == order()
    assert order() != contents(data.DataLoader(Squares(9), batch_size=2))


def test_workers_give_the_same_batches():
    alone = contents(data.DataLoader(Squares(11), batch_size=3, shuffle=True, generator=3))
    with_workers = data.DataLoader(Squares(11), batch_size=3, shuffle=True, generator=3, num_workers=2, timeout=120)
    assert contents(with_workers) == alone


def test_persistent_workers_share_a_stream():
    loader = data.DataLoader(Stream(7), batch_size=2, num_workers=2, persistent_workers=True, timeout=120)
    first, second = (sorted(int(v) for batch in loader for v in batch.numpy()) for _ in range(2))
    assert first == second == list(range(7))
    loader.close()


def test_workers_draw_different_numbers():
    loader = data.DataLoader(Noise(4), batch_size=1, num_workers=2, timeout=120, generator=0)
    assert len({float(x.numpy()[0]) for x, _ in loader}) == 4


def test_a_dead_worker_is_an_error_and_no_hang():
    loader = data.DataLoader(Dies(6), batch_size=2, num_workers=1, timeout=120)
    with pytest.raises(data.DataLoaderWorkerError, match="ended unexpectedly"):
        list(loader)


def test_a_samples_error_reaches_the_caller():
    with pytest.raises(KeyError, match="sample three"):
        list(data.DataLoader(Fails(6), batch_size=2, num_workers=1, timeout=120))


class OddError(Exception):
    """Cannot be made again from its arguments."""

    def __init__(self, text, more):
        super().__init__(text)
        self.more = more


class FailsOddly(Squares):
    def __getitem__(self, index):
        if index == 3:
            raise OddError("sample three is odd", 3)
        return super().__getitem__(index)


def test_an_error_that_cannot_be_sent_is_told_of():
    with pytest.raises(data.DataLoaderWorkerError, match="OddError: sample three is odd"):
        list(data.DataLoader(FailsOddly(6), batch_size=2, num_workers=1, timeout=120))


ENDING = """
import os, signal, sys, time
import numpy as np
from pyflame import data

class Stuck(data.Dataset):
    def __len__(self):
        return 8
    def __getitem__(self, index):
        while index > 4:
            time.sleep(0.05)
        return np.float32(os.getpid())

if __name__ == "__main__":
    loader = data.DataLoader(Stuck(), batch_size=2, num_workers=1, persistent_workers=sys.argv[1] == "persistent")
    batches = iter(loader)
    print(int(next(batches)[0].item()), flush=True)
    if sys.argv[2] == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if sys.argv[2] == "interrupt":
        os.killpg(0, signal.SIGINT)
"""


@pytest.mark.parametrize("how", ["leave", "kill", "interrupt"])
@pytest.mark.parametrize("kind", ["persistent", "plain"])
def test_workers_end_with_their_loader(tmp_path, kind, how):
    script = tmp_path / "ending.py"
    script.write_text(ENDING)
    command = [sys.executable, str(script), kind, how]
    process = subprocess.run(command, capture_output=True, text=True, timeout=200, start_new_session=True)
    worker = int(process.stdout)
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and is_running(worker):
        time.sleep(0.01)
    assert not is_running(worker)
    assert process.stderr.count("Traceback") == (how == "interrupt")


def is_running(process):
    try:
        os.kill(process, 0)
        state = Path(f"/proc/{process}/stat").read_text() if PROC else ") R"
    except (ProcessLookupError, FileNotFoundError):
        return False
    return state.rsplit(")", 1)[1].split()[0] != "Z"  # ended, and nobody asked yet how


def test_collation_of_nests():
    batch = data.default_collate(
        [{"a": np.zeros(2), "b": (1, "x"), "c": True}, {"a": np.ones(2), "b": (2, "y"), "c": False}]
    )
    assert batch["a"].shape == [2, 2]
    assert batch["b"][0].numpy().tolist() == [1, 2]
    assert batch["b"][1] == ["x", "y"]
    assert batch["c"].dtype == pf.bool
    with pytest.raises(ValueError, match="same shape"):
        data.default_collate([np.zeros(2), np.zeros(3)])
    with pytest.raises(TypeError, match="object"):
        data.default_collate([object(), object()])


def test_batches_may_be_off_or_the_users():
    assert [int(y) for _, y in data.DataLoader(Squares(3), batch_size=None)] == [0, 1, 2]
    custom = data.DataLoader(Squares(4), batch_sampler=[[0, 3], [2]])
    assert [ys.numpy().tolist() for _, ys in custom] == [[0, 3], [2]]
    assert len(custom) == 2


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ({"batch_size": 0}, "batch_size"),
        ({"num_workers": -1}, "num_workers"),
        ({"sampler": [0], "shuffle": True}, "sampler"),
        ({"batch_sampler": [[0]], "batch_size": 3}, "batch_sampler"),
        ({"batch_size": None, "drop_last": True}, "drop_last"),
        ({"timeout": -1}, "timeout"),
    ],
)
def test_bad_settings_are_named(settings, error):
    with pytest.raises(ValueError, match=error):
        data.DataLoader(Squares(3), **settings)


def test_pinning_is_refused_with_a_warning():
    with pytest.warns(UserWarning, match="pin_memory"):
        data.DataLoader(Squares(3), pin_memory=True)


def test_samplers():
    drawn = list(data.RandomSampler(range(4), num_samples=10, generator=0))
    assert sorted(drawn[:4]) == sorted(drawn[4:8]) == list(range(4))
    assert len(drawn) == 10
    shares = [list(data.DistributedSampler(range(10), 3, rank, seed=1)) for rank in range(3)]
    assert {len(share) for share in shares} == {4}
    assert set().union(*shares) == set(range(10))
    dropped = [list(data.DistributedSampler(range(10), 3, rank, drop_last=True)) for rank in range(3)]
    assert len(set().union(*dropped)) == 9
    weighted = list(data.WeightedRandomSampler([1.0, 0.0, 1.0], 2, replacement=False, generator=0))
    assert sorted(weighted) == [0, 2]
    with pytest.raises(ValueError, match="weight"):
        data.WeightedRandomSampler([1.0, 0.0], 2, replacement=False)
    sampler = data.DistributedSampler(range(10), 2, 0)
    first = list(sampler)
    sampler.set_epoch(1)
    assert list(sampler) != first


def test_datasets():
    both = data.ConcatDataset([Squares(2), Squares(3)])
    assert [y for _, y in both] == [0, 1, 0, 1, 2]
    with pytest.raises(IndexError):
        both[5]
    parts = data.random_split(Squares(10), [7, 3], generator=0)
    assert sorted(y for part in parts for _, y in part) == list(range(10))
    assert [len(p) for p in data.random_split(range(10), [0.33, 0.33, 0.34], generator=0)] == [4, 3, 3]
    with pytest.raises(ValueError, match="lengths"):
        data.random_split(range(10), [3, 3])
    with pytest.raises(ValueError, match="same first size"):
        data.TensorDataset(np.zeros(3), np.zeros(4))


def image(height=9, width=12, channels=3):
    return np.random.default_rng(0).integers(0, 256, (height, width, channels), dtype=np.uint8)


def test_resize_equals_torch():
    torch = pytest.importorskip("torch")
    x = image(17, 23).astype(np.float64)
    planes = torch.from_numpy(x.transpose(2, 0, 1).copy())[None]
    for size in ((8, 9), (30, 40), (17, 11)):
        want = torch.nn.functional.interpolate(planes, size=size, mode="bilinear", antialias=True, align_corners=False)
        np.testing.assert_allclose(transforms.Resize(size)(x), want[0].numpy().transpose(1, 2, 0), rtol=1e-6, atol=1e-5)
    want = torch.nn.functional.interpolate(planes, size=(8, 9), mode="bicubic", antialias=True, align_corners=False)
    got = transforms.Resize((8, 9), "bicubic")(x)
    np.testing.assert_allclose(got, want[0].numpy().transpose(1, 2, 0), rtol=1e-5, atol=1e-4)


def test_arrays_and_tensors_agree():
    x = image()
    tensor = transforms.ToTensor()(x)
    assert tensor.shape == [3, 9, 12]
    for one in (transforms.Resize(6), transforms.CenterCrop((4, 20)), transforms.RandomVerticalFlip(1.0)):
        as_image = one(tensor.numpy().transpose(1, 2, 0).copy())
        np.testing.assert_allclose(one(tensor).numpy().transpose(1, 2, 0), as_image, rtol=1e-6)


def test_random_transforms_follow_the_seed():
    pipeline = transforms.Compose(
        [
            transforms.RandomCrop(6, padding=2),
            transforms.RandomHorizontalFlip(),
            transforms.RandomRotation(30, "bilinear"),
            transforms.ColorJitter(0.3, 0.3, 0.3, 0.2),
        ]
    )

    def result():
        pf.manual_seed(11)
        return pipeline(image())

    assert result().shape == (6, 6, 3)
    np.testing.assert_array_equal(result(), result())


def test_hue_turns_red_to_green():
    red = np.zeros((1, 1, 3), np.uint8)
    red[..., 0] = 200
    assert transforms.ColorJitter(hue=(1 / 3, 1 / 3))(red).tolist() == [[[0, 200, 0]]]


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda: transforms.RandomCrop(20)(image()), "does not fit"),
        (lambda: transforms.Resize(0), "positive"),
        (lambda: transforms.Resize(3, "cubic"), "interpolation"),
        (lambda: transforms.ColorJitter(hue=0.7), "hue"),
        (lambda: transforms.Normalize(0.0, 0.0), "zeros"),
        (lambda: transforms.RandomApply([], p=2.0), "p must"),
        (lambda: transforms.ColorJitter(saturation=0.5, generator=0)(np.zeros((4, 4))), "three channels"),
    ],
    ids=["crop", "size", "method", "hue", "std", "chance", "grey"],
)
def test_bad_transforms_are_named(call, error):
    with pytest.raises(ValueError, match=error):
        call()


def test_a_generator_of_the_framework_is_one_of_data():
    def drawn():
        generator = pf.Generator().manual_seed(3)
        parts = pf.utils.data.random_split(range(10), [0.5, 0.5], generator=generator)
        loader = pf.utils.data.DataLoader(pf.utils.data.TensorDataset(pf.arange(8)), shuffle=True, generator=generator)
        return [part.indices for part in parts], [int(i) for (i,) in loader], [int(i) for (i,) in loader]

    (first, second), order, next_order = drawn()
    assert sorted(first + second) == list(range(10))
    assert sorted(order) == sorted(next_order) == list(range(8))
    assert order != next_order
    assert drawn() == ([first, second], order, next_order)
