"""`fit` on several ranks. Arguments: the strategy, the folder, and "first", "resume" or "again"."""

import sys
from pathlib import Path

import numpy as np

import wayfare as wf
import wayfare.distributed as dist
from wayfare import nn

strategy, folder, part = sys.argv[1], Path(sys.argv[2]), sys.argv[3]
generator = np.random.default_rng(0)
inputs = wf.from_numpy(generator.normal(size=(64, 6)))
targets = (inputs[:, :3].sum(1) > 0).long()
batches = [(inputs[i : i + 4], targets[i : i + 4]) for i in range(0, 60, 4)]  # 15: ranks get different numbers

wf.manual_seed(0)
model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 2)).double()
optimizer = wf.optim.Adam(model.parameters(), lr=0.05)
scheduler = wf.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
epochs = {"first": 2, "resume": 3, "again": 4}[part]
history = wf.train.fit(
    model, batches, optimizer=optimizer, loss=nn.functional.cross_entropy, epochs=epochs, validation=batches,
    metrics={"accuracy": wf.metrics.Accuracy()}, strategy=strategy, checkpoint=folder / "run", scheduler=scheduler,
    resume=part != "first", log=folder / "log.jsonl", clip=1.0,
)  # fmt: skip
rank, size = dist.get_rank(), dist.get_world_size()
every = [None] * size
dist.all_gather_object(every, [*model.state_dict().values(), history[-1]["loss"], history[-1]["validation accuracy"]])
for other in every[1:]:
    for a, b in zip(every[0], other, strict=True):
        assert np.array_equal(a, b), "the ranks end with different weights or scores"
if strategy == "ddp":
    moments = [None] * size
    dist.all_gather_object(moments, [state["exp_avg"] for state in optimizer.state.values()])
    for other in moments[1:]:
        for a, b in zip(moments[0], other, strict=True):
            assert np.array_equal(a.numpy(), b.numpy()), "a rank without data missed an update"
assert history[-1]["iterations"] == -(-15 // size)
# The scores are those of all examples: computed here by one process.
accuracy = {"accuracy": wf.metrics.Accuracy()}
scores = wf.train.evaluate(model, batches, loss=nn.functional.cross_entropy, metrics=accuracy)
assert abs(scores["loss"] - history[-1]["validation loss"]) < 1e-12
assert scores["accuracy"] == history[-1]["validation accuracy"]
if rank == 0:
    wf.save(model.state_dict(), folder / f"weights-{part}.safetensors")

# A loader is dealt to the ranks by itself.
if part == "first":
    loader = wf.data.DataLoader(wf.data.TensorDataset(inputs, targets), 4, shuffle=True, seed=1)
    seen = []

    def step(model, batch):
        seen.append(batch[0])
        return nn.functional.cross_entropy(model(batch[0]), batch[1])

    wf.train.fit(model, loader, optimizer=optimizer, step=step, epochs=2, strategy=strategy, progress=False)
    mine = [tuple(row) for x in seen for row in x.tolist()]
    each = [None] * size
    dist.all_gather_object(each, [list(row) for row in mine])
    first = {tuple(row) for rows in each for row in rows[: len(rows) // 2]}
    assert len(first) == 64, "an epoch has every example"
    assert mine[: len(mine) // 2] != mine[len(mine) // 2 :], "every epoch has another order"
dist.destroy_process_group()
