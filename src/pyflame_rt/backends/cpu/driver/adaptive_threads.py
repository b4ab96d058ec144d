"""Runs that find out whether threads come in time, and do without where they do not.

Threads come late beside programs that keep the cores busy, and after pauses in which they have fallen asleep. Runs of
some microseconds then wait longer for them than they save. Longer runs wait in every step, and those who wait use up
the time that the system gives them, so that on two threads they take longer than on one.

A plan notes what its runs take on one thread and on several; where several take longer, one is used for a while.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from pyflame_rt.backends.cpu.ir.loops import when

if TYPE_CHECKING:
    from pyflame_rt.backends.cpu.ir.builder import Builder, V

__all__ = ["CLOCK", "FIRST", "LONG", "LONG_PAUSE", "PAUSE", "emit_threads", "emit_watched", "least"]

# The clock that time.perf_counter_ns reads, so that both count from the same moment.
CLOCK = 8 if sys.platform == "darwin" else 1
LONG = 2  # how plans are watched whose runs are not short
# What a late run adds to doubt, how much of it is too much; runs on one thread that follow then, at first and at most.
_LATE, _DOUBTFUL = 4, 8
# Longer runs begin with short pauses: where only a moment was lost to others, 32 of mobilenet's took 0.3 s.
PAUSE, LONG_PAUSE, _LONGEST_PAUSE = 32, 8, 1024
_CALMER = 3  # a run that came in time shortens the next pause by an eighth: what was noise is soon forgotten
_LOOK = 256  # runs on several threads after which short ones are made on one, to see what that takes now
_UNJUDGED = 2  # runs on several threads after such on one: a thread that sleeps has to wake first
FIRST = 3  # runs on one thread before the first on several, or before these are judged
_MOST = 1_000_000_000  # nanoseconds that longer runs on one thread may take together
# A thread that waits for its turn behind others costs as much as many runs: one such run is enough, be it the first
# after a pause; as much time as it took is then spent on one thread. It takes 8 times what a run on one thread does,
# and what waking may take, in nanoseconds.
_FAR, _WAKING = 3, 500_000


def emit_watched(b: Builder, plan: Any, stamps: str) -> str:
    """A run that is timed, on one thread or on several; its status."""
    left, moment = plan.load("left"), plan.load("clock")
    single = b.op(f"icmp sgt i64 {left}, 0")
    plan.store("single", b.op(f"zext i1 {single} to i64"))
    levels = plan.load("set_level")
    changes = b.op(f"and i1 {single}, {b.op(f'icmp ne ptr {levels}, null')}")
    when(b, changes, [], lambda _: _one_thread(b, plan))
    b.do(f"call i32 {moment}(i32 {CLOCK}, ptr {stamps})")
    status = b.op("call i64 @pyflame_steps(ptr %plan, ptr %io)")
    b.do(f"call i32 {moment}(i32 {CLOCK}, ptr {b.element('i64', stamps, '2')})")
    when(b, changes, [], lambda _: _set_level(b, plan, plan.load("level")))
    words = [b.op(f"load i64, ptr {b.element('i64', stamps, str(k))}") for k in range(4)]
    seconds = b.integer(f"mul {b.integer(f'sub {words[2]}, {words[0]}')}, 1000000000")
    took = b.integer(f"add {seconds}, {b.integer(f'sub {words[3]}, {words[1]}')}")
    one, several, done = b.label("one"), b.label("several"), b.label("noted")
    b.branch(single, one, several)
    b.place(one)
    _note_single(b, plan, left, took)
    b.jump(done)
    b.place(several)
    _note_several(b, plan, took)
    b.jump(done)
    b.place(done)
    return status


def emit_threads(b: Builder, plan: Any, step: Any, *, back: bool) -> None:
    """A primitive that needs the threads it was made for gets them, also in runs on one thread."""
    changed = b.op(f"icmp ne ptr {plan.load('set_level')}, null")
    single = b.op(f"icmp ne i64 {plan.load('single')}, 0")
    needed = b.op(f"icmp eq i64 {step.load('pieces')}, 0")
    both = b.op(f"and i1 {changed}, {b.op(f'and i1 {single}, {needed}')}")
    when(b, both, [], lambda _: _set_level(b, plan, "0" if back else plan.load("level")))


def _one_thread(b: Builder, plan: Any) -> list[V]:
    level = b.op(f"call i32 {plan.load('get_level')}()")
    plan.store("level", b.op(f"sext i32 {level} to i64"))
    return _set_level(b, plan, "0")


def _set_level(b: Builder, plan: Any, level: str) -> list[V]:
    number = b.op(f"trunc i64 {level} to i32")
    b.do(f"call void {plan.load('set_level')}(i32 {number})")
    return []


def _note_single(b: Builder, plan: Any, left: str, took: str) -> None:
    """The least time counts, but is forgotten little by little: the machine may have become slower."""
    plan.store("left", b.integer(f"sub {left}, 1"))
    plan.store("doubt", str(-_UNJUDGED))
    plan.store("alone", _lately(b, took, plan.load("alone"), 3))


def _lately(b: Builder, took: str, known: str, shift: int) -> str:
    """The least of what runs took lately; nothing is known at first."""
    risen = b.integer(f"add {known}, {b.integer(f'lshr {known}, {shift}')}")
    return b.op(f"select i1 {b.op(f'icmp eq i64 {known}, 0')}, i64 {took}, i64 {least(b, took, risen)}")


def _note_several(b: Builder, plan: Any, took: str) -> None:
    """Two runs of a few that came late are enough for a pause, ever longer ones as long as few come in time between.

    Late is what takes longer than on one thread. As long as nobody knows what that is, it is what takes nearly as many
    times longer than other runs did as there are threads; the pause that follows is then just long enough to know.
    """
    alone, doubt, pause = plan.load("alone"), plan.load("doubt"), plan.load("pause")
    long = b.op(f"icmp eq i64 {plan.load('watched')}, {LONG}")
    unknown = b.op(f"icmp eq i64 {alone}, 0")
    best = _lately(b, took, plan.load("best"), 5)
    plan.store("best", best)
    together = b.integer(f"mul {best}, {plan.load('num_threads')}")
    far = b.integer(f"sub {together}, {b.integer(f'lshr {together}, 3')}")
    margin = b.integer(f"lshr {alone}, {b.op(f'select i1 {long}, i64 3, i64 2')}")
    most = b.op(f"select i1 {unknown}, i64 {far}, i64 {b.integer(f'add {alone}, {margin}')}")
    late = b.op(f"icmp ugt i64 {took}, {most}")
    bearable = b.integer(f"add {b.integer(f'shl {alone}, {_FAR}')}, {_WAKING}")
    lost = b.op(f"select i1 {unknown}, i1 false, i1 {b.op(f'icmp ugt i64 {took}, {bearable}')}")
    less = b.op(f"select i1 {b.op(f'icmp sgt i64 {doubt}, 0')}, i64 {b.integer(f'sub {doubt}, 1')}, i64 0")
    judged = b.op(f"select i1 {late}, i64 {b.integer(f'add {doubt}, {_LATE}')}, i64 {less}")
    waking = b.op(f"icmp slt i64 {doubt}, 0")
    now = b.op(f"select i1 {waking}, i64 {b.integer(f'add {doubt}, 1')}, i64 {judged}")
    plan.store("doubt", now)
    stop = b.op(f"or i1 {b.op(f'icmp sge i64 {now}, {_DOUBTFUL}')}, {lost}")
    tried = b.integer(f"add {plan.load('tried')}, 1")
    plan.store("tried", tried)
    often = b.op(f"icmp eq i64 {b.integer(f'and {tried}, {_LOOK - 1}')}, 0")
    first = b.op(f"select i1 {long}, i64 {LONG_PAUSE}, i64 {PAUSE}")
    unjudged = b.op(f"or i1 {late}, {waking}")
    usual = b.op(f"select i1 {unjudged}, i64 {pause}, i64 {_shortened(b, pause, first)}")
    longer = least(b, b.integer(f"shl {pause}, 1"), str(_LONGEST_PAUSE))
    plan.store("pause", b.op(f"select i1 {stop}, i64 {longer}, i64 {usual}"))
    known = b.integer(f"or {alone}, 1")
    some = b.integer(f"add {b.integer(f'udiv {_MOST}, {known}')}, 1")
    as_much = _most(b, pause, b.integer(f"udiv {took}, {known}"))
    wanted = b.op(f"select i1 {lost}, i64 {as_much}, i64 {pause}")
    rest = b.op(f"select i1 {long}, i64 {least(b, wanted, some)}, i64 {wanted}")
    rest = b.op(f"select i1 {unknown}, i64 {FIRST}, i64 {rest}")
    look = b.op(f"select i1 {b.op(f'xor i1 {long}, true')}, i1 {often}, i1 false")
    plan.store("left", b.op(f"select i1 {stop}, i64 {rest}, i64 {b.op(f'zext i1 {look} to i64')}"))


def _shortened(b: Builder, pause: str, first: str) -> str:
    """The pause after a run that came in time, not below the first one."""
    shorter = b.integer(f"sub {pause}, {b.integer(f'lshr {pause}, {_CALMER}')}")
    return b.op(f"select i1 {b.op(f'icmp ult i64 {shorter}, {first}')}, i64 {first}, i64 {shorter}")


def _most(b: Builder, x: str, y: str) -> str:
    """The greater of two numbers."""
    return b.op(f"select i1 {b.op(f'icmp ugt i64 {x}, {y}')}, i64 {x}, i64 {y}")


def least(b: Builder, x: str, y: str) -> str:
    """The lesser of two numbers."""
    return b.op(f"select i1 {b.op(f'icmp ult i64 {x}, {y}')}, i64 {x}, i64 {y}")
