"""Kullback-Leibler divergences, by the classes of the two distributions."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from pyflame.distributions.bernoulli import Bernoulli
from pyflame.distributions.categorical import Categorical, OneHotCategorical
from pyflame.distributions.continuous import Exponential, Laplace, LogNormal, Uniform
from pyflame.distributions.independent import Independent
from pyflame.distributions.multivariate import MultivariateNormal, squared_length
from pyflame.distributions.normal import Normal
from pyflame.distributions.positive import Beta, Dirichlet, Gamma
from pyflame.ops.activation import softplus
from pyflame.ops.arithmetic import logical_and, where
from pyflame.ops.pointwise import exp, log
from pyflame.ops.special import digamma, lgamma

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyflame.distributions.distribution import Distribution
    from pyflame.tensors import Tensor

__all__ = ["kl_divergence", "register_kl"]

_RULES: dict[tuple[type, type], Callable[[Any, Any], Tensor]] = {}


def register_kl(type_p: type, type_q: type) -> Callable[[Any], Any]:
    """Decorator: the divergence of distributions of two classes."""

    def keep(function: Callable[[Any, Any], Tensor]) -> Callable[[Any, Any], Tensor]:
        _RULES[type_p, type_q] = function
        return function

    return keep


def kl_divergence(p: Distribution, q: Distribution) -> Tensor:
    """How far one distribution is from another, in nats.

    Example:
        >>> import pyflame as pf
        >>> n = pf.distributions.Normal
        >>> pf.distributions.kl_divergence(n(0.0, 1.0), n(1.0, 1.0)).item()
        0.5
    """
    for left in type(p).__mro__:
        for right in type(q).__mro__:
            rule = _RULES.get((left, right))
            if rule is not None:
                return rule(p, q)
    raise NotImplementedError(
        f"no divergence is known of {type(p).__name__} from {type(q).__name__}; write one with register_kl"
    )


@register_kl(Normal, Normal)
def _normals(p: Normal, q: Normal) -> Tensor:
    ratio = (p.scale / q.scale) ** 2
    return 0.5 * (ratio + ((p.loc - q.loc) / q.scale) ** 2 - 1 - log(ratio))


@register_kl(LogNormal, LogNormal)
def _log_normals(p: LogNormal, q: LogNormal) -> Tensor:
    return _normals(p, q)


@register_kl(Categorical, Categorical)
def _categories(p: Categorical, q: Categorical) -> Tensor:
    terms = p.probs * (p.logits - q.logits)
    terms = where(logical_and(q.probs == 0, p.probs > 0), math.inf, terms)
    return where(p.probs == 0, 0.0, terms).sum(-1)


@register_kl(OneHotCategorical, OneHotCategorical)
def _one_hots(p: OneHotCategorical, q: OneHotCategorical) -> Tensor:
    return _categories(p._categorical, q._categorical)


@register_kl(Bernoulli, Bernoulli)
def _trials(p: Bernoulli, q: Bernoulli) -> Tensor:
    return p.probs * (softplus(-q.logits) - softplus(-p.logits)) + (1 - p.probs) * (
        softplus(q.logits) - softplus(p.logits)
    )


@register_kl(Exponential, Exponential)
def _waits(p: Exponential, q: Exponential) -> Tensor:
    ratio = q.rate / p.rate
    return -log(ratio) + ratio - 1


@register_kl(Laplace, Laplace)
def _laplaces(p: Laplace, q: Laplace) -> Tensor:
    ratio, away = p.scale / q.scale, (p.loc - q.loc).abs()
    return -log(ratio) + away / q.scale + ratio * exp(-away / p.scale) - 1


@register_kl(Uniform, Uniform)
def _uniforms(p: Uniform, q: Uniform) -> Tensor:
    inside = logical_and(q.low <= p.low, q.high >= p.high)
    return where(inside, log((q.high - q.low) / (p.high - p.low)), math.inf)


@register_kl(Independent, Independent)
def _batches(p: Independent, q: Independent) -> Tensor:
    if p.reinterpreted_batch_ndims != q.reinterpreted_batch_ndims:
        raise NotImplementedError("the two distributions have draws of different dimensions")
    return p._summed(kl_divergence(p.base_dist, q.base_dist))


@register_kl(Gamma, Gamma)
def _gammas(p: Gamma, q: Gamma) -> Tensor:
    a, b = p.concentration, q.concentration
    levels = b * log(p.rate / q.rate) + lgamma(b) - lgamma(a)
    return levels + (a - b) * digamma(a) + (q.rate - p.rate) * (a / p.rate)


@register_kl(Dirichlet, Dirichlet)
def _shares(p: Dirichlet, q: Dirichlet) -> Tensor:
    a, b = p.concentration, q.concentration
    total = a.sum(-1)
    levels = lgamma(total) - lgamma(b.sum(-1)) - (lgamma(a) - lgamma(b)).sum(-1)
    return levels + ((a - b) * (digamma(a) - digamma(total).unsqueeze(-1))).sum(-1)


@register_kl(Beta, Beta)
def _betas(p: Beta, q: Beta) -> Tensor:
    return _shares(p._pair, q._pair)


@register_kl(MultivariateNormal, MultivariateNormal)
def _normal_vectors(p: MultivariateNormal, q: MultivariateNormal) -> Tensor:
    # The columns of one factor in units of the other: their squares add up to the trace of Q^-1 P.
    columns = p.scale_tril.mT.movedim(-2, 0)
    spread = squared_length(q.scale_tril, columns).sum(0)
    away = squared_length(q.scale_tril, q.loc - p.loc)
    return q._half_log_det() - p._half_log_det() + 0.5 * (spread + away - p.event_shape[0])
