"""Endless programs end: loops of tasks, native loops, tasks that activate themselves; and hooks stop a run."""

import subprocess
import sys

import pytest

from tests.unit.wsesim.running import one_program
from wsesim import watch
from wsesim.fabric import Endless
from wsesim.fabric.codegen.native_runs import HOT, enabled

EXPORT = '@export_name("f", fn()void);'
LOOP = "var n: u32 = 0; fn f() void { while (true) { n += 1; } } comptime { @export_symbol(f); }"
MANY = """
var n: u32 = 0; var last: u32 = 3; var rounds: u16 = 0;
fn spin() void { var i: u32 = 0; while (i != last) { i += 1; n += i; } }
fn f() void {
  while (rounds < %d) : (rounds += 1) { if (rounds == %d) { last = 4294967295; } spin(); }
}
comptime { @export_symbol(f); }
"""
SELF = """
const id = @get_local_task_id(10);
var n: u32 = 0;
task again() void { n += 1; @activate(id); }
fn f() void { @activate(id); }
comptime { @bind_local_task(again, id); @export_symbol(f); }
"""


def endless(body, **options):
    host = one_program(body, EXPORT, **options)
    host.call("f")
    return host


@pytest.mark.parametrize("body", [LOOP, SELF], ids=["loop", "activates itself"])
def test_a_program_that_never_ends_is_stopped_and_named(body):
    host = endless(body, max_cycles=300_000)
    with pytest.raises(Endless, match=r"(?s)without a word to or from the host.*WSESIM_MAX_CYCLES.*PE \(0, 0\): task"):
        host.stop()


def test_a_program_below_the_limit_ends():
    body = "var n: u32 = 0; fn f() void { while (n < 3000) { n += 1; } sys_mod.unblock_cmd_stream(); }"
    host = endless(body + " comptime { @export_symbol(f); }", max_cycles=300_000)
    host.stop()


@pytest.mark.skipif(not enabled(), reason="no native code here")
def test_native_loops_look_at_the_watchdog_too():
    rounds = HOT + 4
    host = endless(MANY % (rounds, rounds - 1), max_cycles=20_000_000)
    with pytest.raises(Endless):
        host.stop()
    assert any(run.ready for code in host.machine.codes for run in code.native)


@pytest.mark.parametrize("body", [LOOP, SELF, MANY % (HOT + 4, HOT + 3)], ids=["loop", "task", "native"])
def test_a_hook_stops_a_run(body):
    asked = []

    def check():
        asked.append(1)
        if len(asked) > 50:
            raise TimeoutError("enough")

    host = endless(body)
    with watch.watched(check), pytest.raises(TimeoutError, match="enough"):
        host.stop()
    assert len(asked) == 51


def test_hooks_stop_compiling_and_loading():
    def check():
        raise TimeoutError("enough")

    with watch.watched(check), pytest.raises(TimeoutError, match="enough"):
        one_program(LOOP, EXPORT)


INTERRUPTED = """
import signal, sys, threading, os, time
signal.signal(signal.SIGINT, signal.default_int_handler)
from tests.unit.wsesim.fabric.test_watchdog import endless, MANY, LOOP
from wsesim.fabric.codegen.native_runs import HOT
host = endless({"native": MANY % (HOT + 4, HOT + 3), "python": LOOP}[sys.argv[1]])
began = threading.Event()
def kick():
    began.wait()
    os.kill(os.getpid(), signal.SIGINT)
threading.Thread(target=kick, daemon=True).start()
if sys.argv[1] == "python":
    began.set()
else:
    from wsesim.fabric import pe
    look = pe.PE.look
    pe.PE.look = lambda self, extra=0.0: (began.set() if extra else None, look(self, extra))[1]
try:
    host.stop()
except KeyboardInterrupt:
    print("interrupted")
"""


@pytest.mark.parametrize("kind", ["native", "python"])
def test_ctrl_c_stops_loops(kind):
    if kind == "native" and not enabled():
        pytest.skip("no native code here")
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED, kind], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.stdout.strip() == "interrupted", done.stderr
