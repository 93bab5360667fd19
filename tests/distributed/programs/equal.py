"""Every rank trains with DistributedDataParallel; rank 0 also trains alone on the whole batch. Both must agree.

Arguments: the model, the dtype, and what to do with the optimiser ("" or "zero").
"""

import sys

import numpy as np

import wayfare as wf
import wayfare.distributed as dist
from wayfare import nn

STEPS, PER_RANK = 4, 6


class Tree(nn.Module):
    """A recursive net: a tree is a number or a pair of trees."""

    def __init__(self):
        super().__init__()
        self.leaf = nn.Embedding(20, 8)
        self.cell = nn.Linear(16, 8)
        self.out = nn.Linear(8, 3)

    def encode(self, tree):
        if isinstance(tree, int):
            return self.leaf(wf.tensor(tree))
        left, right = tree
        return self.cell(wf.cat([self.encode(left), self.encode(right)])).tanh()

    def forward(self, tree):
        return self.out(self.encode(tree))


class CNN(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(2, 4, 3)
        self.norm = nn.BatchNorm2d(4)
        self.out = nn.Linear(4 * 16, 3)

    def forward(self, x):
        return self.out(self.norm(self.conv(x)).relu().flatten(1))


class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(500, 8)
        self.unused = nn.Linear(3, 3)
        self.out = nn.Linear(8, 3)

    def forward(self, x):
        return self.out(self.table(x).mean(1))


class Transformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.out = nn.Linear(8, 3)

    def forward(self, x):
        return self.out(self.layer(x).mean(1))


MODELS = {
    "mlp": lambda: nn.Sequential(nn.Linear(5, 16), nn.Tanh(), nn.Linear(16, 3)),
    "cnn": CNN, "sync": CNN, "words": Words, "transformer": Transformer, "tree": Tree,
}  # fmt: skip


def random_tree(generator, depth=4):
    if depth == 0 or generator.random() < 0.3:
        return int(generator.integers(20))
    return (random_tree(generator, depth - 1), random_tree(generator, depth - 1))


def batch(kind, step, count, dtype):
    generator = np.random.default_rng(step)
    target = wf.from_numpy(generator.integers(0, 3, count))
    if kind == "tree":
        return [random_tree(generator) for _ in range(count)], target
    if kind == "words":
        return wf.from_numpy(generator.integers(0, 500, (count, 4))), target
    shape = {"mlp": (5,), "cnn": (2, 6, 6), "sync": (2, 6, 6), "transformer": (4, 8)}[kind]
    return wf.from_numpy(generator.normal(size=(count, *shape))).to(dtype), target


def loss_of(kind, model, x, target):
    if kind == "tree":
        return wf.nn.functional.cross_entropy(wf.stack(list(wf.map(model, x))), target)
    return wf.nn.functional.cross_entropy(model(x), target)


def part(x, rank):
    return x[rank * PER_RANK : (rank + 1) * PER_RANK]


def made(kind, dtype):
    wf.manual_seed(1)
    return MODELS[kind]().to(dtype)


def optimizer_of(how, params):
    if how == "zero":
        return wf.optim.ZeroRedundancyOptimizer(params, wf.optim.Adam, lr=0.05)
    if how == "adam":
        return wf.optim.Adam(params, lr=0.05)
    # Adam would blow up what is 0 but for rounding: the gradient of a bias before batch norm.
    return wf.optim.SGD(params, lr=0.1, momentum=0.9)


def together(kind, dtype, how):
    """The weights after training on all ranks."""
    rank, size = dist.get_rank(), dist.get_world_size()
    model = made(kind, dtype)
    if kind == "sync":
        model = nn.SyncBatchNorm.convert_sync_batchnorm(model)
    model = nn.parallel.DistributedDataParallel(model, bucket_cap_mb=0.0005)
    optimizer = optimizer_of(how, model.parameters())
    for step in range(STEPS):
        x, target = batch(kind, step, PER_RANK * size, dtype)
        optimizer.zero_grad()
        loss_of(kind, model, part(x, rank), part(target, rank)).backward()
        if kind == "words":
            assert model.module.unused.weight.grad is None
            assert model.module.table.weight.row_grad() is not None
        optimizer.step()
    return model.module, model


def alone(kind, dtype, size, how):
    """The weights after training in one process. Without sync, batch norm sees the part of each rank by itself."""
    model = made(kind, dtype)
    optimizer = optimizer_of("adam" if how == "zero" else how, model.parameters())
    for step in range(STEPS):
        x, target = batch(kind, step, PER_RANK * size, dtype)
        optimizer.zero_grad()
        if kind == "cnn":
            buffers = {name: b.clone() for name, b in model.named_buffers()}
            for rank in reversed(range(size)):  # rank 0 last: its running statistics are those that stay
                with wf.no_grad():
                    for name, b in model.named_buffers():
                        b.copy_(buffers[name])
                (loss_of(kind, model, part(x, rank), part(target, rank)) / size).backward()
        else:
            loss_of(kind, model, x, target).backward()
        optimizer.step()
    return model


def main():
    kinds, name, how = sys.argv[1].split(","), sys.argv[2], sys.argv[3] if len(sys.argv) > 3 else ""
    dtype = getattr(wf, name)
    dist.init_process_group("mpi", timeout=60)
    for kind in kinds:
        first, ddp = together(kind, dtype, how)
        again, _ = together(kind, dtype, how)
        for (key, a), b in zip(first.state_dict().items(), again.state_dict().values(), strict=True):
            assert np.array_equal(a.numpy(), b.numpy()), f"{kind}: {key} differs from run to run"
        every = [None] * dist.get_world_size()
        dist.all_gather_object(every, {k: v for k, v in first.named_parameters()})
        for other in every[1:]:
            for key, value in every[0].items():
                assert np.array_equal(value.numpy(), other[key].numpy()), f"{kind}: {key} differs between ranks"
        if dist.get_rank() == 0:
            expected = alone(kind, dtype, dist.get_world_size(), how).state_dict()
            for key, value in first.state_dict().items():
                if value.dtype.is_floating_point:
                    worst = float((value - expected[key]).abs().max().item())
                    limit = 1e-12 if name == "float64" else 2e-4
                    assert worst <= limit, f"{kind} {name}: {key} is off by {worst}"
            print(f"{kind} {name} equal, {len(ddp.buckets)} buckets")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
