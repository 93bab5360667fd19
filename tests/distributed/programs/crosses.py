"""A run that goes on with another strategy. Arguments: the strategy or "none", the folder, the epochs, own or folder.

Every step has all eight examples, whatever the number of ranks, so the weights must be those of one process.
"""

import sys
from pathlib import Path

import numpy as np

import wayfare as wf
import wayfare.distributed as dist
from wayfare import nn

strategy, folder, epochs, kind = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
dist.init_process_group("auto")
generator = np.random.default_rng(0)
inputs = wf.from_numpy(generator.normal(size=(8, 6)))
data = wf.data.TensorDataset(inputs, (inputs[:, :3].sum(1) > 0).long())
loader = wf.data.DataLoader(data, 8 // dist.get_world_size(), shuffle=True, seed=1)

wf.manual_seed(0)
model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 2)).double()
optimizer = wf.optim.Adam(model.parameters(), lr=0.05)
checkpoint = folder / "run"
if kind == "own":
    checkpoint = wf.Checkpoint(checkpoint, model=model, optimizer=optimizer)
wf.train.fit(model, loader, optimizer=optimizer, loss=nn.functional.cross_entropy, epochs=epochs, resume=True,
             strategy=None if strategy == "none" else strategy, checkpoint=checkpoint)  # fmt: skip
if dist.get_rank() == 0:
    wf.save(model.state_dict(), folder / f"weights-{epochs}.safetensors")
