"""`wf.utils.data.distributed`: the sampler that gives each rank its part."""

from wayfare.distributed.samplers import DistributedSampler

__all__ = ["DistributedSampler"]
