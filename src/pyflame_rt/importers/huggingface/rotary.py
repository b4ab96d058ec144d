"""Rotary positions as transformers' settings describe them: how fast each pair of features turns, place by place."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from pyflame_rt.graph import DType
from pyflame_rt.graph.errors import InvalidModelError, UnsupportedFormatError
from pyflame_rt.ops.core.value import Value, constant
from pyflame_rt.ops.onnx.arithmetic import Max, Pow
from pyflame_rt.ops.onnx.attention import RotaryEmbedding
from pyflame_rt.ops.onnx.cast import Cast
from pyflame_rt.ops.onnx.math import Cos, Sin
from pyflame_rt.ops.onnx.reduce import ReduceMax
from pyflame_rt.ops.onnx.shape import Unsqueeze

if TYPE_CHECKING:
    from pyflame_rt.importers.huggingface.folder import Settings

__all__ = ["DIVISORS", "Rotary", "rotary"]

DIVISORS = "rope_freqs.weight"  # what GGUF files divide speeds by, pair by pair: how they have those of Llama 3.1


class Rotary(NamedTuple):
    """Angles of places: cosines and sines [batch, length, half], and how many features of a head they turn."""

    cos: Value
    sin: Value
    width: int

    def turn(self, x: Value) -> Value:
        """Features [batch, heads, length, size] turned by the angles of their places."""
        return RotaryEmbedding(x, self.cos, self.sin, rotary_embedding_dim=self.width)


def rotary(settings: Settings, positions: Value, head_dim: int, divisors: np.ndarray[Any, Any] | None = None) -> Rotary:
    """The angles of places [batch, length], by what the settings say of rotary positions.

    Args:
        settings: of the model.
        positions: of tokens.
        head_dim: features of a head.
        divisors: of the speed of each pair, besides what the settings say.
    """
    # Newer folders have it all in one entry; older ones have a base beside an entry for the scaling.
    given = settings.inner("rope_parameters" if "rope_parameters" in settings else "rope_scaling")
    theta = given.number("rope_theta", settings.number("rope_theta", 10000.0))
    share = given.number("partial_rotary_factor", settings.number("partial_rotary_factor", 1.0))
    width = int(head_dim * share)
    if not 0 < share <= 1 or width % 2 or width < 2 or theta <= 0:
        raise InvalidModelError(f"{settings.where}: rotary positions of {width} features, base {theta}")
    kind = given.text("rope_type", given.text("type", "default"))
    size = 1.0
    if divisors is not None and (divisors.shape != (width // 2,) or not (divisors > 0).all() or kind == "dynamic"):
        raise InvalidModelError(f"{settings.where}: {DIVISORS} must be {width // 2} numbers above 0, beside no dynamic")
    if kind == "dynamic":
        speeds = _dynamic_speeds(settings, given, theta, width, positions)
    else:
        known = (1.0 / theta ** (np.arange(0, width, 2, dtype=np.float32) / np.float32(width))).astype(np.float32)
        known = known if divisors is None else (known / divisors).astype(np.float32)
        if kind == "yarn":
            size = _yarn_size(given)
            length = given.size("original_max_position_embeddings", settings.values.get("max_position_embeddings"))
            known = _yarn_speeds(given, known, length, theta)
        speeds = constant(_scaled_speeds(kind, given, known))
    angles = Cast(Unsqueeze(positions, [2]), to=DType.Float32) * speeds
    cos, sin = Cos(angles), Sin(angles)
    return Rotary(cos, sin, width) if size == 1.0 else Rotary(cos * size, sin * size, width)


def _scaled_speeds(kind: str, given: Settings, speeds: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    if kind in ("default", "yarn"):
        return speeds
    if kind == "linear":
        return speeds / np.float32(given.number("factor"))
    if kind == "llama3":
        return _llama3_speeds(given, speeds)
    raise UnsupportedFormatError(
        f"{given.where}: rotary positions {kind!r} are not one of default, dynamic, linear, llama3, yarn"
    )


def _llama3_speeds(given: Settings, speeds: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Slow angles are stretched for long contexts, quick ones stay, those between go from one to the other."""
    factor, low, high = (given.number(n) for n in ("factor", "low_freq_factor", "high_freq_factor"))
    length = given.size("original_max_position_embeddings")
    if not factor > 0 or not 0 < low < high:
        raise InvalidModelError(f"{given.where}: factor {factor}, from {low} to {high}")
    waves = 2 * math.pi / speeds
    smooth = (length / waves - low) / (high - low)
    between = (1 - smooth) * speeds / factor + smooth * speeds
    stretched = np.where(waves > length / low, speeds / factor, speeds)
    middle = (waves <= length / low) & (waves >= length / high)
    return np.where(middle, between, stretched).astype(np.float32)


def _yarn_speeds(given: Settings, speeds: np.ndarray[Any, Any], length: int, theta: float) -> np.ndarray[Any, Any]:
    """YaRN: pairs that turn often within the trained length keep their speed, those that hardly turn are stretched.

    Those between go from one to the other along a ramp over their numbers.
    """
    factor, width = given.number("factor"), 2 * len(speeds)
    often, seldom = given.number("beta_fast", 32.0), given.number("beta_slow", 1.0)
    if not factor > 0 or not 0 < seldom < often or theta == 1:
        raise InvalidModelError(f"{given.where}: factor {factor}, turns from {seldom} to {often}, base {theta}")
    first, last = (
        width * math.log(length / (turns * 2 * math.pi)) / (2 * math.log(theta)) for turns in (often, seldom)
    )
    if given.flag("truncate", default=True):
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, width - 1)
    ramp = (np.arange(len(speeds), dtype=np.float32) - first) / np.float32(last - first if last != first else 0.001)
    stretched = np.clip(ramp, 0, 1)
    return (speeds / factor * stretched + speeds * (1 - stretched)).astype(np.float32)


def _yarn_size(given: Settings) -> float:
    """What cosines and sines are multiplied with, which makes scores sharper in long contexts."""
    if "attention_factor" in given:
        return given.number("attention_factor")
    factor = given.number("factor")
    parts = ("mscale", "mscale_all_dim")
    if all(name in given and given.number(name) for name in parts):
        above, below = (_sharper(factor, given.number(name)) for name in parts)
        return above / below
    return _sharper(factor, 1.0)


def _sharper(factor: float, scale: float) -> float:
    return 1.0 if factor <= 1 else 0.1 * scale * math.log(factor) + 1.0


def _dynamic_speeds(settings: Settings, given: Settings, theta: float, width: int, positions: Value) -> Value:
    """Beyond the trained length the base grows with the length, which is only known when running."""
    factor, length = given.number("factor"), settings.size("max_position_embeddings")
    if factor < 1 or width < 4:
        raise InvalidModelError(f"{given.where}: factor {factor} for rotary positions of {width} features")
    last = Cast(ReduceMax(positions, keepdims=0), to=DType.Float32)
    times = Max(last + 1.0, constant(length, DType.Float32)) * (factor / length) - (factor - 1)
    base = Pow(times, constant(width / (width - 2), DType.Float32)) * theta
    return Pow(base, constant(-np.arange(0, width, 2, dtype=np.float32) / np.float32(width)))
