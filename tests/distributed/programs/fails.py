"""One rank does something else than the others, at a named moment.

Arguments: what it does (kill, raise, exit, sleep, shape, order, absent, code, model, …) and a folder for files.
"""

import os
import signal
import sys
import time
from pathlib import Path

import wayfare as wf
import wayfare.distributed as dist
from wayfare import nn

what, folder = sys.argv[1], Path(sys.argv[2])
dist.init_process_group("mpi", timeout=8)
rank, size = dist.get_rank(), dist.get_world_size()
CULPRIT = 1
if what in ("absent-group", "absent-ddp"):
    dist.destroy_process_group()
    dist.init_process_group("mpi", timeout=1)
    if rank == CULPRIT:
        time.sleep(20)
    elif what == "absent-group":
        dist.new_group([0])
    else:
        nn.parallel.DistributedDataParallel(nn.Linear(2, 2))


def die():
    if rank == CULPRIT:
        os.kill(os.getpid(), signal.SIGKILL)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(8, 8 if what != "model" or rank != CULPRIT else 9)
        self.second = nn.Linear(8 if what != "model" or rank != CULPRIT else 9, 1)
        self.calls = 0

    def forward(self, x):
        y = self.first(x)
        if self.calls == 3:
            if what == "kill-forward":
                die()
            if what == "kill-backward":
                y.register_hook(lambda g: die())
            if what == "raise" and rank == CULPRIT:
                raise ValueError("broken on purpose")
        self.calls += 1
        return self.second(y.tanh())


wf.manual_seed(0)
model = nn.parallel.DistributedDataParallel(Net())
optimizer = wf.optim.Adam(model.parameters(), lr=0.01)
checkpoint = wf.Checkpoint(folder, keep=None, model=model.module, optimizer=optimizer)
(folder.parent / f"pid-{rank}").write_text(str(os.getpid()))
for step in range(1_000_000 if what.startswith(("kill", "sleep")) else 6):
    optimizer.zero_grad()
    model(wf.ones(4, 8) * rank).mean().backward()
    optimizer.step()
    if what == "kill-reduce" and step == 3:
        if rank == CULPRIT:
            time.sleep(0.3)
            die()
        dist.all_reduce(wf.ones(1_000_000))
    if what == "kill-checkpoint":
        if rank == 0:
            checkpoint.save(step=step)
        if step == 5:
            # Rank 0 is in the middle of writing.
            if rank == 0:
                import wayfare.io.replace as replace

                write = replace.write_all

                def slow(descriptor, data, write=write):
                    write(descriptor, data[: len(data) // 2])
                    time.sleep(30)

                import wayfare.io.files as files

                files.write_all = slow
                (folder.parent / "writing").write_text("")
                checkpoint.save(step=step + 1)
            while rank == CULPRIT and not (folder.parent / "writing").exists():
                time.sleep(0.01)
            time.sleep(0.2)
            die()
    if what == "sleep" and step == 3:
        (folder.parent / "ready").write_text("")
        time.sleep(60)
if what == "shape":
    dist.all_reduce(wf.ones(3 if rank != CULPRIT else 4))
if what == "dtype":
    dist.all_reduce(wf.ones(3, dtype=wf.float32 if rank != CULPRIT else wf.float64))
if what == "order":
    if rank == CULPRIT:
        dist.broadcast(wf.ones(3))
    else:
        dist.all_reduce(wf.ones(3))
if what == "absent" and rank != CULPRIT:
    dist.all_reduce(wf.ones(3))
if what == "monitored" and rank != CULPRIT:
    dist.monitored_barrier(timeout=1)
if what in ("absent", "monitored"):
    time.sleep(20)
if what == "exit" and rank == CULPRIT:
    sys.exit(3)
if what == "leave" and rank == CULPRIT:
    sys.exit(0)
if what == "leave-ddp":
    if rank == CULPRIT:
        sys.exit(0)
    model(wf.ones(4, 8)).mean().backward()
if what == "leave-recv":
    if rank == CULPRIT:
        dist.send(wf.ones(3), 0)
        sys.exit(0)
    t = wf.zeros(3)
    dist.recv(t, CULPRIT)  # it has left, and this message is there
    assert t.tolist() == [1, 1, 1]
    dist.recv(t, CULPRIT)
if what == "refused":
    t = wf.ones(3)
    try:
        dist.all_reduce(t, "sum" if rank == CULPRIT else dist.ReduceOp.SUM)
    except TypeError as error:
        print(f"rank {rank} refuses: {error}", flush=True)
        if len(sys.argv) > 3:
            raise
if what.startswith("pair"):
    # send first and receive first, of the same number of bytes
    sent, room = {
        "pair-shape": (wf.ones(2, 3), wf.ones(3, 2)),
        "pair-dtype": (wf.ones(2), wf.ones(2, dtype=wf.int32)),
        "pair-long": (wf.ones(4), wf.ones(3)),
        "pair-short": (wf.ones(3), wf.ones(4)),
        "pair-objects": (None, wf.ones(4)),
    }[what]
    if rank == CULPRIT:
        dist.recv(room, 0)
    elif sent is None:
        dist.send_object_list(["a"], CULPRIT)
    else:
        dist.send(sent, CULPRIT)
dist.barrier()
