"""`wf.nn.utils`: clipping gradients, parameters as one vector, and sequences of different lengths (`.rnn`)."""

from wayfare.nn.utils import rnn
from wayfare.nn.utils.clip_grad import clip_grad_norm_, clip_grad_value_, clip_grads_with_norm_, get_total_norm
from wayfare.nn.utils.convert_parameters import parameters_to_vector, vector_to_parameters

__all__ = [
    "clip_grad_norm_", "clip_grad_value_", "clip_grads_with_norm_", "get_total_norm", "parameters_to_vector",
    "vector_to_parameters", "rnn",
]  # fmt: skip
