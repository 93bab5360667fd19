"""Optimisers: they change parameters by their gradients, all parameters of a group in one native call.

    optimizer = wf.optim.Adam(model.parameters(), lr=1e-3)
    optimizer.zero_grad()
    loss_of(model, batch).backward()
    optimizer.step()

Names, options, states and files are PyTorch's; so is what a step computes.
"""

from typing import TYPE_CHECKING

from wayfare.core.missing_names import no_such_name as _no_such_name
from wayfare.core.public_modules import later_name as _later_name
from wayfare.optim import lr_scheduler
from wayfare.optim.adadelta import Adadelta
from wayfare.optim.adagrad import Adagrad
from wayfare.optim.adam import Adam, AdamW
from wayfare.optim.adamax import Adamax
from wayfare.optim.lbfgs import LBFGS
from wayfare.optim.nadam import NAdam
from wayfare.optim.optimizer import Optimizer
from wayfare.optim.radam import RAdam
from wayfare.optim.rmsprop import RMSprop
from wayfare.optim.sgd import SGD
from wayfare.optim.sparse_adam import SparseAdam

if TYPE_CHECKING:
    from wayfare.distributed.optim import ZeroRedundancyOptimizer as ZeroRedundancyOptimizer

__all__ = [
    "LBFGS", "SGD", "Adadelta", "Adagrad", "Adam", "AdamW", "Adamax", "NAdam", "Optimizer", "RAdam", "RMSprop",
    "SparseAdam", "lr_scheduler",
]  # fmt: skip


if not TYPE_CHECKING:  # a type checker knows all names without it

    def __getattr__(name: str) -> object:
        later = _later_name(__name__, name)
        if later is None:
            raise _no_such_name(__name__, name)
        return later
