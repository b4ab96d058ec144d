"""What the host does with a program. ``run.py`` of a generated directory contains these functions as they are."""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["HostError", "evaluate", "gather", "run_pass", "run_program", "scatter"]


class HostError(ValueError):
    """Data that the program cannot take."""


def cuts_of(axes: str, rows: int, cols: int) -> int:
    """Into how many pieces a dimension along these axes is cut."""
    return (rows if "y" in axes else 1) * (cols if "x" in axes else 1)


def parts_of(buffer: dict[str, Any], row: int, col: int, rows: int, cols: int) -> tuple[slice, ...]:
    """The part of a tensor that a PE holds."""
    parts = []
    for size, axes in zip(buffer["shape"], buffer["axes"], strict=True):
        piece = -(-size // cuts_of(axes, rows, cols))
        number = row * cols + col if axes == "yx" else row if axes == "y" else col if axes == "x" else 0
        parts.append(slice(min(number * piece, size), min((number + 1) * piece, size)))
    return tuple(parts)


def scatter(array: Any, buffer: dict[str, Any], rows: int, cols: int) -> Any:
    """Tiles of a tensor as ``[rows, cols, elements]``; what lies beyond the tensor is zero."""
    tile = [-(-n // cuts_of(a, rows, cols)) for n, a in zip(buffer["shape"], buffer["axes"], strict=True)]
    out = np.zeros([rows, cols, *tile], np.dtype(buffer["dtype"]))
    narrower = array.dtype.kind in "iu" and array.dtype.itemsize > out.dtype.itemsize
    if narrower and (array.astype(out.dtype) != array).any():
        raise HostError(f"{buffer['value']!r} has numbers beyond {out.dtype}, which is what the PEs hold")
    for row in range(rows):
        for col in range(cols):
            part = array[parts_of(buffer, row, col, rows, cols)]
            out[(row, col, *[slice(0, n) for n in part.shape])] = part
    return out.reshape(rows, cols, -1)


def gather(tiles: Any, buffer: dict[str, Any], rows: int, cols: int) -> Any:
    """The tensor of ``[rows, cols, elements]``; where PEs have copies, that of the first one."""
    tile = [-(-n // cuts_of(a, rows, cols)) for n, a in zip(buffer["shape"], buffer["axes"], strict=True)]
    used = "".join(buffer["axes"])
    out = np.zeros(buffer["shape"], np.dtype(buffer["dtype"]))
    for row in range(rows if "y" in used else 1):
        for col in range(cols if "x" in used else 1):
            parts = parts_of(buffer, row, col, rows, cols)
            inside = tuple(slice(0, p.stop - p.start) for p in parts)
            out[parts] = tiles[row, col].reshape(tile)[inside]
    return out


def windows_of(array: Any, window: Any, strides: Any, dilations: Any, pads: Any, out: Any, fill: str) -> Any:
    """The windows that slide over an array, as ``[*out, *window]``; what lies outside has the value ``fill``."""
    spans = [(n - 1) * d + 1 for n, d in zip(window, dilations, strict=True)]
    ends = [(n - 1) * s + w for n, s, w in zip(out, strides, spans, strict=True)]
    # Windows may begin inside the array, and end before it does where rounding up leaves the last one out.
    array = array[tuple(slice(max(0, -p), None) for p, _ in pads)]
    before = [max(0, p) for p, _ in pads]
    beyond = [max(0, q, e - n - p) for n, p, (_, q), e in zip(array.shape, before, pads, ends, strict=True)]
    wide = np.pad(array, list(zip(before, beyond, strict=True)), constant_values=float(fill))
    views = np.lib.stride_tricks.sliding_window_view(wide, spans)
    steps = [slice(0, (n - 1) * s + 1, s) for n, s in zip(out, strides, strict=True)]
    return views[(*steps, *[slice(None, None, d) for d in dilations])]


def indices_of(array: Any, sizes: Any) -> Any:
    """Numbers from the front; with several sizes, the place that each tuple on the last dimension means."""
    tuples = array if len(sizes) > 1 else array[..., None]
    for j, size in enumerate(sizes):
        wrong = (tuples[..., j] < -size) | (tuples[..., j] >= size)
        if wrong.any():
            raise HostError(f"index {tuples[..., j][wrong][0]} is outside a dimension of size {size}")
    steps = [int(np.prod(sizes[j + 1 :])) for j in range(len(sizes))]
    return sum(np.where(tuples[..., j] < 0, tuples[..., j] + n, tuples[..., j]) * steps[j] for j, n in enumerate(sizes))


def evaluate(expr: list[Any], arrays: dict[str, Any], read: Any) -> Any:
    """What the host computes between phases: only how data lies changes."""
    kind = expr[0]
    if kind == "input":
        return arrays[expr[1]]
    if kind == "read":
        return read(expr[1])
    if kind == "concat":
        return np.concatenate([evaluate(e, arrays, read) for e in expr[2:]], axis=expr[1])
    inner = evaluate(expr[1], arrays, read)
    if kind == "transpose":
        return np.transpose(inner, expr[2])
    if kind == "reshape":
        return np.reshape(inner, expr[2])
    if kind == "slice":
        return inner[tuple(slice(*part) for part in expr[2])]
    if kind == "windows":
        return windows_of(inner, *expr[2:])
    if kind == "pad":
        if expr[3] == "constant":
            return np.pad(inner, expr[2], constant_values=float(expr[4]))
        return np.pad(inner, expr[2], mode=expr[3])
    if kind == "tile":
        return np.tile(inner, expr[2])
    if kind == "indices":
        return indices_of(inner, expr[2])
    raise ValueError(f"unknown host step {kind!r}")


def run_pass(manifest: dict[str, Any], arrays: dict[str, Any], device: Any) -> dict[str, Any]:
    """Run all phases once."""
    rows, cols = manifest["grid"]["rows"], manifest["grid"]["cols"]
    buffers = manifest["buffers"]

    def read(name: str) -> Any:
        buffer = buffers[name]
        tiles = device.read(buffer["symbol"], buffer["elements"], buffer["dtype"])
        return gather(tiles, buffer, rows, cols)

    for number, phase in enumerate(manifest["phases"]):
        for move in phase["moves"]:
            buffer = buffers[move["target"]]
            value = np.asarray(evaluate(move["source"], arrays, read))
            device.write(buffer["symbol"], scatter(value, buffer, rows, cols))
        device.launch(f"phase{number}")
    results = {}
    for output in manifest["outputs"]:
        value = np.asarray(evaluate(output["source"], arrays, read))
        results[output["name"]] = value.reshape(output["shape"]).astype(output["dtype"])
    return results


def run_program(manifest: dict[str, Any], arrays: dict[str, Any], device: Any) -> dict[str, Any]:
    """Run a program, in passes where it has some.

    ``device`` has ``write(symbol, data)``, ``read(symbol, count, dtype)`` and ``launch(name)``.
    """
    fold = manifest["fold"]
    if fold is None:
        return run_pass(manifest, arrays, device)
    whole: dict[str, Any] = {}
    for number in range(fold["passes"]):
        first = min(number * fold["chunk"], fold["size"] - fold["chunk"])
        parts = dict(arrays)
        for name, (dim, times) in fold["inputs"].items():
            if name in arrays:
                where = slice(first * times, (first + fold["chunk"]) * times)
                parts[name] = arrays[name][(*[slice(None)] * dim, where)]
        for name, found in run_pass(manifest, parts, device).items():
            if name not in fold["outputs"]:
                whole[name] = found
                continue
            dim, times, shape = fold["outputs"][name]
            where = slice(first * times, (first + fold["chunk"]) * times)
            whole.setdefault(name, np.zeros(shape, found.dtype))[(*[slice(None)] * dim, where)] = found
    return whole
