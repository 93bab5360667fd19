"""`wf.utils.data`: `wf.data` under the name that PyTorch has for it."""

from typing import NoReturn

from wayfare.core.missing_names import no_such_name as _no_such_name
from wayfare.data import *  # noqa: F403
from wayfare.distributed.samplers import DistributedSampler as DistributedSampler


def __getattr__(name: str) -> NoReturn:
    raise _no_such_name("wayfare.utils.data", name)
