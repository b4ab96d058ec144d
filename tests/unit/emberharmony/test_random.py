"""Random numbers repeat by seed and follow their distributions."""

import numpy as np
import pytest

from emberharmony import ops, use_backend

DRAWS = {
    "random_uniform": lambda lib, **o: lib.random_uniform((500,), **o),
    "random_normal": lambda lib, **o: lib.random_normal((500,), **o),
    "random_truncated_normal": lambda lib, **o: lib.random_truncated_normal((500,), **o),
    "random_bernoulli": lambda lib, **o: lib.random_bernoulli((500,), **o),
    "random_binomial": lambda lib, **o: lib.random_binomial((500,), 0.3, 8, **o),
    "random_gamma": lambda lib, **o: lib.random_gamma((500,), 2.0, **o),
    "random_randint": lambda lib, **o: lib.random_randint((500,), 0, 100, **o),
    "random_categorical": lambda lib, **o: lib.random_categorical(lib.zeros((2, 5)), 50, **o),
    "random_permutation": lambda lib, **o: lib.random_permutation(50, **o),
    "random_shuffle": lambda lib, **o: lib.random_shuffle(lib.arange(50), **o),
}


@pytest.mark.parametrize("op", DRAWS)
def test_seeds_repeat(op, lib):
    def drawn(**options):
        return lib.to_numpy(DRAWS[op](lib, **options))

    np.testing.assert_array_equal(drawn(seed=3), drawn(seed=3))
    assert not np.array_equal(drawn(seed=3), drawn(seed=4))
    ops.set_random_seed(11)
    first, second = drawn(), drawn()
    assert not np.array_equal(first, second)
    ops.set_random_seed(11)
    np.testing.assert_array_equal(first, drawn())


MEANS = {
    "random_uniform": 0.5,
    "random_normal": 0.0,
    "random_truncated_normal": 0.0,
    "random_bernoulli": 0.5,
    "random_binomial": 2.4,
    "random_gamma": 2.0,
    "random_randint": 49.5,
}


@pytest.mark.parametrize("op", MEANS)
def test_means(op, lib):
    ops.set_random_seed(5)
    values = np.concatenate([lib.to_numpy(DRAWS[op](lib)) for _ in range(8)]).astype(np.float64)
    error = values.std() / len(values) ** 0.5
    assert abs(values.mean() - MEANS[op]) < 4 * error


def test_ranges_and_dtypes(lib):
    for dtype in ("float32", "float16", "bfloat16"):
        x = lib.random_uniform((4000,), -2.0, 3.0, dtype=dtype)
        assert lib.dtype(x) == ops.get_dtype(dtype)
        values = lib.to_numpy(x).astype(np.float64)
        assert values.min() >= -2
        assert values.max() < 3
    assert lib.dtype(lib.random_normal((2,), dtype="float16")) == np.float16
    assert abs(lib.to_numpy(lib.random_truncated_normal((2000,)))).max() <= 2
    assert sorted(lib.to_numpy(lib.random_permutation(20)).tolist()) == list(range(20))
    rows = lib.to_numpy(lib.random_shuffle(lib.reshape(lib.arange(12), (6, 2))))
    assert (rows[:, 1] - rows[:, 0] == 1).all()


def test_one_seed_means_the_same_integers_on_every_library():
    drawn = []
    for name in ("numpy", "torch", "mlx"):
        with use_backend(name) as lib:
            drawn.append(lib.to_numpy(ops.random_randint((20,), 0, 1000, seed=9)))
    np.testing.assert_array_equal(drawn[0], drawn[1])
    np.testing.assert_array_equal(drawn[0], drawn[2])
