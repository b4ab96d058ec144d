"""The functions that tensors have as methods, and the operators of Python."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from pyflame import viewing as vi
from pyflame.devices import Device
from pyflame.dtypes import DType, category, to_dtype
from pyflame.lazy import next_serial
from pyflame.memory_formats import check_format, order_of
from pyflame.ops import activation as act
from pyflame.ops import arithmetic as ar
from pyflame.ops import complex_numbers as cn
from pyflame.ops import creation as make
from pyflame.ops import decompositions, older, spectra
from pyflame.ops import distances as di
from pyflame.ops import gathering as ga
from pyflame.ops import linalg as la
from pyflame.ops import placing as pl
from pyflame.ops import pointwise as pw
from pyflame.ops import reduction as red
from pyflame.ops import shaping as sh
from pyflame.ops import special as sp
from pyflame.ops import statistics as st
from pyflame.ops.core import Handle, as_type, call
from pyflame.strides import Geometry
from pyflame.tensor_kinds import Kinds
from pyflame.views import geometry_of, refuse_overlap, rewritten
from pyflame_rt.graph.errors import ShapeMismatchError
from pyflame_rt.ops.onnx.cast import Identity

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyflame.tensors import Tensor

__all__ = ["Methods"]


def _in_place(function: Callable[..., Any]) -> Callable[..., Tensor]:
    """The form that gives the tensor's storage new contents."""

    @functools.wraps(function)
    def method(self: Any, *args: Any, **kwargs: Any) -> Tensor:
        start = next_serial()
        if self._alias is not None:
            refuse_overlap(self, args)
        result = function(self, *args, **kwargs)
        if category(result.dtype) > category(self.dtype):
            raise TypeError(
                f"{function.__name__}_ gives {result.dtype.name}, which a tensor of {self.dtype.name} cannot hold; "
                "use the form that makes a new tensor"
            )
        return self._modify(result, since=start)

    method.__doc__ = f"In place: {function.__doc__}"
    return method


def _swapped(function: Callable[..., Any]) -> Callable[..., Tensor]:
    def method(self: Any, other: Any) -> Tensor:
        return function(other, self)

    return method


def _to(dtype: DType) -> Callable[[Any], Tensor]:
    def method(self: Any) -> Tensor:
        return as_type(self, dtype)

    method.__doc__ = f"The tensor as {dtype.name}."
    return method


class Methods(Kinds):
    """Everything that tensors share with the functions of the package."""

    __slots__ = ()

    # ------------------------------------------------------------------ operators

    __add__ = ar.add
    __radd__ = _swapped(ar.add)
    __sub__ = ar.sub
    __rsub__ = _swapped(ar.sub)
    __mul__ = ar.mul
    __rmul__ = _swapped(ar.mul)
    __truediv__ = ar.div
    __rtruediv__ = _swapped(ar.div)
    __floordiv__ = ar.floor_divide
    __rfloordiv__ = _swapped(ar.floor_divide)
    __mod__ = ar.remainder
    __rmod__ = _swapped(ar.remainder)
    __pow__ = ar.pow
    __rpow__ = _swapped(ar.pow)
    __matmul__ = la.matmul
    __rmatmul__ = _swapped(la.matmul)
    __neg__ = ar.neg
    __pos__ = ar.positive
    __abs__ = ar.abs
    __invert__ = ar.bitwise_not
    __and__ = ar.bitwise_and
    __rand__ = _swapped(ar.bitwise_and)
    __or__ = ar.bitwise_or
    __ror__ = _swapped(ar.bitwise_or)
    __xor__ = ar.bitwise_xor
    __rxor__ = _swapped(ar.bitwise_xor)
    __lshift__ = ar.bitwise_left_shift
    __rlshift__ = _swapped(ar.bitwise_left_shift)
    __rshift__ = ar.bitwise_right_shift
    __rrshift__ = _swapped(ar.bitwise_right_shift)
    __lt__ = ar.lt
    __le__ = ar.le
    __gt__ = ar.gt
    __ge__ = ar.ge

    # ------------------------------------------------------------------ arithmetic

    add, sub, mul, div, rsub = ar.add, ar.sub, ar.mul, ar.div, ar.rsub
    multiply, divide, true_divide, subtract, negative = ar.mul, ar.div, ar.div, ar.sub, ar.neg
    floor_divide, remainder, fmod, neg, positive = ar.floor_divide, ar.remainder, ar.fmod, ar.neg, ar.positive
    pow, float_power, reciprocal, square = ar.pow, ar.float_power, ar.reciprocal, ar.square
    addcmul, addcdiv, lerp = ar.addcmul, ar.addcdiv, ar.lerp
    maximum, minimum, fmax, fmin = ar.maximum, ar.minimum, ar.fmax, ar.fmin
    clamp, clip, clamp_min, clamp_max = ar.clamp, ar.clip, ar.clamp_min, ar.clamp_max
    eq, ne, lt, le, gt, ge, isclose = ar.eq, ar.ne, ar.lt, ar.le, ar.gt, ar.ge, pw.isclose
    less, less_equal, greater, greater_equal, not_equal = ar.lt, ar.le, ar.gt, ar.ge, ar.ne
    logical_and, logical_or, logical_xor, logical_not = ar.logical_and, ar.logical_or, ar.logical_xor, ar.logical_not
    bitwise_left_shift, bitwise_right_shift = ar.bitwise_left_shift, ar.bitwise_right_shift
    bitwise_and, bitwise_or, bitwise_xor, bitwise_not = ar.bitwise_and, ar.bitwise_or, ar.bitwise_xor, ar.bitwise_not
    abs, absolute, sign, sgn, signbit, copysign = ar.abs, ar.abs, pw.sign, cn.sgn, pw.signbit, pw.copysign
    floor, ceil, round, trunc, fix, frac = pw.floor, pw.ceil, pw.round, ar.trunc, pw.fix, pw.frac
    exp, exp2, expm1, log, log2, log10, log1p = pw.exp, pw.exp2, pw.expm1, pw.log, pw.log2, pw.log10, pw.log1p
    sqrt, rsqrt, erf, erfc, logit, xlogy, sinc = pw.sqrt, pw.rsqrt, pw.erf, pw.erfc, pw.logit, pw.xlogy, pw.sinc
    sin, cos, tan, asin, acos, atan, atan2 = pw.sin, pw.cos, pw.tan, pw.asin, pw.acos, pw.atan, pw.atan2
    arcsin, arccos, arctan, arctan2 = pw.asin, pw.acos, pw.atan, pw.atan2
    sinh, cosh, tanh, asinh, acosh, atanh = pw.sinh, pw.cosh, pw.tanh, pw.asinh, pw.acosh, pw.atanh
    arcsinh, arccosh, arctanh = pw.asinh, pw.acosh, pw.atanh
    hypot, logaddexp, heaviside, nan_to_num = pw.hypot, pw.logaddexp, pw.heaviside, pw.nan_to_num
    deg2rad, rad2deg = pw.deg2rad, pw.rad2deg
    isnan, isinf, isfinite, isposinf, isneginf = ar.isnan, ar.isinf, ar.isfinite, pw.isposinf, pw.isneginf
    isreal = pw.isreal

    # ------------------------------------------------------------------ complex numbers

    angle, conj, conj_physical, resolve_conj = cn.angle, cn.conj, cn.conj_physical, cn.resolve_conj
    resolve_neg, adjoint, is_conj = cn.resolve_neg, cn.adjoint, cn.is_conj
    stft, istft = spectra.stft, spectra.istft

    @property
    def real(self) -> Tensor:
        """The real part, a view; writing to it changes the tensor."""
        return cn.real(self)

    @real.setter
    def real(self, value: Any) -> None:
        cn.real(self).copy_(value)

    @property
    def imag(self) -> Tensor:
        """The imaginary part of a complex tensor, a view; writing to it changes the tensor."""
        return cn.imag(self)

    @imag.setter
    def imag(self, value: Any) -> None:
        cn.imag(self).copy_(value)

    # ------------------------------------------------------------------ activations

    relu, sigmoid, softmax, log_softmax = act.relu, act.sigmoid, act.softmax, act.log_softmax
    gelu, silu, softplus, erfinv = act.gelu, act.silu, act.softplus, act.erfinv

    # ------------------------------------------------------------------ reductions

    sum, mean, prod, max, min = red.sum, red.mean, red.prod, red.max, red.min
    amax, amin, aminmax, argmax, argmin = red.amax, red.amin, red.aminmax, red.argmax, red.argmin
    all, any, count_nonzero = red.all, red.any, red.count_nonzero
    var, std, norm, logsumexp, nansum, nanmean = red.var, red.std, red.norm, red.logsumexp, red.nansum, red.nanmean
    cumsum, cumprod, sort, argsort, topk = red.cumsum, red.cumprod, red.sort, red.argsort, red.topk
    kthvalue, median, nanmedian, mode = red.kthvalue, red.median, st.nanmedian, st.mode
    quantile, nanquantile, cummax, cummin, diff = st.quantile, st.nanquantile, st.cummax, st.cummin, st.diff
    logcumsumexp, msort, histc, cov, corrcoef = st.logcumsumexp, st.msort, st.histc, st.cov, st.corrcoef
    dist, lgamma, digamma, mvlgamma = di.dist, sp.lgamma, sp.digamma, sp.mvlgamma
    gcd, lcm, ldexp, logaddexp2 = sp.gcd, sp.lcm, sp.ldexp, sp.logaddexp2

    # ------------------------------------------------------------------ shapes

    reshape, view, view_as, reshape_as = vi.reshape, vi.view, vi.view_as, vi.reshape_as
    flatten, ravel, unflatten, squeeze, unsqueeze = vi.flatten, vi.ravel, vi.unflatten, vi.squeeze, vi.unsqueeze
    permute, transpose, swapaxes, swapdims, t = vi.permute, vi.transpose, vi.swapaxes, vi.swapdims, vi.t
    movedim, moveaxis, expand, expand_as, broadcast_to = (
        vi.movedim,
        vi.moveaxis,
        vi.expand,
        vi.expand_as,
        vi.broadcast_to,
    )
    narrow, split, chunk, tensor_split, unbind = vi.narrow, vi.split, vi.chunk, vi.tensor_split, vi.unbind
    tile, repeat, repeat_interleave, flip, roll, rot90 = (
        sh.tile,
        sh.repeat,
        sh.repeat_interleave,
        sh.flip,
        sh.roll,
        sh.rot90,
    )
    fliplr, flipud, tril, triu = sh.fliplr, sh.flipud, sh.tril, sh.triu

    # ------------------------------------------------------------------ products

    matmul, mm, bmm, mv, dot, vdot, inner, outer = la.matmul, la.mm, la.bmm, la.mv, la.dot, la.vdot, la.inner, la.outer
    addmm, addbmm, baddbmm, addmv, addr = la.addmm, la.addbmm, la.baddbmm, la.addmv, la.addr
    cross, kron, inverse, det = la.cross, la.kron, la.inverse, la.det
    cholesky, qr, svd, pinverse = older.cholesky, older.qr, older.svd, older.pinverse
    logdet, slogdet = decompositions.logdet, decompositions.slogdet

    # ------------------------------------------------------------------ elements

    gather, scatter, scatter_add = ga.gather, ga.scatter, ga.scatter_add
    index_select, index_add, index_copy, index_fill = ga.index_select, ga.index_add, ga.index_copy, ga.index_fill
    masked_fill, masked_select, select, take = ga.masked_fill, ga.masked_select, vi.select, ga.take
    take_along_dim, nonzero, argwhere, unique, bincount = (
        ga.take_along_dim,
        ga.nonzero,
        ga.argwhere,
        ga.unique,
        ga.bincount,
    )
    diagonal, diag, diag_embed, trace = vi.diagonal, ga.diag, ga.diag_embed, ga.trace
    bitcast, diagflat = make.bitcast, ga.diagflat
    index_put, scatter_reduce, masked_scatter, unfold = pl.index_put, pl.scatter_reduce, pl.masked_scatter, pl.unfold
    select_scatter, slice_scatter, diagonal_scatter = pl.select_scatter, pl.slice_scatter, pl.diagonal_scatter
    split_with_sizes, hsplit, vsplit, dsplit = pl.split_with_sizes, pl.hsplit, pl.vsplit, pl.dsplit
    sum_to_size, unique_consecutive, renorm = pl.sum_to_size, pl.unique_consecutive, pl.renorm
    clone = make.clone

    def where(self, condition: Any, other: Any) -> Tensor:
        """The tensor where the condition holds, ``other`` elsewhere."""
        return ar.where(condition, self, other)

    def slice(self, dim: int, start: int, end: int) -> Tensor:
        """Entries ``start`` to ``end`` of a dimension."""
        key = [slice(None)] * len(self._value.spec.shape)
        key[dim] = slice(start, end)
        return vi.getitem(self, tuple(key))  # type: ignore[arg-type]

    @property
    def T(self) -> Tensor:
        """Dimensions in reverse order."""
        rank = len(self._value.spec.shape)
        return vi.permute(self, tuple(range(rank))[::-1])

    @property
    def H(self) -> Tensor:
        """The matrix conjugated and turned."""
        if len(self._value.spec.shape) not in (0, 2):
            raise ShapeMismatchError(f"H takes a matrix, got {self._value.spec.shape}; use mH for many of them")
        return cn.conj(self.T)

    @property
    def mT(self) -> Tensor:
        """The last two dimensions swapped."""
        return vi.transpose(self, -2, -1)

    @property
    def mH(self) -> Tensor:
        """The last two dimensions swapped, and conjugated."""
        return cn.conj(self.mT)

    # ------------------------------------------------------------------ conversion

    float, double, half, bfloat16 = (
        _to(DType.float32),
        _to(DType.float64),
        _to(DType.float16),
        _to(DType.bfloat16),
    )
    cfloat, cdouble = _to(DType.complex64), _to(DType.complex128)
    long, int, short, char, byte, bool = (
        _to(DType.int64),
        _to(DType.int32),
        _to(DType.int16),
        _to(DType.int8),
        _to(DType.uint8),
        _to(DType.bool),
    )

    def type_as(self, other: Any) -> Tensor:
        """The tensor in the element type of another."""
        return as_type(self, other._value.spec.dtype)

    def cpu(self, memory_format: Any = None) -> Any:
        """The tensor itself: it is computed on the CPU."""
        check_format(memory_format)
        return self

    def is_contiguous(self, memory_format: Any = None) -> bool:
        """Whether the elements lie row by row, or in the order of a memory format; not so in some views."""
        tensor: Any = self
        order = order_of(memory_format, tensor.ndim)
        if order is None:
            return False
        place = geometry_of(tensor)
        return Geometry([place.shape[i] for i in order], [place.strides[i] for i in order]).is_contiguous

    def contiguous(self, memory_format: Any = None) -> Tensor:
        """The tensor itself where it :meth:`is_contiguous`, else a copy; engines choose their own memory formats."""
        check_format(memory_format)
        tensor: Any = self
        return tensor if tensor.is_contiguous() else tensor.clone()

    def to(
        self,
        *targets: Any,
        dtype: Any = None,
        device: Any = None,
        copy: bool = False,
        non_blocking: bool = False,
        memory_format: Any = None,
    ) -> Tensor:
        """The tensor in another element type, like another tensor, or on a device; nothing is ever waited for.

        As in torch, booleans among the targets say `non_blocking`, then `copy`.
        """
        del non_blocking
        check_format(memory_format)
        flags = [target for target in targets if isinstance(target, bool)]
        if len(flags) > 2:
            raise TypeError(f"to() takes non_blocking and copy as booleans, and no more. Received: {flags}")
        copy = copy or (len(flags) == 2 and flags[1])
        result: Any = self
        for target in (*targets, device, dtype):
            if target is None or isinstance(target, bool):
                continue
            if isinstance(target, Handle):
                result = as_type(result, target._value.spec.dtype)
                continue
            try:
                result = as_type(result, to_dtype(target))
            except TypeError:
                Device.of(target)
        return result.clone() if copy and result is self else result

    def new_zeros(self, *size: Any, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
        """Zeros of the tensor's element type."""
        kind = self._value.spec.dtype if dtype is None else dtype
        return make.zeros(*size, dtype=kind, device=device, requires_grad=requires_grad)

    def new_ones(self, *size: Any, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
        """Ones of the tensor's element type."""
        kind = self._value.spec.dtype if dtype is None else dtype
        return make.ones(*size, dtype=kind, device=device, requires_grad=requires_grad)

    def new_full(
        self, size: Any, fill_value: Any, *, dtype: Any = None, device: Any = None, requires_grad: bool = False
    ) -> Tensor:
        """A tensor of one value, in the tensor's element type."""
        kind = self._value.spec.dtype if dtype is None else dtype
        return make.full(size, fill_value, kind, device=device, requires_grad=requires_grad)

    def new_tensor(self, data: Any, *, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
        """A tensor of data, in the tensor's element type."""
        kind = self._value.spec.dtype if dtype is None else dtype
        return make.tensor(data, kind, device=device, requires_grad=requires_grad)

    def allclose(self, other: Any, rtol: Any = 1e-5, atol: Any = 1e-8, equal_nan: Any = False) -> Any:
        """Whether another tensor is close everywhere; evaluates."""
        from pyflame.toplevel import allclose

        return allclose(self, other, rtol, atol, equal_nan)

    def equal(self, other: Any) -> Any:
        """Whether another tensor has the same shape and equal elements; evaluates."""
        from pyflame.toplevel import equal

        return equal(self, other)

    def multinomial(self, num_samples: Any, replacement: Any = False, *, generator: Any = None) -> Tensor:
        """Numbers of entries of the last dimension, drawn by weight."""
        from pyflame.random import multinomial

        return multinomial(self, num_samples, replacement, generator=generator)

    def bernoulli(self, p: Any = None, *, generator: Any = None) -> Tensor:
        """1 with a probability, else 0."""
        from pyflame.random import bernoulli

        return bernoulli(self, p, generator=generator)

    def stop_gradient(self) -> Tensor:
        """The same values; gradients stop here."""
        return self.detach()  # type: ignore[attr-defined]

    # ------------------------------------------------------------------ in place

    add_, sub_, mul_, div_ = _in_place(ar.add), _in_place(ar.sub), _in_place(ar.mul), _in_place(ar.div)
    __iadd__, __isub__, __imul__, __itruediv__ = add_, sub_, mul_, div_
    __ifloordiv__, __imod__, __ipow__ = _in_place(ar.floor_divide), _in_place(ar.remainder), _in_place(ar.pow)
    __iand__, __ior__, __ixor__ = _in_place(ar.bitwise_and), _in_place(ar.bitwise_or), _in_place(ar.bitwise_xor)
    __ilshift__, __irshift__ = _in_place(ar.bitwise_left_shift), _in_place(ar.bitwise_right_shift)
    pow_, neg_, abs_, clamp_ = _in_place(ar.pow), _in_place(ar.neg), _in_place(ar.abs), _in_place(ar.clamp)
    clamp_min_, clamp_max_, lerp_ = _in_place(ar.clamp_min), _in_place(ar.clamp_max), _in_place(ar.lerp)
    addcmul_, addcdiv_, sqrt_ = _in_place(ar.addcmul), _in_place(ar.addcdiv), _in_place(pw.sqrt)
    exp_, log_, reciprocal_ = _in_place(pw.exp), _in_place(pw.log), _in_place(ar.reciprocal)
    floor_, ceil_, round_, trunc_ = _in_place(pw.floor), _in_place(pw.ceil), _in_place(pw.round), _in_place(ar.trunc)
    relu_, sigmoid_, tanh_ = _in_place(act.relu), _in_place(act.sigmoid), _in_place(pw.tanh)
    masked_fill_, index_add_, index_copy_ = _in_place(ga.masked_fill), _in_place(ga.index_add), _in_place(ga.index_copy)
    index_fill_, scatter_, scatter_add_ = _in_place(ga.index_fill), _in_place(ga.scatter), _in_place(ga.scatter_add)
    put, put_ = older.put, _in_place(older.put)
    index_put_, scatter_reduce_ = _in_place(pl.index_put), _in_place(pl.scatter_reduce)
    masked_scatter_, renorm_ = _in_place(pl.masked_scatter), _in_place(pl.renorm)
    sin_, cos_, tan_, asin_, acos_, atan_ = map(_in_place, (pw.sin, pw.cos, pw.tan, pw.asin, pw.acos, pw.atan))
    sinh_, cosh_, asinh_, acosh_, atanh_ = map(_in_place, (pw.sinh, pw.cosh, pw.asinh, pw.acosh, pw.atanh))
    erf_, erfc_, erfinv_, exp2_, expm1_ = map(_in_place, (pw.erf, pw.erfc, act.erfinv, pw.exp2, pw.expm1))
    log2_, log10_, log1p_, rsqrt_, square_ = map(_in_place, (pw.log2, pw.log10, pw.log1p, pw.rsqrt, ar.square))
    sign_, sgn_, frac_, fix_, logit_ = map(_in_place, (pw.sign, cn.sgn, pw.frac, pw.fix, pw.logit))
    atan2_, hypot_, copysign_, xlogy_ = map(_in_place, (pw.atan2, pw.hypot, pw.copysign, pw.xlogy))
    fmod_, remainder_, floor_divide_ = map(_in_place, (ar.fmod, ar.remainder, ar.floor_divide))
    multiply_, divide_, subtract_, negative_ = mul_, div_, sub_, neg_
    true_divide_, clip_, absolute_ = div_, clamp_, abs_
    nan_to_num_, addmm_, addmv_, baddbmm_ = map(_in_place, (pw.nan_to_num, la.addmm, la.addmv, la.baddbmm))
    addbmm_, addr_, cumsum_, cumprod_ = map(_in_place, (la.addbmm, la.addr, red.cumsum, red.cumprod))
    eq_, ne_, lt_, le_, gt_, ge_ = map(_in_place, (ar.eq, ar.ne, ar.lt, ar.le, ar.gt, ar.ge))
    logical_and_, logical_or_ = _in_place(ar.logical_and), _in_place(ar.logical_or)
    logical_xor_, logical_not_ = _in_place(ar.logical_xor), _in_place(ar.logical_not)
    bitwise_and_, bitwise_or_ = _in_place(ar.bitwise_and), _in_place(ar.bitwise_or)
    bitwise_xor_, bitwise_not_ = _in_place(ar.bitwise_xor), _in_place(ar.bitwise_not)
    tril_, triu_, fill_diagonal_ = _in_place(sh.tril), _in_place(sh.triu), _in_place(ga.fill_diagonal)

    def copy_(self, source: Any) -> Tensor:
        """Take the values of another tensor."""
        from pyflame.ops.core import Handle, convert

        start = next_serial()
        if source is not self and self._alias is not None:
            if rewritten(self, source):  # type: ignore[arg-type]
                return self  # type: ignore[return-value]
            refuse_overlap(self, (source,))  # type: ignore[arg-type]
        kind = self._value.spec.dtype
        given = as_type(source, kind) if isinstance(source, Handle) else convert(source, kind)
        value = sh.broadcast_to(given, self._value.spec.shape)
        return self._modify(call(Identity, value), since=start, replacing=True)  # type: ignore[attr-defined]

    def fill_(self, value: Any) -> Tensor:
        """Set every element to one value."""
        start = next_serial()
        return self._modify(make.full_like(self, value), since=start, replacing=True)  # type: ignore[attr-defined]

    def zero_(self) -> Tensor:
        """Set every element to zero."""
        return self.fill_(0)

    def _drawn(self, start: int, numbers: Tensor) -> Tensor:
        """Take random numbers, each element its own: not where several are one in memory."""
        refuse_overlap(self, ())  # type: ignore[arg-type]
        return self._modify(numbers, since=start, replacing=True)  # type: ignore[attr-defined]

    def uniform_(self, low: Any = 0.0, high: Any = 1.0, *, generator: Any = None) -> Tensor:
        """Take random numbers between two bounds."""
        from pyflame.random import uniform

        start, spec = next_serial(), self._value.spec
        return self._drawn(start, uniform(spec.shape, low, high, dtype=spec.dtype, generator=generator))

    def normal_(self, mean: Any = 0.0, std: Any = 1.0, *, generator: Any = None) -> Tensor:
        """Take normal random numbers."""
        from pyflame.random import normal

        start, spec = next_serial(), self._value.spec
        return self._drawn(start, normal(mean, std, spec.shape, dtype=spec.dtype, generator=generator))

    def random_(self, low: Any = None, high: Any = None, *, generator: Any = None) -> Tensor:
        """Take random whole numbers from ``low`` up to but without ``high``; ``random_(high)`` begins at 0."""
        from pyflame.random import randint

        if high is None:
            low, high = 0, (1 << 24) if low is None else low
        start, spec = next_serial(), self._value.spec
        return self._drawn(start, randint(low, high, spec.shape, dtype=spec.dtype, generator=generator))

    def exponential_(self, lambd: Any = 1.0, *, generator: Any = None) -> Tensor:
        """Take waiting times of a rate."""
        from pyflame.random import rand

        if not lambd > 0:
            raise ValueError(f"exponential_: the rate must be above 0, got {lambd}")

        start, spec = next_serial(), self._value.spec
        drawn = rand(spec.shape, dtype=spec.dtype, generator=generator)
        return self._drawn(start, ar.div(pw.log1p(ar.neg(drawn)), -lambd))

    def unsqueeze_(self, dim: Any) -> Tensor:
        """Refuse: a tensor keeps its shape."""
        raise RuntimeError(f"unsqueeze_: a tensor keeps its shape; write x = x.unsqueeze({dim})")

    def squeeze_(self, dim: Any = None) -> Tensor:
        """Refuse: a tensor keeps its shape."""
        raise RuntimeError(f"squeeze_: a tensor keeps its shape; write x = x.squeeze({'' if dim is None else dim})")

    def transpose_(self, dim0: Any, dim1: Any) -> Tensor:
        """Refuse: a tensor keeps its shape."""
        raise RuntimeError(f"transpose_: a tensor keeps its shape; write x = x.transpose({dim0}, {dim1})")

    def t_(self) -> Tensor:
        """Refuse: a tensor keeps its shape."""
        raise RuntimeError("t_: a tensor keeps its shape; write x = x.t()")

    def bernoulli_(self, p: Any = 0.5, *, generator: Any = None) -> Tensor:
        """Take 1 with a probability, else 0."""
        from pyflame.random import bernoulli

        start = next_serial()
        return self._drawn(start, bernoulli(self, p, generator=generator))
