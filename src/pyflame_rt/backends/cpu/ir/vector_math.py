"""Elementary functions over vectors of float32, by polynomials; float64 asks the C library lane by lane, but for tanh.

Bounds on the error in units in the last place of float32, measured (not proven) over samples of every exponent,
subnormals included, and dense ranges, with and without fused multiply-add: exp, log, log2, log1p 1.0; expm1 1.5;
decay 1.0 where it is a normal number; erf 1.25; sin and cos 1.6; tanh, sigmoid 2.5; pow 0.6. The tanh of float64 keeps
to 1.1 of its own units.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from pyflame_rt.backends.cpu.ir.builder import Lanes, V

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyflame_rt.backends.cpu.ir.builder import Builder

__all__ = ["FUNCTIONS", "exp_of_reduced", "libm", "power", "reduce_exp", "tanh64"]

_LOG2E = 1.0 / math.log(2.0)
_LEAST_NORMAL = -87.3365  # its exponential is just above 2**-126
_MAGIC = 12582912.0  # 1.5 * 2**23: adding it leaves the nearest integer in the low bits
_MAGIC_BITS = 0x4B400000
_MAGIC64 = 6755399441055744.0
_MAGIC64_BITS = 0x4338000000000000
_SQRT_HALF = 0x3F3504F3
_SQRT_HALF64 = 0x3FE6A09E667F3BCD

_EXP = (0.4999999305049131, 0.16666514789120876, 0.04166845683328045, 0.008369419043276176, 0.0013813142357549883)
_EXPM1 = (
    0.5000000038246314, 0.1666666633947025, 0.041666370861398704, 0.008333396809405478, 0.0013940368771707143,
    0.00019842365359021825,
)  # fmt: skip
_LOG = (0.6666666615276854, 0.4000023131987997, 0.285433685123085, 0.23475338912240226)
_ERF_SMALL = (
    0.12837916664232762, -0.37612633697105213, 0.11283693942136548, -0.026859270784250395, 0.005200634305752904,
    -0.0008137437561270818, 8.3452248816854e-05,
)  # fmt: skip
_ERFC_LOG = (
    1.12854654731552, 0.6356493462675636, 0.10521597814222988, -0.022624893741755546, 0.0028997325429436552,
    -3.85729180170734e-05, -4.77434861250717e-05, 5.115786651273749e-06,
)  # fmt: skip
_SIN = (-0.1666666664058765, 0.008333329280478346, -0.00019839304403826042, 2.7180463793236833e-06)
_COS = (0.04166664555400532, -0.0013887309847674994, 2.4432411109022505e-05)
_EXP2 = (
    1.0, 0.6931471805458158, 0.24022650695466174, 0.05550410941669573, 0.009618129228958897, 0.0013333450126698728,
    0.0001540341127442382, 1.5310196417592644e-05, 1.3264147494451058e-06,
)  # fmt: skip
_LOG2 = (
    2.8853900817779152, 0.9617966939427538, 0.5770780098514946, 0.41219957575931887, 0.3205316203952208,
    0.2642477911937449, 0.20850790554394338,
)  # fmt: skip

# (tanh(x) / x - 1) / x**2 by x**2, for |x| <= 1
_TANH64 = (
    -0.3333333333333333, 0.1333333333333333, -0.053968253968250855, 0.02186948853602432, -0.008863235526990148,
    0.003592127997026837, -0.0014558340302593471, 0.0005900251819148857, -0.00023911869851645314,
    9.687950625746215e-05, -3.9184417832807155e-05, 1.5729955134910997e-05, -6.157521034546024e-06,
    2.2592759819493957e-06, -7.256989782392088e-07, 1.8453006214065555e-07, -3.190368864909062e-08,
    2.738913458233382e-09,
)  # fmt: skip


def _copysign(magnitude: V, sign: V) -> V:
    return magnitude.intrinsic("copysign", sign)


def reduce_exp(x: V) -> tuple[V, V]:
    """X = k ln 2 + r with |r| <= ln(2) / 2: (k as i32, r)."""
    at = x.at
    shifted = at.fma(x, _LOG2E, _MAGIC)
    n = shifted - _MAGIC
    # The first part of ln 2 has so few bits that n times it is exact.
    r = at.fma(n, 2.12194440e-4, at.fma(n, -0.693359375, x))
    return shifted.bits("i32") - _MAGIC_BITS, r


def _power_of_two(k: V) -> V:
    return ((k + 127) << 23).bits("float")


def exp_of_reduced(r: V) -> V:
    """The exponential of what `reduce_exp` leaves."""
    at = r.at
    return at.fma(r * r, at.polynomial(r, _EXP), r) + 1.0


def _exp(x: V) -> V:
    k, r = reduce_exp(x.above(-104.0).below(89.0))
    half = k >> 1  # two steps: 2**k alone may not be a float32
    return exp_of_reduced(r) * _power_of_two(half) * _power_of_two(k - half)


def _decay(x: V) -> V:
    """Exp of what is not above 0, as softmax needs it: what would be subnormal is 0."""
    k, r = reduce_exp(x.above(_LEAST_NORMAL))
    return x.cmp("olt", _LEAST_NORMAL).where(0.0, exp_of_reduced(r) * _power_of_two(k))


def _expm1_nonzero(x: V) -> V:
    at = x.at
    k, r = reduce_exp(x.above(-30.0).below(89.0))
    p = at.fma(r * r, at.polynomial(r, _EXPM1), r)
    scale = _power_of_two(k - 1)
    return at.fma(scale, p, scale - 0.5) * 2.0


def _expm1(x: V) -> V:
    return x.cmp("oeq", 0.0).where(x, _expm1_nonzero(x))


def _tanh(x: V) -> V:
    t = _expm1_nonzero(abs(x).below(10.0) * 2.0)
    return _copysign(t / (t + 2.0), x)


def _sigmoid(x: V) -> V:
    e = _exp(-abs(x))
    return x.cmp("oge", 0.0).where(1.0, e) / (e + 1.0)


def _erf(x: V) -> V:
    at = x.at
    t = abs(x).below(4.0)
    small = at.fma(x, at.polynomial(x * x, _ERF_SMALL), x)
    k, r = reduce_exp(-(t * at.polynomial(t, _ERFC_LOG)))
    large = at.const("float", 1.0) - exp_of_reduced(r) * _power_of_two(k)
    return t.cmp("olt", 0.92).where(small, _copysign(large, x))


def _split(x: V) -> tuple[V, V]:
    """X = 2**k * m with sqrt(1/2) <= m < sqrt(2), for positive x: (k as i32, m)."""
    tiny = x.cmp("olt", 2.0**-126)
    bits = tiny.where(x * 2.0**23, x).bits("i32") + (0x3F800000 - _SQRT_HALF)
    k = (bits >> 23) - tiny.where(x.at.const("i32", 127 + 23), 127)
    return k, ((bits & 0x7FFFFF) + _SQRT_HALF).bits("float")


def _log_tail(f: V) -> tuple[V, V]:
    """log(1 + f) = f - h + t: (h, t)."""
    s = f / (f + 2.0)
    z = s * s
    h = f * f * 0.5
    return h, s * (h + z * f.at.polynomial(z, _LOG))


def _log_limits(x: V, result: V) -> V:
    result = x.cmp("oeq", 0.0).where(-math.inf, result)
    result = x.cmp("olt", 0.0).where(math.nan, result)
    return x.cmp("uge", math.inf).where(x, result)


def _log(x: V) -> V:
    k, m = _split(x)
    n, f = k.to("sitofp", "float"), m - 1.0
    h, t = _log_tail(f)
    low = t + n * 9.0580006145e-06
    return _log_limits(x, n * 6.9313812256e-01 - ((h - low) - f))


def _log2(x: V) -> V:
    k, m = _split(x)
    n, f = k.to("sitofp", "float"), m - 1.0
    h, t = _log_tail(f)
    # log2(m) in two parts, the first with few enough bits that its product is exact.
    high = ((f - h).bits("i32") & ~0xFFF).bits("float")
    low = ((f - high) - h) + t
    return _log_limits(x, (low + high) * -1.7605285393e-04 + low * 1.4428710938 + high * 1.4428710938 + n)


def _log1p(x: V) -> V:
    at = x.at
    u = x + 1.0
    k, m = _split(u)
    near = k.cmp("eq", 0)
    f = near.where(x, m - 1.0)
    # What rounding 1 + x lost, given back to first order.
    lost = k.cmp("sgt", 1).where(at.const("float", 1.0) - (u - x), x - (u - 1.0)) / u
    lost = near.where(0.0, lost)
    n = k.to("sitofp", "float")
    h, t = _log_tail(f)
    result = n * 6.9313812256e-01 - ((h - (t + (n * 9.0580006145e-06 + lost))) - f)
    result = x.cmp("oeq", -1.0).where(-math.inf, result)
    result = x.cmp("olt", -1.0).where(math.nan, result)
    result = abs(x).cmp("olt", 2.0**-24).where(x, result)
    return x.cmp("uge", math.inf).where(x, result)


def _trigonometric(name: str, shift: int) -> Callable[[V], V]:
    def emit(x: V) -> V:
        return _with_slow_lanes(x, _reduced_trigonometric(x, shift), name)

    return emit


def _reduced_trigonometric(x: V, shift: int) -> V:
    """Sin(x + shift * pi/2), by reduction in float64; right for |x| up to 2**27."""
    at = x.at
    wide = x.to("fpext", "double")
    shifted = wide * (2.0 / math.pi) + _MAGIC64
    n = shifted - _MAGIC64
    r = wide - n * 1.57079631090164184570 - n * 1.58932547735281966916e-08
    quarter = shifted.bits("i64").to("trunc", "i32") + shift
    y = r.to("fptrunc", "float")
    z = y * y
    sine = at.fma(y * z, at.polynomial(z, _SIN), y)
    cosine = at.fma(z * z, at.polynomial(z, _COS), at.fma(z, -0.5, 1.0))
    chosen = (quarter & 1).cmp("ne", 0).where(cosine, sine)
    result = (chosen.bits("i32") ^ ((quarter & 2) << 30)).bits("float")
    return result if shift else x.cmp("oeq", 0.0).where(x, result)


def _with_slow_lanes(x: V, fast: V, name: str) -> V:
    """`fast`, unless some lane is huge: then the C library, lane by lane, out of line."""
    at, b = x.at, x.at.builder
    size = abs(x)
    huge = size.cmp("ogt", 2.0**27) & size.cmp("olt", math.inf)
    slow, done, origin = b.label("slow"), b.label("done"), b.block
    b.branch(at.any(huge), slow, done)
    b.place(slow)
    function = f"lanes_{name}_{at.lanes}"
    _define_lanewise(b, function, at.lanes, name)
    exact = b.op(f"call {x.kind} @{function}({x.kind} {x.name})")
    b.jump(done)
    b.place(done)
    return V(at, x.elem, b.phi(x.kind, (fast.name, origin), (exact, slow)))


def _define_lanewise(b: Builder, function: str, lanes: int, name: str) -> None:
    inner = b.helper(function)
    if inner is None:
        return
    at = Lanes(inner, lanes)
    kind = at.type("float")
    result = libm(name, V(at, "float", "%x"))
    inner.do(f"ret {kind} {result.name}")
    inner.end(f"internal {kind} @{function}({kind} %x)", "nounwind noinline")
    b.adopt(inner)


def libm(name: str, *values: V) -> V:
    """A function of the C library on each lane."""
    first = values[0]
    at, elem = first.at, first.elem
    symbol = name if elem == "double" else f"{name}f"
    results = []
    for lane in range(at.lanes):
        args = [(elem, at.lane(v, lane)) for v in values]
        results.append(at.builder.call(elem, symbol, args))
    return at.gather_lanes(elem, results)


def tanh64(x: V) -> V:
    """Float64 tanh: a polynomial near zero, the exponential elsewhere, where its error counts less than half."""
    at = x.at
    z = x * x
    near = at.fma(x * z, at.polynomial(z, _TANH64), x)
    far = at.const("double", 1.0) - at.const("double", 2.0) / (libm("exp", abs(x).below(25.0) * 2.0) + 1.0)
    result = abs(x).cmp("olt", 1.0).where(near, _copysign(far, x))
    return x.cmp("uno", x).where(x, x.cmp("oeq", 0.0).where(x, result))


def power(x: V, y: V) -> V:
    """Float32 x ** y, through float64."""
    size = abs(x)
    product = (_log2_wide(size) * y.to("fpext", "double")).above(-200.0).below(200.0)
    result = _exp2_wide(product).to("fptrunc", "float")
    whole = y.intrinsic("floor").cmp("oeq", y)
    half = y * 0.5
    odd = whole & half.intrinsic("floor").cmp("one", half)
    negative = x.bits("i32").cmp("slt", 0)
    result = (negative & odd).where(-result, result)
    undefined = (x.cmp("olt", 0.0) & whole.cmp("eq", 0)) & size.cmp("one", math.inf)
    result = undefined.where(math.nan, result)
    unit = size.cmp("oeq", 1.0) & abs(y).cmp("oeq", math.inf)
    return (y.cmp("oeq", 0.0) | x.cmp("oeq", 1.0) | unit).where(1.0, result)


def _log2_wide(x: V) -> V:
    at = x.at
    bits = x.to("fpext", "double").bits("i64") + (0x3FF0000000000000 - _SQRT_HALF64)
    k = at.bin("lshr", bits, 52) - 1023
    n = (k + _MAGIC64_BITS).bits("double") - _MAGIC64  # k as a float64, without a conversion older machines lack
    m = ((bits & 0xFFFFFFFFFFFFF) + _SQRT_HALF64).bits("double")
    s = (m - 1.0) / (m + 1.0)
    result = at.fma(s, at.polynomial(s * s, _LOG2), n)
    result = x.cmp("oeq", 0.0).where(-math.inf, result)
    return x.cmp("uge", math.inf).where(x.to("fpext", "double"), result)


def _exp2_wide(x: V) -> V:
    shifted = x + _MAGIC64
    k = shifted.bits("i64") - _MAGIC64_BITS
    scale = ((k + 1023) << 52).bits("double")
    return x.at.polynomial(x - (shifted - _MAGIC64), _EXP2) * scale


FUNCTIONS: dict[str, Callable[[V], V]] = {
    "exp": _exp,
    "decay": _decay,
    "expm1": _expm1,
    "log": _log,
    "log2": _log2,
    "log1p": _log1p,
    "tanh": _tanh,
    "sigmoid": _sigmoid,
    "erf": _erf,
    "sin": _trigonometric("sin", 0),
    "cos": _trigonometric("cos", 1),
}
