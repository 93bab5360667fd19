"""Steps in which rank 0 waits for rank 1, profiled on every rank."""

import sys
import time
from pathlib import Path

import wayfare as wf
import wayfare.distributed as dist

dist.init_process_group("mpi")
rank = dist.get_rank()
x = wf.ones(64, 64)
with wf.profile() as p:
    for step in range(5):
        y = x @ x
        here = Path(sys.argv[1], f"rank 0 is at step {step}")
        if rank == 0:
            here.touch()
        else:  # not a time that is long enough: on a busy machine rank 0 may be late
            while not here.exists():
                time.sleep(0.001)
            time.sleep(0.05)
        dist.all_reduce(y)
        wf.ones(3) + 1
p.trace(f"{sys.argv[1]}/rank{rank}.json")
assert "waiting" in str(p)
dist.destroy_process_group()
