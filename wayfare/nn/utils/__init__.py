"""`wf.nn.utils`: clipping gradients, parameters as one vector, and sequences of different lengths (`.rnn`)."""

from typing import TYPE_CHECKING, NoReturn

from wayfare.core.missing_names import no_such_name as _no_such_name
from wayfare.nn.utils import rnn
from wayfare.nn.utils.clip_grad import clip_grad_norm_, clip_grad_value_, clip_grads_with_norm_, get_total_norm
from wayfare.nn.utils.convert_parameters import parameters_to_vector, vector_to_parameters

__all__ = [
    "clip_grad_norm_", "clip_grad_value_", "clip_grads_with_norm_", "get_total_norm", "parameters_to_vector",
    "vector_to_parameters", "rnn",
]  # fmt: skip


if not TYPE_CHECKING:  # a type checker knows all names without it

    def __getattr__(name: str) -> NoReturn:
        raise _no_such_name(__name__, name)
