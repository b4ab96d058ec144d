"""Probability distributions under torch's names."""

from pyflame.distributions import bernoulli, categorical, continuous, divergence, independent, normal
from pyflame.distributions.bernoulli import Bernoulli, Geometric
from pyflame.distributions.categorical import Categorical, OneHotCategorical
from pyflame.distributions.continuous import Cauchy, Exponential, Gumbel, Laplace, LogNormal, Uniform
from pyflame.distributions.distribution import Distribution
from pyflame.distributions.divergence import kl_divergence, register_kl
from pyflame.distributions.independent import Independent
from pyflame.distributions.normal import Normal

__all__ = [
    "Bernoulli",
    "Categorical",
    "Cauchy",
    "Distribution",
    "Exponential",
    "Geometric",
    "Gumbel",
    "Independent",
    "Laplace",
    "LogNormal",
    "Normal",
    "OneHotCategorical",
    "Uniform",
    "bernoulli",
    "categorical",
    "continuous",
    "divergence",
    "independent",
    "kl_divergence",
    "normal",
    "register_kl",
]
