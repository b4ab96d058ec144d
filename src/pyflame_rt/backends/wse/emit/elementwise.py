"""Elementwise kernels in CSL: vector instructions, ``@map`` or plain loops."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyflame_rt.backends.wse.emit.scalar_csl import literal, scalar_function, vector_chain
from pyflame_rt.backends.wse.plan.kernels import Lit, Ref

if TYPE_CHECKING:
    from pyflame_rt.backends.wse.emit.scalar_csl import Instruction
    from pyflame_rt.backends.wse.plan.kernels import MapKernel, PeBuffer
    from pyflame_rt.backends.wse.plan.tiling import Tiling

__all__ = ["emit_map", "loop_nest", "merged", "offset_text", "tile_strides"]


def tile_strides(tiling: Tiling) -> list[int]:
    """Steps between elements of a tile, row by row."""
    steps: list[int] = []
    step = 1
    for size in reversed(tiling.tile):
        steps.append(step)
        step *= size
    return steps[::-1]


def strides_of(tiling: Tiling, like: Tiling) -> list[int]:
    """Steps between elements along the dimensions of ``like``; 0 where the value is the same all along."""
    steps: list[int] = []
    step = 1
    for size in reversed(tiling.tile):
        steps.append(0 if size == 1 else step)
        step *= size
    steps += [0] * (len(like.shape) - len(steps))
    return steps[::-1]


def merged(extents: list[int], strides: list[list[int]]) -> tuple[list[int], list[list[int]]]:
    """The same walk with fewer dimensions.

    >>> merged([2, 3, 4], [[12, 4, 1], [0, 4, 1]])
    ([2, 12], [[12, 1], [0, 1]])
    """
    kept = [d for d, n in enumerate(extents) if n != 1]
    out: list[int] = []
    steps: list[list[int]] = [[] for _ in strides]
    for d in reversed(kept):
        if out and all(s[d] == mine[0] * out[0] for s, mine in zip(strides, steps, strict=True)):
            out[0] *= extents[d]
            continue
        out.insert(0, extents[d])
        for s, mine in zip(strides, steps, strict=True):
            mine.insert(0, s[d])
    return out, steps


def offset_text(names: list[str], steps: list[int]) -> str:
    """The place of an element from loop variables."""
    parts = [name if step == 1 else f"{name} * {step}" for name, step in zip(names, steps, strict=True) if step]
    return " + ".join(parts) or "0"


def loop_nest(extents: list[str], names: list[str], body: str) -> str:
    """Loops around statements."""
    for extent, name in zip(reversed(extents), reversed(names), strict=True):
        body = f"for (@range(i16, {extent})) |{name}| {{\n{body}\n}}"
    return body


def emit_map(name: str, kernel: MapKernel, *, optimize: bool) -> list[str]:
    """Declarations of a kernel called ``name``."""
    like = kernel.out.tiling
    arrays = [kernel.out, *kernel.operands]
    extents, strides = merged(list(like.tile), [strides_of(b.tiling, like) for b in arrays])
    if not optimize or not extents:
        return _loops(name, kernel, extents, strides)
    chain = vector_chain(kernel)
    names = [f"i{d}" for d in range(len(extents) - 1)]
    heads = [_descriptor(f"d{i}", b, extents[-1]) for i, b in enumerate(arrays) if strides[i][-1]]
    places = [offset_text(names, s[:-1]) for s in strides]
    args = [_operand(i, b, strides[i][-1], places[i]) for i, b in enumerate(arrays)]
    if chain is not None and _has_vectors(chain, strides):
        body = "\n".join(_instruction(i, args, kernel.out.dtype) for i in chain)
        functions = []
    elif not any(s[-1] for s in strides[1:]):
        return _loops(name, kernel, extents, strides)
    else:
        functions = [scalar_function(f"{name}_element", kernel)]
        body = f"@map({name}_element, {', '.join([*args[1:], args[0]])});"
    looped = loop_nest([str(n) for n in extents[:-1]], names, body)
    return [*functions, f"fn {name}() void {{\n" + "\n".join([*heads, looped]) + "\n}"]


def _loops(name: str, kernel: MapKernel, extents: list[int], strides: list[list[int]]) -> list[str]:
    names = [f"i{d}" for d in range(len(extents))]
    places = [offset_text(names, s) for s in strides]
    args = ", ".join(f"{b.slot}[{p}]" for b, p in zip(kernel.operands, places[1:], strict=True))
    body = f"{kernel.out.slot}[{places[0]}] = {name}_element({args});"
    looped = loop_nest([str(n) for n in extents], names, body)
    return [scalar_function(f"{name}_element", kernel), f"fn {name}() void {{\n{looped}\n}}"]


def _descriptor(name: str, buffer: PeBuffer, length: int) -> str:
    return f"const {name} = @get_dsd(mem1d_dsd, .{{ .tensor_access = |i|{{{length}}} -> {buffer.slot}[i] }});"


def _operand(index: int, buffer: PeBuffer, inner: int, place: str) -> str:
    if not inner:
        return f"{buffer.slot}[{place}]"
    return f"d{index}" if place == "0" else f"@increment_dsd_offset(d{index}, {place}, {buffer.dtype})"


def _has_vectors(chain: list[Instruction], strides: list[list[int]]) -> bool:
    """Whether every instruction walks along at least one source."""
    return all(
        any(s is None or (isinstance(s, Ref) and strides[s.index + 1][-1]) for s in instruction.sources)
        for instruction in chain
    )


def _instruction(instruction: Instruction, args: list[str], dtype: str) -> str:
    sources = []
    for source in instruction.sources:
        if source is None:
            sources.append(args[0])
        elif isinstance(source, Lit):
            sources.append(literal(source.value, dtype))
        else:
            sources.append(args[source.index + 1])
    return f"@{instruction.name}({args[0]}, {', '.join(sources)});"
