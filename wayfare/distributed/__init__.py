"""`wf.distributed`: several processes train one model. Names and meaning are those of `torch.distributed`.

    import wayfare.distributed as dist

    dist.init_process_group("mpi")          # in a script that `wayfare launch -n 4 train.py` starts
    t = wf.ones(3) * dist.get_rank()
    dist.all_reduce(t)                      # the sum over all ranks, on every rank

An `Engine` (engine.py) moves arrays: MPI (mpi.py), or a process alone. A `ProcessGroup` is an engine with a time-out
and a record of calls, bytes and waiting (`group.stats`); `init_process_group` makes that of all processes,
`adopt_engine` makes it of an engine of one's own. The calls (collectives.py, objects.py, pairs.py) start a transfer
of the engine and give or await a `Work`. In debug mode (WAYFARE_DISTRIBUTED_DEBUG=1) the calls of all ranks are
compared first.
"""

import importlib
from typing import TYPE_CHECKING

from wayfare.core.errors import DistributedError
from wayfare.core.launched import set_variables
from wayfare.core.missing_names import no_such_name as _no_such_name
from wayfare.distributed import algorithms as algorithms
from wayfare.distributed.algorithms.join import Join, Joinable
from wayfare.distributed.collectives import (
    all_gather,
    all_gather_into_tensor,
    all_reduce,
    all_to_all,
    all_to_all_single,
    barrier,
    broadcast,
    gather,
    monitored_barrier,
    reduce,
    reduce_scatter,
    reduce_scatter_tensor,
    scatter,
)
from wayfare.distributed.cost_sampler import CostSampler
from wayfare.distributed.costs import RecordedCost
from wayfare.distributed.engine import Engine, ReduceOp
from wayfare.distributed.objects import (
    all_gather_object,
    broadcast_object_list,
    gather_object,
    scatter_object_list,
)
from wayfare.distributed.pairs import (
    P2POp,
    batch_isend_irecv,
    irecv,
    isend,
    recv,
    recv_object_list,
    send,
    send_object_list,
)
from wayfare.distributed.process_group import (
    GroupMember,
    ProcessGroup,
    adopt_engine,
    destroy_process_group,
    get_backend,
    get_global_rank,
    get_group_rank,
    get_process_group_ranks,
    get_rank,
    get_world_size,
    group,
    init_process_group,
    is_available,
    is_initialized,
    is_mpi_available,
    is_nccl_available,
    new_group,
)
from wayfare.distributed.work import Work

if TYPE_CHECKING:
    from wayfare.distributed import checkpoint as checkpoint
    from wayfare.distributed import optim as optim

__all__ = [
    "init_process_group", "adopt_engine", "destroy_process_group", "is_available", "is_initialized",
    "is_mpi_available", "is_nccl_available", "get_rank", "get_world_size", "get_backend", "new_group",
    "get_process_group_ranks", "get_global_rank", "get_group_rank", "ProcessGroup", "GroupMember", "group", "Engine",
    "Work",
    "ReduceOp", "DistributedError", "Join", "Joinable", "algorithms", "checkpoint", "optim",
    "all_reduce", "reduce", "broadcast", "all_gather", "all_gather_into_tensor", "reduce_scatter",
    "reduce_scatter_tensor", "all_to_all", "all_to_all_single", "gather", "scatter", "send", "recv", "isend", "irecv",
    "P2POp", "batch_isend_irecv", "barrier", "monitored_barrier",
    "all_gather_object", "gather_object", "broadcast_object_list", "scatter_object_list", "send_object_list",
    "recv_object_list",
    "CostSampler", "RecordedCost",
]  # fmt: skip

set_variables()

if not TYPE_CHECKING:  # a type checker knows all names without it

    def __getattr__(name: str) -> object:
        if name in ("checkpoint", "optim"):  # loaded when it is first asked for
            return importlib.import_module(f"{__name__}.{name}")
        raise _no_such_name(__name__, name)
