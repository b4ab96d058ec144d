"""Bounds tests for kernels: every address is looked up among the operands of its step before it is used.

The IR of a kernel is rewritten as text, so any kernel is covered without knowing of it. A table says which memory a
step may touch; the slot before the first operand points to it. An address outside, unless it is the kernel's own stack,
is noted there, and a harmless place is used instead, so that the process lives to tell.

The table, 8-byte words: number of ranges, first bad address (0: none), bytes wanted there, address of the harmless
place, then begin and end of each range.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from pyflame_rt.backends.cpu.jit.compiler import address_of, compiling, kernel_ir, symbol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyflame_rt.backends.cpu.ir.kernel_program import Kernel

__all__ = ["HEADER", "SINK_BYTES", "checked_address", "with_checks"]

HEADER = 4  # words of the table before its ranges
SINK_BYTES = 4096
STACK_BYTES = 1 << 16  # of the frames just above are a kernel's own: buffers it hands to its helpers

_INSIDE = """
define internal ptr @pf_inside(ptr %table, ptr %p, i64 %size) nounwind {
entry:
  %here = alloca i8
  %count = load i64, ptr %table
  %low = ptrtoint ptr %p to i64
  %high = add i64 %low, %size
  %empty = icmp sle i64 %size, 0
  br i1 %empty, label %good, label %look
look:
  %k = phi i64 [ 0, %entry ], [ %k.next, %next ]
  %more = icmp ult i64 %k, %count
  br i1 %more, label %range, label %own
range:
  %twice = shl i64 %k, 1
  %at = add i64 %twice, 4
  %begin.p = getelementptr i64, ptr %table, i64 %at
  %end.p = getelementptr i64, ptr %begin.p, i64 1
  %begin = load i64, ptr %begin.p
  %end = load i64, ptr %end.p
  %above = icmp uge i64 %low, %begin
  %below = icmp ule i64 %high, %end
  %fits = and i1 %above, %below
  br i1 %fits, label %good, label %next
next:
  %k.next = add i64 %k, 1
  br label %look
good:
  ret ptr %p
own:
  %frame = ptrtoint ptr %here to i64
  %above.frame = sub i64 %low, %frame
  %on.stack = icmp ult i64 %above.frame, {stack}
  br i1 %on.stack, label %good, label %bad
bad:
  %bad.p = getelementptr i64, ptr %table, i64 1
  %old = cmpxchg ptr %bad.p, i64 0, i64 %low monotonic monotonic
  %size.p = getelementptr i64, ptr %table, i64 2
  store atomic i64 %size, ptr %size.p monotonic, align 8
  %sink.p = getelementptr i64, ptr %table, i64 3
  %sink = load ptr, ptr %sink.p
  ret ptr %sink
}
""".replace("{stack}", str(STACK_BYTES))

_DEFINE = re.compile(r"^define (?P<kind>.*?)@(?P<name>[\w.$]+)\((?P<args>.*?)\)(?P<rest>.*)$")
_LOAD = re.compile(r"^(?P<head>\s*%[\w.]+ = load (?:atomic )?(?P<kind>.+?)), ptr (?P<at>%[\w.]+)(?P<tail>.*)$")
_STORE = re.compile(r"^(?P<head>\s*store (?:atomic )?(?P<kind>.+)), ptr (?P<at>%[\w.]+)(?P<tail>.*)$")
_CALL = re.compile(r"^(?P<head>.*call .*?)@(?P<name>[\w.$]+)\((?P<args>.*)\)(?P<tail>.*)$")
_LOCAL = re.compile(r"^\s*(?P<name>%[\w.]+) = (?:alloca|getelementptr .*?, ptr (?P<base>%[\w.]+))")
_SIZES = {"float": 4, "double": 8, "half": 2, "bfloat": 2, "ptr": 8}


def checked_address(kernel: Kernel) -> int:
    """Address of a kernel with bounds tests; it reads the table's address from the slot before its operands."""
    name = symbol("checked" + kernel.key)
    with compiling(quick=False):
        return address_of(name, with_checks(kernel_ir(kernel, name), name))


def with_checks(module: str, entry: str) -> str:
    """The module with every access looked up; ``entry`` keeps its signature, the table comes through its operands.

    Example:
        >>> lines = ["define void @f(ptr %bufs, ptr %params, i64 %begin, i64 %end) {", "entry:", "  ret void", "}"]
        >>> "pf_inside" in with_checks(chr(10).join(lines), "f")
        True
    """
    lines = module.splitlines()
    own = {found["name"] for line in lines if (found := _DEFINE.match(line))}
    writer = _Rewriter(own)
    body = "\n".join(writer.line(line) for line in lines)
    declares = "declare i64 @llvm.ctlz.i64(i64, i1)\n" if "declare i64 @llvm.ctlz.i64(" not in module else ""
    return declares + _INSIDE + body + _entry(entry)


def _entry(name: str) -> str:
    return f"""
define void @{name}(ptr %bufs, ptr %params, i64 %begin, i64 %end) nounwind {{
entry:
  %slot = getelementptr ptr, ptr %bufs, i64 -1
  %table = load ptr, ptr %slot
  call void @{name}.pf(ptr %bufs, ptr %params, i64 %begin, i64 %end, ptr %table)
  ret void
}}
"""


def size_of(kind: str) -> int:
    """Bytes of an IR type (what may follow it is ignored).

    Example:
        >>> size_of("<8 x float>"), size_of("i1 true"), size_of("<4 x i64> %v")
        (32, 1, 32)
    """
    vector = re.match(r"^<(\d+) x ([\w]+)>", kind)
    if vector:
        return int(vector[1]) * size_of(vector[2])
    word = kind.split()[0]
    if word in _SIZES:
        return _SIZES[word]
    integer = re.match(r"^i(\d+)$", word)
    if integer is None:
        raise ValueError(f"the size of the IR type {kind!r} is not known")
    return (int(integer[1]) + 7) // 8


def split_args(text: str) -> list[str]:
    """Arguments of a call, parted at commas that are not inside brackets.

    Example:
        >>> split_args("<2 x i1> <i1 true, i1 false>, ptr %p")
        ['<2 x i1> <i1 true, i1 false>', 'ptr %p']
    """
    parts, depth, start = [], 0, 0
    for i, c in enumerate(text):
        depth += (c in "<([{") - (c in ">)]}")
        if c == "," and depth == 0:
            parts.append(text[start:i].strip())
            start = i + 1
    last = text[start:].strip()
    return [*parts, last] if last else parts


class _Rewriter:
    """Rewrites a module line by line."""

    def __init__(self, own: set[str]) -> None:
        self.own = own
        self.count = 0
        self.local: set[str] = set()
        self.out: list[str] = []

    def line(self, text: str) -> str:
        """What replaces a line."""
        self.out = []
        self.out.append(self._rewritten(text))
        return "\n".join(self.out)

    def _rewritten(self, text: str) -> str:
        defined = _DEFINE.match(text)
        if defined is not None:
            self.local = set()
            args = f"{defined['args']}, ptr %pf.table" if defined["args"] else "ptr %pf.table"
            kind = "internal " + defined["kind"].replace("internal ", "")
            return f"define {kind}@{defined['name']}.pf({args}){defined['rest']}"
        local = _LOCAL.match(text)
        if local is not None and (local["base"] is None or local["base"] in self.local):
            self.local.add(local["name"])
            return text
        for pattern in (_LOAD, _STORE):
            found = pattern.match(text)
            if found is not None and found["at"] not in self.local:
                place = self._inside(found["at"], str(size_of(found["kind"])))
                return f"{found['head']}, ptr {place}{found['tail']}"
        call = None if text.startswith("declare") else _CALL.match(text)
        return text if call is None else self._call(call)

    def _call(self, call: re.Match[str]) -> str:
        name, args = call["name"], split_args(call["args"])
        if name in self.own:
            return f"{call['head']}@{name}.pf({', '.join([*args, 'ptr %pf.table'])}){call['tail']}"
        if name.startswith(("llvm.masked.load.", "llvm.masked.store.")):
            args = self._masked(args, 0 if ".load." in name else 1)
        elif name.startswith(("llvm.masked.gather.", "llvm.masked.scatter.")):
            args = self._lanes(call, args, 0 if ".gather." in name else 1)
        elif name.startswith(("llvm.memcpy.", "llvm.memmove.", "llvm.memset.")):
            args = self._block(args, 1 if ".memset." in name else 2)
        return f"{call['head']}@{name}({', '.join(args)}){call['tail']}"

    def _new(self, text: str) -> str:
        self.count += 1
        name = f"%pf.{self.count}"
        self.out.append(f"  {name} = {text}")
        return name

    def _inside(self, pointer: str, size: str) -> str:
        return self._new(f"call ptr @pf_inside(ptr %pf.table, ptr {pointer}, i64 {size})")

    def _masked(self, args: Sequence[str], which: int) -> list[str]:
        """As many elements as lie up to the last lane of the mask."""
        pointer, mask = args[which].split()[-1], args[which + 2]
        data = args[3] if which == 0 else args[0]
        lanes = int(mask[1:].split()[0])
        bits = self._new(f"bitcast {mask} to i{lanes}")
        wide = bits if lanes == 64 else self._new(f"zext i{lanes} {bits} to i64")
        free = self._new(f"call i64 @llvm.ctlz.i64(i64 {wide}, i1 false)")
        used = self._new(f"sub i64 64, {free}")
        size = self._new(f"mul i64 {used}, {size_of(data) // lanes}")
        place = self._inside(pointer, size)
        return [*args[:which], f"ptr {place}", *args[which + 1 :]]

    def _lanes(self, call: re.Match[str], args: Sequence[str], which: int) -> list[str]:
        """Each lane of the mask on its own."""
        mask = args[which + 2]
        lanes = int(mask[1:].split()[0])
        data = args[3] if which == 0 else args[0]
        element, pointers, kind = size_of(data) // lanes, args[which].split("> ", 1)[1], f"<{lanes} x ptr>"
        for lane in range(lanes):
            used = self._new(f"extractelement {mask}, i64 {lane}")
            size = self._new(f"select i1 {used}, i64 {element}, i64 0")
            one = self._new(f"extractelement {kind} {pointers}, i64 {lane}")
            pointers = self._new(f"insertelement {kind} {pointers}, ptr {self._inside(one, size)}, i64 {lane}")
        del call
        return [*args[:which], f"{kind} {pointers}", *args[which + 1 :]]

    def _block(self, args: Sequence[str], pointers: int) -> list[str]:
        """All bytes of a copy, or none where one end of it is outside."""
        length = args[2].split()[-1]
        places = []
        for k in range(pointers):
            given = args[k].split()[-1]
            place = self._inside(given, length)
            same = self._new(f"icmp eq ptr {place}, {given}")
            length = self._new(f"select i1 {same}, i64 {length}, i64 0")
            places.append(f"ptr {place}")
        return [*places, *args[pointers:2], f"i64 {length}", *args[3:]]
