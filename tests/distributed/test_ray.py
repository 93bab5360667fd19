"""Training on Ray: two workers are a process group, and a worker that is killed is replaced."""

import os
import signal

import numpy as np
import pytest

import wayfare as wf
from wayfare import nn

ray = pytest.importorskip("ray", reason='Ray is not installed (pip install "wayfare[ray]")')
pytest.importorskip("ray.train", reason="Ray Train is not installed")

import wayfare.distributed as dist  # noqa: E402
from wayfare.ray import Trainer, report, restore  # noqa: E402

STEPS = 6


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    ray.init(num_cpus=3, include_dashboard=False, logging_level="error", log_to_driver=False,
             runtime_env={"env_vars": {"RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": "60"}})  # fmt: skip
    yield str(tmp_path_factory.mktemp("ray"))
    ray.shutdown()


def settings(folder, name):
    return {"scaling_config": ray.train.ScalingConfig(num_workers=2, resources_per_worker={"CPU": 1}),
            "run_config": ray.train.RunConfig(storage_path=folder, name=name)}  # fmt: skip


def calls(config):
    """Collective calls of all kinds, over the object store and inside messages."""
    rank, size = dist.get_rank(), dist.get_world_size()
    assert (dist.get_backend(), size) == ("ray", 2)
    for count in (3, 100_000):
        t = wf.full((count,), float(rank + 1))
        dist.all_reduce(t)
        assert float(t[0]) == float(t[-1]) == 3
        dist.broadcast(t.fill_(rank), 1)
        assert float(t[-1]) == 1
    out = [wf.zeros(2), wf.zeros(2)]
    dist.all_gather(out, wf.full((2,), float(rank)))
    assert [float(o[0]) for o in out] == [0, 1]
    if rank == 0:
        dist.send(wf.arange(4.0), 1)
    else:
        got = wf.zeros(4)
        dist.recv(got, 0)
        assert got.tolist() == [0, 1, 2, 3]
    alone = dist.new_group([1])
    if rank == 1:
        t = wf.ones(1)
        dist.all_reduce(t, group=alone)
        assert float(t) == 1
    dist.barrier()
    report({"sum": wf.tensor(3.0)}, {"rank": wf.tensor(rank)})


@pytest.mark.long
def test_collective_calls(cluster):
    result = Trainer(calls, **settings(cluster, "calls")).fit()
    assert result.error is None
    assert result.metrics["sum"] == 3.0
    with result.checkpoint.as_directory() as folder:
        assert int(wf.load(f"{folder}/state.safetensors")["rank"]) == 0


def train(config):
    """Least squares over two ranks, a checkpoint at every step; rank 1 may be killed on the way, once."""
    wf.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    ddp = nn.parallel.DistributedDataParallel(model)
    optimizer = wf.optim.Adam(model.parameters(), lr=0.05)
    step = 0
    state = restore()
    if state is not None:
        step = int(state["step"])
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
    while step < STEPS:
        data = wf.Generator().manual_seed(100 + step)
        xs = wf.randn(8, 4, generator=data)
        mine = xs[4 * dist.get_rank() :][:4]
        if config.get("marker") and step == 3 and dist.get_rank() == 1 and not os.path.exists(config["marker"]):
            open(config["marker"], "w").close()
            os.kill(os.getpid(), signal.SIGKILL)
        optimizer.zero_grad()
        loss = ((ddp(mine) - mine.sum(1, keepdim=True)) ** 2).mean()
        loss.backward()
        optimizer.step()
        step += 1
        report({"loss": loss, "step": step},
               {"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()})  # fmt: skip


def weights(result):
    with result.checkpoint.as_directory() as folder:
        return [t.numpy() for t in wf.load(f"{folder}/state.safetensors")["model"].values()]


@pytest.mark.long
def test_a_killed_worker_is_replaced_and_the_run_ends_with_the_same_weights(cluster):
    whole = Trainer(train, train_loop_config={}, **settings(cluster, "whole")).fit()
    marker = os.path.join(cluster, "killed")
    broken = Trainer(train, train_loop_config={"marker": marker}, **settings(cluster, "broken")).fit()
    assert os.path.exists(marker)
    assert broken.error is None
    assert broken.metrics["step"] == whole.metrics["step"] == STEPS
    for mine, other in zip(weights(broken), weights(whole), strict=True):
        np.testing.assert_array_equal(mine, other)
    # And they are those of one process.
    wf.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    optimizer = wf.optim.Adam(model.parameters(), lr=0.05)
    for step in range(STEPS):
        xs = wf.randn(8, 4, generator=wf.Generator().manual_seed(100 + step))
        optimizer.zero_grad()
        ((model(xs) - xs.sum(1, keepdim=True)) ** 2).mean().backward()
        optimizer.step()
    for mine, p in zip(weights(whole), model.parameters(), strict=True):
        np.testing.assert_allclose(mine, p.detach().numpy(), rtol=1e-4, atol=1e-6)
