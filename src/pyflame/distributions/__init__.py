"""Probability distributions under torch's names."""

from pyflame.distributions import (
    bernoulli,
    categorical,
    continuous,
    divergence,
    independent,
    mixture,
    multivariate,
    normal,
    positive,
    transforms,
)
from pyflame.distributions.bernoulli import Bernoulli, Geometric
from pyflame.distributions.categorical import Categorical, OneHotCategorical
from pyflame.distributions.continuous import Cauchy, Exponential, Gumbel, Laplace, LogNormal, Uniform
from pyflame.distributions.distribution import Distribution
from pyflame.distributions.divergence import kl_divergence, register_kl
from pyflame.distributions.independent import Independent
from pyflame.distributions.mixture import MixtureSameFamily
from pyflame.distributions.multivariate import MultivariateNormal
from pyflame.distributions.normal import Normal
from pyflame.distributions.positive import Beta, Chi2, Dirichlet, Gamma, StudentT
from pyflame.distributions.transforms import (
    AffineTransform,
    ComposeTransform,
    ExpTransform,
    SigmoidTransform,
    TanhTransform,
    Transform,
    TransformedDistribution,
)

__all__ = [
    "AffineTransform",
    "Bernoulli",
    "Beta",
    "Categorical",
    "Cauchy",
    "Chi2",
    "ComposeTransform",
    "Dirichlet",
    "Distribution",
    "ExpTransform",
    "Exponential",
    "Gamma",
    "Geometric",
    "Gumbel",
    "Independent",
    "Laplace",
    "LogNormal",
    "MixtureSameFamily",
    "MultivariateNormal",
    "Normal",
    "OneHotCategorical",
    "SigmoidTransform",
    "StudentT",
    "TanhTransform",
    "Transform",
    "TransformedDistribution",
    "Uniform",
    "bernoulli",
    "categorical",
    "continuous",
    "divergence",
    "independent",
    "kl_divergence",
    "mixture",
    "multivariate",
    "normal",
    "positive",
    "register_kl",
    "transforms",
]
