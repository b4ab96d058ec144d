"""Helpers for training: gradients kept in bounds, weights of unit norm, parameters as one vector, sequences padded."""

from pyflame.nn.utils import parametrizations, parametrize, rnn
from pyflame.nn.utils.clip import clip_grad_norm_, clip_grad_value_, clip_grads_with_norm_, get_total_norm
from pyflame.nn.utils.reparametrize import remove_spectral_norm, remove_weight_norm, spectral_norm, weight_norm
from pyflame.nn.utils.rnn import pad_sequence
from pyflame.nn.utils.vectors import parameters_to_vector, vector_to_parameters
from pyflame.suggestions import missing as _missing

__all__ = [
    "clip_grad_norm_",
    "clip_grad_value_",
    "clip_grads_with_norm_",
    "get_total_norm",
    "pad_sequence",
    "parameters_to_vector",
    "parametrizations",
    "parametrize",
    "remove_spectral_norm",
    "remove_weight_norm",
    "rnn",
    "spectral_norm",
    "vector_to_parameters",
    "weight_norm",
]


def __getattr__(name: str) -> object:
    raise _missing("pyflame.nn.utils", name, __all__)
