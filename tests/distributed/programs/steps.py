"""What a data-parallel step must know: no_sync, unused parameters, rows, uneven data, ZeRO, compiled functions."""

import copy
import gc
import warnings
import weakref

import numpy as np

import wayfare as wf
import wayfare.distributed as dist
from wayfare import nn
from wayfare.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo", timeout=60)  # what scripts of PyTorch say
assert dist.get_backend() == "mpi"
rank, size = dist.get_rank(), dist.get_world_size()


def close(a, b, limit=1e-12):
    worst = float((a - b).abs().max().item())
    assert worst <= limit, worst


def whole(shape, seed=0):
    return wf.from_numpy(np.random.default_rng(seed).normal(size=(size, *shape)))


# Different weights are noticed, and those of rank 0 taken.
wf.manual_seed(rank)
net = nn.Linear(4, 2).double()
with warnings.catch_warnings(record=True) as told:
    warnings.simplefilter("always")
    ddp = DistributedDataParallel(net)
assert bool(told) == (rank == 0) and (rank or "began with other weights" in str(told[0].message))
wf.manual_seed(0)
close(net.weight, nn.Linear(4, 2).double().weight)

# no_sync: gradients add up, and are averaged by the pass outside it.
x, y = whole((3, 4)), whole((3, 4), 1)
with ddp.no_sync():
    ddp(x[rank]).sum().backward()
close(net.weight.grad, x[rank].sum(0).expand(2, 4))
ddp(y[rank]).sum().backward()
close(net.weight.grad, ((x + y).sum(1).sum(0) / size).expand(2, 4))
# A pass without zero_grad adds to the mean.
ddp(y[rank]).sum().backward()
close(net.weight.grad, ((x + y + y).sum(1).sum(0) / size).expand(2, 4))

# A copy averages gradients of its own, and the original does not notice.
other = copy.deepcopy(ddp)
assert other.module is not net
ddp.zero_grad()
other(y[rank]).sum().backward()
close(other.module.weight.grad, (y.sum(1).sum(0) / size).expand(2, 4))
assert net.weight.grad is None
# Without its wrapper a model is one again: its gradients stay where they are.
reducer, held = weakref.ref(ddp._reducer), ddp._group  # a group that is closed is not told that this rank leaves
del ddp, other
gc.collect()
assert reducer() is None
net(y[rank]).sum().backward()
close(net.weight.grad, y[rank].sum(0).expand(2, 4))

# What is added or unfrozen after wrapping would not be averaged.
grown = nn.Sequential(nn.Linear(4, 2), nn.Linear(2, 2))
grown[0].weight.requires_grad_(False)
ddp = DistributedDataParallel(grown)
ddp(wf.ones(1, 4)).sum().backward()
grown[0].weight.requires_grad_(True)
grown.append(nn.Linear(2, 1))
try:
    ddp(wf.ones(1, 4)).sum().backward()
except dist.DistributedError as error:
    assert "unfrozen after the model was wrapped: 0.weight, 2.weight, 2.bias" in str(error), error
else:
    raise AssertionError("gradients that are not averaged were not noticed")
ddp = DistributedDataParallel(grown)
ddp(wf.ones(1, 4) * rank).sum().backward()


# Each rank uses other parameters; one is used by none.
class Paths(nn.Module):
    def __init__(self):
        super().__init__()
        self.ways = nn.ModuleList([nn.Linear(4, 1, bias=False) for _ in range(size + 1)])
        self.shared = nn.Linear(1, 1, bias=False)

    def forward(self, x, way):
        return self.shared(self.ways[way](x))


wf.manual_seed(0)
paths = Paths().double()
model = DistributedDataParallel(paths, find_unused_parameters=True)
for _ in range(3):  # the buckets of the second pass are those of rank 0's order
    model.zero_grad()
    model(x[rank], rank).sum().backward()
    assert paths.ways[size].weight.grad is None
    for way in range(size):
        close(paths.ways[way].weight.grad, x[way].sum(0, keepdim=True) * paths.shared.weight.detach() / size)
names = sorted(name for bucket in model.buckets for name in bucket)
assert names == sorted(name for name, _ in paths.named_parameters())

# Rows: what is sent is what was touched, not the table.
table = nn.Embedding(100_000, 4).double()
with wf.no_grad():
    table.weight.fill_(1.0)
model = DistributedDataParallel(table)
for words in ([[1, 5, 5], [5, 7, 99_999]][rank % 2], []):
    model.zero_grad()
    before = model._group.stats.bytes
    model(wf.tensor(words, dtype=wf.int64)).sum().backward()
    sent = model._group.stats.bytes - before
    assert sent < 1000, sent
    found = table.weight.row_grad()
    if words:
        expected = {}
        for r in range(size):
            for word in [[1, 5, 5], [5, 7, 99_999]][r % 2]:
                expected[word] = expected.get(word, 0) + 1 / size
        assert found[0].tolist() == sorted(expected)
        close(found[1], wf.tensor([[expected[w]] * 4 for w in sorted(expected)], dtype=wf.float64))
# Where one rank has the whole gradient, all send it.
model.zero_grad()
loss = model(wf.tensor([3])).sum()
if rank == 0:
    loss = loss + (table.weight * 2).sum()
loss.backward()
assert table.weight.row_grad() is None
close(table.weight.grad[3], wf.full((4,), (size + 2) / size, dtype=wf.float64))
close(table.weight.grad[4], wf.full((4,), 2 / size, dtype=wf.float64))

# Ranks with different numbers of batches. All end with the same weights; a rank without data counts as zeros.
for by_active in (False, True):
    wf.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 1)).double()
    model = DistributedDataParallel(net)
    zero = dist.optim.ZeroRedundancyOptimizer(model.parameters(), wf.optim.SGD, lr=0.1)
    steps = 0
    with dist.Join([model, zero], divide_by_initial_world_size=not by_active):
        for step in range(2 + 2 * rank):
            zero.zero_grad()
            model(whole((5, 4), step)[rank]).square().mean().backward()
            if step >= 2 and size == 2 and rank == 1 and by_active:
                other = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 1)).double()
                other.load_state_dict(net.state_dict())
                other(whole((5, 4), step)[rank]).square().mean().backward()
                close(net[0].weight.grad, other[0].weight.grad)  # alone, so the mean is its own
            zero.step()
            steps += 1
    assert steps == 2 + 2 * rank
    every = [None] * size
    dist.all_gather_object(every, [p for p in net.state_dict().values()])
    for other in every[1:]:
        for a, b in zip(every[0], other, strict=True):
            assert np.array_equal(a.numpy(), b.numpy())
try:
    with model.join(throw_on_early_termination=True):
        for _ in range(1 + rank):
            model(whole((5, 4))[rank]).sum().backward()
except dist.DistributedError as error:
    assert "run out of data" in str(error)
else:
    raise AssertionError("nobody noticed that a rank had run out of data")
dist.barrier()

# ZeRO: a step is that of the optimiser; the state is split; the whole can be saved and loaded.
wf.manual_seed(0)
net = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8), nn.Linear(8, 1)).double()
twin = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8), nn.Linear(8, 1)).double()
twin.load_state_dict(net.state_dict())
zero = wf.optim.ZeroRedundancyOptimizer(net.parameters(), wf.optim.Adam, lr=0.1, weight_decay=0.01)
adam = wf.optim.Adam(twin.parameters(), lr=0.1, weight_decay=0.01)
schedules = [wf.optim.lr_scheduler.StepLR(o, 2, 0.5) for o in (zero, adam)]
x = wf.from_numpy(np.random.default_rng(3).normal(size=(5, 8)))
for _ in range(6):
    for model, optimizer, schedule in zip((net, twin), (zero, adam), schedules, strict=True):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
        schedule.step()
    for a, b in zip(net.parameters(), twin.parameters(), strict=True):
        assert np.array_equal(a.detach().numpy(), b.detach().numpy())
memory = zero.memory()
one = sum(v.numel() * v.element_size() for s in adam.state.values() for v in s.values() if isinstance(v, wf.Tensor))
assert memory["unsplit"] == one and memory["most"] < 0.75 * one, memory
try:
    zero.state_dict()
except dist.DistributedError as error:
    assert "consolidate_state_dict" in str(error)
zero.consolidate_state_dict(to=None)
fresh = wf.optim.Adam(twin.parameters(), lr=0.1, weight_decay=0.01)
fresh.load_state_dict(zero.state_dict())
for a, b in zip(fresh.state.values(), adam.state.values(), strict=True):
    assert np.array_equal(a["exp_avg"].numpy(), b["exp_avg"].numpy())
again = wf.optim.ZeroRedundancyOptimizer(net.parameters(), wf.optim.Adam, lr=0.1, weight_decay=0.01)
again.load_state_dict(adam.state_dict())
assert again.memory() == memory

# A compiled forward pass is replayed; a compiled step says why it is not, and is right.
wf.manual_seed(0)
net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)).double()
model = DistributedDataParallel(net)
forward = wf.compile(model)
optimizer = wf.optim.SGD(model.parameters(), lr=0.0)


@wf.compile
def train(x):
    optimizer.zero_grad()
    loss = model(x).square().mean()
    loss.backward()
    optimizer.step()
    return loss


with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    for step in range(6):
        x = whole((5, 4), step)
        model.zero_grad()
        model(x[rank]).square().mean().backward()
        expected = [p.grad.clone() for p in net.parameters()]
        model.zero_grad()
        forward(x[rank]).square().mean().backward()
        for p, e in zip(net.parameters(), expected, strict=True):
            close(p.grad, e)
        train(x[rank])
        for p, e in zip(net.parameters(), expected, strict=True):
            close(p.grad, e)
assert "replayed" in str(forward.explain()) and "sends gradients to other" in str(train.explain())
dist.destroy_process_group()
print("all steps right")
