"""Our dataclass against the standard library's."""

import copy
import dataclasses
import inspect
import pickle
from typing import ClassVar

import pytest

from pyflame_rt.graph.records import dataclass as ours


def family(decorate):
    @decorate(frozen=True, slots=True)
    class Point:
        x: int
        y: int = 2
        names: list[str] = dataclasses.field(default_factory=list, compare=False)
        kind: ClassVar[str] = "point"

    @decorate(frozen=True, slots=True)
    class Point3(Point):
        z: float = dataclasses.field(default=1.0, repr=False)

    @decorate()
    class Open:
        a: int
        b: int = 0
        twice: int = dataclasses.field(init=False)

        def __post_init__(self):
            self.twice = 2 * self.a

    @decorate(eq=False)
    class Same:
        a: int = 1

    @decorate(frozen=True)
    class Single:
        value: object

        def __repr__(self):
            return "mine"

    return Point, Point3, Open, Same, Single


PAIRS = list(zip(family(ours), family(dataclasses.dataclass), strict=True))


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair[0].__name__)
def test_fields_signatures_and_match_arguments_are_the_same(pair):
    mine, theirs = pair
    assert [f.name for f in dataclasses.fields(mine)] == [f.name for f in dataclasses.fields(theirs)]
    assert str(inspect.signature(mine)).replace("<factory>", "") != ""
    assert list(inspect.signature(mine).parameters) == list(inspect.signature(theirs).parameters)
    assert mine.__match_args__ == theirs.__match_args__
    assert dataclasses.is_dataclass(mine)
    assert (mine.__hash__ is None) == (theirs.__hash__ is None)
    assert getattr(mine, "__slots__", None) == getattr(theirs, "__slots__", None)


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair[0].__name__)
@pytest.mark.parametrize(
    ("args", "options"), [((1,), {}), ((), {}), ((1, 5), {}), ((1,), {"a": 2}), ((1, 2, 3, 4, 5), {})]
)
def test_construction_gives_or_refuses_the_same(pair, args, options):
    made = []
    for kind in pair:
        try:
            made.append(repr(kind(*args, **options)))
        except TypeError:
            made.append("TypeError")
    assert made[0] == made[1]


@pytest.mark.parametrize("which", range(5))
def test_first_objects_are_made_as_later_ones(which):
    mine, theirs = family(ours)[which], family(dataclasses.dataclass)[which]
    stands_in, calls = mine.__init__, [((1,), {}), ((), {}), ((1, 5), {}), ((), {next(iter(mine.__match_args__)): 7})]
    made = []
    for i in range(160):
        args, options = calls[i % 4]
        try:
            wanted = theirs(*args, **options)
        except TypeError:
            continue
        made.append(mine(*args, **options))
        assert all(getattr(made[-1], f.name) == getattr(wanted, f.name) for f in dataclasses.fields(wanted))
        if len(made) < 20:
            assert mine.__init__ is stands_in
    assert mine.__init__ is not stands_in


def test_an_overridden_setter_sees_every_field():
    @ours()
    class Counted:
        a: int
        b: int = 2

        def __setattr__(self, name, value):
            object.__setattr__(self, name, 10 * value)

    assert [(c.a, c.b) for c in (Counted(1), Counted(b=3, a=1))] == [(10, 20), (10, 30)]


@pytest.mark.parametrize(("args", "options"), [((), {}), ((1, 2, 3, 4), {}), ((1,), {"x": 2}), ((1,), {"other": 2})])
def test_refusals_read_as_the_standard_ones(args, options):
    texts = []
    for kind in (family(ours)[0], family(dataclasses.dataclass)[0]):
        with pytest.raises(TypeError) as caught:
            kind(*args, **options)
        texts.append(str(caught.value).rpartition("Point.")[2])
    assert texts[0] == texts[1]


def test_comparing_and_hashing():
    point, point3, _, same, single = family(ours)
    assert point(1, names=["a"]) == point(1, names=["b"]) != point(2)
    assert hash(point(1, names=["a"])) == hash(point(1))
    assert point(1) != point3(1)
    assert point(1).__eq__(3) is NotImplemented
    one = same()
    assert one == one
    assert one != same()
    nan = float("nan")
    assert single(nan) == single(nan)


def test_frozen_objects_stay_as_they_are():
    point = family(ours)[0](1)
    with pytest.raises(dataclasses.FrozenInstanceError):
        point.x = 2
    with pytest.raises(dataclasses.FrozenInstanceError):
        del point.x
    with pytest.raises(AttributeError):
        point.other = 2
    assert dataclasses.replace(point, y=7).y == 7
    assert dataclasses.asdict(point) == {"x": 1, "y": 2, "names": []}
    assert copy.deepcopy(point) == point
    assert point.names is not family(ours)[0](1).names


@ours(frozen=True, slots=True)
class Kept:
    a: int
    b: tuple[int, ...] = ()


@ours(slots=True)
class Loose:
    a: int


def test_pickles():
    for value in (Kept(1, (2, 3)), Kept(4)):
        assert pickle.loads(pickle.dumps(value, 5)) == value  # noqa: S301 - our own
    assert pickle.loads(pickle.dumps(Loose(3), 5)).a == 3  # noqa: S301 - our own


def test_mutable_defaults_are_refused():
    with pytest.raises(ValueError, match="default_factory"):

        @ours()
        class Wrong:
            items: list[int] = []  # noqa: RUF012 - what is tested


def test_inheritance_mixes_with_the_standard_library():
    @dataclasses.dataclass(frozen=True)
    class Below(Kept):
        c: int = 0

    assert Below(1, (2,), 3) == Below(1, (2,), 3)

    class Plain(Kept):
        pass

    assert Plain(1).a == 1
    assert list(inspect.signature(Plain).parameters) == ["a", "b"]


def test_cycles_can_be_printed():
    loose = Loose(0)
    loose.a = [loose]
    assert "..." in repr(loose)
