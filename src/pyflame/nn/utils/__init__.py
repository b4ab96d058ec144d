"""Helpers for training: gradients kept in bounds, parameters as one vector, sequences made equally long."""

from pyflame.nn.utils import rnn
from pyflame.nn.utils.clip import clip_grad_norm_, clip_grad_value_, get_total_norm
from pyflame.nn.utils.rnn import pad_sequence
from pyflame.nn.utils.vectors import parameters_to_vector, vector_to_parameters

__all__ = [
    "clip_grad_norm_",
    "clip_grad_value_",
    "get_total_norm",
    "pad_sequence",
    "parameters_to_vector",
    "rnn",
    "vector_to_parameters",
]
