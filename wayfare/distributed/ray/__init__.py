"""`wayfare.ray`: training on a Ray cluster.

    from wayfare.ray import Trainer, report, restore
    from ray.train import ScalingConfig

    def train(config):
        model = wf.nn.parallel.DistributedDataParallel(make_model())
        state = restore() or {"epoch": 0}
        ...
        report({"loss": loss}, {"epoch": epoch, "model": model.module.state_dict()})

    Trainer(train, scaling_config=ScalingConfig(num_workers=4)).fit()

`Trainer` is Ray Train's trainer of data-parallel runs with a backend of ours: when `train` begins, the workers are a
process group, and everything in `wf.distributed` works. A worker that dies ends the attempt; Ray starts the workers
anew, and `restore()` gives them what was reported last.
"""

from wayfare.distributed.ray.engine import RayEngine
from wayfare.distributed.ray.trainer import Trainer, WayfareConfig, report, restore

__all__ = ["Trainer", "WayfareConfig", "report", "restore", "RayEngine"]
