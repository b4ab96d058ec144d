"""Special functions, where torch has them."""

from pyflame.ops.activation import erfinv, expit, log_softmax, softmax
from pyflame.ops.pointwise import erf, erfc, exp2, expm1, log1p, logit, round, sinc, xlogy
from pyflame.ops.reduction import logsumexp
from pyflame.ops.special import (
    digamma,
    entr,
    erfcx,
    gammaln,
    log_ndtr,
    multigammaln,
    ndtr,
    ndtri,
    psi,
    xlog1py,
)

__all__ = [
    "digamma",
    "entr",
    "erf",
    "erfc",
    "erfcx",
    "erfinv",
    "exp2",
    "expit",
    "expm1",
    "gammaln",
    "log1p",
    "log_ndtr",
    "log_softmax",
    "logit",
    "logsumexp",
    "multigammaln",
    "ndtr",
    "ndtri",
    "psi",
    "round",
    "sinc",
    "softmax",
    "xlog1py",
    "xlogy",
]
