"""Steps in which rank 1 has more to do, profiled on every rank."""

import sys
import time

import wayfare as wf
import wayfare.distributed as dist

dist.init_process_group("mpi")
rank = dist.get_rank()
x = wf.ones(64, 64)
with wf.profile() as p:
    for _ in range(5):
        y = x @ x
        time.sleep(0.05 if rank == 1 else 0.0)
        dist.all_reduce(y)
        wf.ones(3) + 1
p.trace(f"{sys.argv[1]}/rank{rank}.json")
assert "waiting" in str(p)
dist.destroy_process_group()
