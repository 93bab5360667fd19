"""A checkpoint in parts. Arguments: the folder, and "write" or "read"."""

import os
import signal
import sys
from pathlib import Path

import numpy as np

import wayfare as wf
import wayfare.distributed as dist
from wayfare import nn

folder, part = Path(sys.argv[1]), sys.argv[2]
dist.init_process_group("mpi", timeout=60)
rank, size = dist.get_rank(), dist.get_world_size()


def trained(steps):
    """The same on any number of ranks: every rank has the same data."""
    wf.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 32), nn.Tanh(), nn.Linear(32, 32), nn.Linear(32, 1)).double()
    optimizer = wf.optim.ZeroRedundancyOptimizer(net.parameters(), wf.optim.Adam, lr=0.01)
    for _ in range(steps):
        step(net, optimizer)
    return net, optimizer


def step(net, optimizer):
    optimizer.zero_grad()
    net(wf.arange(12, dtype=wf.float64).reshape(2, 6)).square().mean().backward()
    optimizer.step()


def same(net, other):
    for a, b in zip(net.parameters(), other.parameters(), strict=True):
        assert np.array_equal(a.detach().numpy(), b.detach().numpy())


net, optimizer = trained(3)
if part == "write":
    for _ in range(2):  # the second save replaces the first
        dist.checkpoint.save({"model": net.state_dict(), "optimizer": optimizer.local_state_dict(), "epoch": 3},
                             checkpoint_id=folder)  # fmt: skip
    files = sorted(folder.glob("part-*"))
    assert len(files) == size, files
    sizes = [f.stat().st_size for f in files]
    assert max(sizes) < 2 * min(sizes), sizes
    # A rank that is killed after its part and before the index leaves the old checkpoint.
    step(net, optimizer)
    if rank == 1:
        import wayfare.distributed.checkpoint as checkpoint

        save = wf.save

        def dying(*args):
            save(*args)
            os.kill(os.getpid(), signal.SIGKILL)

        checkpoint.wf.save = dying
    dist.barrier()
    dist.checkpoint.save({"model": net.state_dict(), "optimizer": optimizer.local_state_dict(), "epoch": 4},
                         checkpoint_id=folder)  # fmt: skip
else:
    wf.manual_seed(5)
    other = nn.Sequential(nn.Linear(6, 32), nn.Tanh(), nn.Linear(32, 32), nn.Linear(32, 1)).double()
    fresh = wf.optim.ZeroRedundancyOptimizer(other.parameters(), wf.optim.Adam, lr=0.01)
    state = {"model": other.state_dict()}
    whole = dist.checkpoint.load(state, checkpoint_id=folder)
    assert whole["epoch"] == 3
    fresh.load_state_dict(whole["optimizer"])
    same(net, other)
    for _ in range(3):
        step(net, optimizer)
        step(other, fresh)
    same(net, other)
    dist.destroy_process_group()
    print("read")
