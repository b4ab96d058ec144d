"""Losses against torch's, with all reductions and settings, in float64."""

import numpy as np
import pytest

import pyflame as pf
from pyflame_rt.graph.errors import ShapeMismatchError

torch = pytest.importorskip("torch")
RNG = np.random.default_rng(0)
N, C = 6, 5
LOGITS = RNG.normal(size=(N, C))
LABELS = np.array([0, 4, 2, 2, 1, 3])
IGNORED = np.array([0, -100, 2, 2, -100, 3])
CHANCE = RNG.uniform(0.05, 0.95, size=(N, C))
SIMPLEX = RNG.dirichlet(np.ones(C), size=N)
BITS = RNG.integers(0, 2, size=(N, C)).astype(float)
SIGNS = np.array([1.0, -1, 1, 1, -1, -1])
WEIGHT = RNG.uniform(0.5, 2, size=C)
OTHER = RNG.normal(size=(N, C))
LISTS = np.array(
    [[3, 0, -1, 1, 2], [-1, 0, 0, 0, 0], [0, 1, 2, 3, 4], [4, -1, -1, 2, 1], [1, 2, -1, 0, 0], [2, 2, -1, 0, 0]]
)
THIRD = RNG.normal(size=(N, C))
IMAGES, MAPS = RNG.normal(size=(2, C, 3, 4)), RNG.integers(0, C, size=(2, 3, 4))

CASES = [
    ("MSELoss", {}, (LOGITS, OTHER)),
    ("L1Loss", {}, (LOGITS, OTHER)),
    ("SmoothL1Loss", {"beta": 0.5}, (LOGITS, OTHER)),
    ("SmoothL1Loss", {"beta": 0.0}, (LOGITS, OTHER)),
    ("HuberLoss", {"delta": 0.7}, (LOGITS, OTHER)),
    ("BCELoss", {}, (CHANCE, BITS)),
    ("BCELoss", {"weight": WEIGHT}, (CHANCE, BITS)),
    ("BCEWithLogitsLoss", {}, (LOGITS, BITS)),
    ("BCEWithLogitsLoss", {"pos_weight": WEIGHT, "weight": WEIGHT}, (LOGITS, BITS)),
    ("KLDivLoss", {}, (np.log(CHANCE), SIMPLEX)),
    ("KLDivLoss", {"log_target": True}, (np.log(CHANCE), np.log(SIMPLEX))),
    ("NLLLoss", {}, (LOGITS, LABELS)),
    ("NLLLoss", {"weight": WEIGHT}, (LOGITS, IGNORED)),
    ("NLLLoss", {"ignore_index": 2}, (LOGITS, LABELS)),
    ("CrossEntropyLoss", {}, (LOGITS, LABELS)),
    ("CrossEntropyLoss", {"weight": WEIGHT}, (LOGITS, IGNORED)),
    ("CrossEntropyLoss", {"label_smoothing": 0.1}, (LOGITS, IGNORED)),
    ("CrossEntropyLoss", {"label_smoothing": 0.1, "weight": WEIGHT}, (LOGITS, IGNORED)),
    ("CrossEntropyLoss", {}, (LOGITS, SIMPLEX)),
    ("CrossEntropyLoss", {"weight": WEIGHT, "label_smoothing": 0.2}, (LOGITS, SIMPLEX)),
    ("CrossEntropyLoss", {}, (IMAGES, MAPS)),
    ("CrossEntropyLoss", {}, (LOGITS[0], LABELS[0])),
    ("PoissonNLLLoss", {}, (LOGITS, np.abs(OTHER))),
    ("PoissonNLLLoss", {"log_input": False, "full": True}, (CHANCE, 3 * CHANCE)),
    ("GaussianNLLLoss", {"full": True}, (LOGITS, OTHER, CHANCE)),
    ("CosineEmbeddingLoss", {"margin": 0.1}, (LOGITS, OTHER, SIGNS)),
    ("MarginRankingLoss", {"margin": 0.1}, (LOGITS[:, 0], OTHER[:, 0], SIGNS)),
    ("HingeEmbeddingLoss", {}, (LOGITS[:, 0], SIGNS)),
    ("SoftMarginLoss", {}, (LOGITS[:, 0], SIGNS)),
    ("MultiMarginLoss", {"p": 2, "margin": 0.5}, (LOGITS, LABELS)),
    ("MultiLabelSoftMarginLoss", {}, (LOGITS, BITS)),
    ("MultiLabelSoftMarginLoss", {"weight": WEIGHT}, (LOGITS, BITS)),
    ("MultiLabelSoftMarginLoss", {}, (IMAGES, (IMAGES > 0) * 1.0)),
    ("MultiLabelMarginLoss", {}, (LOGITS, LISTS)),
    ("MultiLabelMarginLoss", {}, (LOGITS[0], LISTS[1])),
    ("TripletMarginLoss", {"swap": True}, (LOGITS, OTHER, THIRD)),
]


IDS = [f"{name}-{'-'.join(settings)}-{number}" for number, (name, settings, _) in enumerate(CASES)]


@pytest.mark.filterwarnings("ignore:reduction. 'mean' divides:UserWarning")  # torch's, about its own KLDivLoss
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize(("name", "settings", "arrays"), CASES, ids=IDS)
def test_loss_equals_torch(name, settings, arrays, reduction):
    def made(library, convert):
        plain = {k: convert(v) if isinstance(v, np.ndarray) else v for k, v in settings.items()}
        return getattr(library, name)(**plain, reduction=reduction)

    mine = [pf.from_numpy(np.asarray(a)) for a in arrays]
    others = [torch.from_numpy(np.asarray(a)) for a in arrays]
    mine[0].requires_grad_(), others[0].requires_grad_()
    got, want = made(pf.nn, pf.from_numpy)(*mine), made(torch.nn, torch.from_numpy)(*others)
    np.testing.assert_allclose(got.numpy(), want.detach().numpy(), rtol=1e-9, atol=1e-12)
    got.sum().backward(), want.sum().backward()
    np.testing.assert_allclose(mine[0].grad.numpy(), others[0].grad.numpy(), rtol=1e-8, atol=1e-12)


def test_kl_batchmean():
    got = pf.nn.KLDivLoss(reduction="batchmean")(pf.from_numpy(np.log(CHANCE)), pf.from_numpy(SIMPLEX))
    want = torch.nn.KLDivLoss(reduction="batchmean")(torch.from_numpy(np.log(CHANCE)), torch.from_numpy(SIMPLEX))
    np.testing.assert_allclose(got.numpy(), want.numpy(), rtol=1e-9)


def test_the_enum_is_a_reduction():
    loss = pf.nn.MSELoss(reduction=pf.nn.Reduction.SUM)
    assert loss(pf.ones([3]), pf.zeros([3])).item() == 3.0


def test_bad_settings_are_refused():
    with pytest.raises(ValueError, match="average"):
        pf.nn.MSELoss(reduction="average")
    with pytest.raises(ValueError, match="label_smoothing"):
        pf.nn.CrossEntropyLoss(label_smoothing=2.0)(pf.zeros([1, 2]), pf.zeros([1]))
    with pytest.raises(ShapeMismatchError):
        pf.nn.BCELoss()(pf.zeros([2]), pf.zeros([3]))
    with pytest.raises(TypeError, match="target"):
        pf.nn.MSELoss()(pf.zeros([2]))


def test_scores_of_a_few_rows_at_a_time_take_less_memory_and_give_the_same():
    rng = np.random.default_rng(0)
    x, w = rng.normal(size=(64, 4)).astype(np.float32), rng.normal(size=(50, 4)).astype(np.float32)
    target = pf.from_numpy(rng.integers(0, 50, 64))
    found = []
    for options in (None, pf.nn.LinearCrossEntropyOptions(batch_chunk_size=8)):
        a, b = pf.from_numpy(x).requires_grad_(), pf.from_numpy(w).requires_grad_()
        loss = pf.nn.functional.linear_cross_entropy(a, b, target, options=options)
        sizes = [int(np.prod(node.output_shape)) for node in pf.get_graph(loss).nodes]
        loss.backward()
        found.append((loss.item(), a.grad.numpy(), b.grad.numpy(), max(sizes)))
    (whole, *whole_grads, most), (parts, *part_grads, least) = found
    assert parts == pytest.approx(whole, rel=1e-6)
    for one, other in zip(part_grads, whole_grads, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)
    assert most == 64 * 50
    assert least < most


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"batch_chunk_size": 0}, "positive"),
        ({"chunking_method": "halves"}, "chunking_method"),
        ({"chunking_method": "aspect_ratio:"}, "chunking_method"),
    ],
)
def test_bad_ways_to_part_rows_are_named(settings, match):
    with pytest.raises(ValueError, match=match):
        pf.nn.LinearCrossEntropyOptions(**settings)


def test_two_ways_to_part_rows_that_disagree():
    options = pf.nn.LinearCrossEntropyOptions(3, "aspect_ratio")
    with pytest.raises(ValueError, match="disagree"):
        pf.nn.LinearCrossEntropyLoss(4, 9, options=options)(pf.ones([8, 4]), pf.zeros([8], dtype=pf.int64))


@pytest.mark.parametrize(
    ("x", "w", "settings", "match"),
    [
        ([2, 3, 4], [5, 4], {}, "1 or 2 dimensions"),
        ([2, 3], [5, 4], {}, "last dimension"),
        ([2, 4], [5, 4], {"linear_bias": [4]}, "linear_bias"),
        ([4], [5, 2, 4], {}, "inputs of 2 dimensions"),
    ],
)
def test_shapes_that_do_not_fit_a_linear_cross_entropy(x, w, settings, match):
    given = {key: pf.ones(value) for key, value in settings.items()}
    with pytest.raises(ShapeMismatchError, match=match):
        pf.nn.functional.linear_cross_entropy(pf.ones(x), pf.ones(w), pf.zeros([2], dtype=pf.int64), **given)
