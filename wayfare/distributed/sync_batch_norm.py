"""`nn.SyncBatchNorm`: batch norm whose statistics are those of the batches of all ranks together."""

from __future__ import annotations

from typing import Any

import wayfare as wf
from wayfare.core.errors import ArgumentError
from wayfare.distributed.functional import all_reduce
from wayfare.distributed.process_group import group_of, is_initialized

__all__ = ["SyncBatchNorm"]


class SyncBatchNorm(wf.nn.BatchNorm1d):
    """Batch norm over (N, C, …) with the mean and variance of the whole batch, of which each rank has a part.

    `SyncBatchNorm.convert_sync_batchnorm(model)` puts it in the place of every BatchNorm1d, 2d and 3d. In eval mode,
    and in a process alone, it is an ordinary batch norm.
    """

    def __init__(
        self, num_features: int, eps: float = 1e-5, momentum: float | None = 0.1, affine: bool = True,
        track_running_stats: bool = True, process_group: Any = None, device: Any = None, dtype: Any = None,
    ) -> None:  # fmt: skip
        super().__init__(num_features, eps, momentum, affine, track_running_stats, device, dtype)
        self.process_group = process_group

    def _check_input_dim(self, input: wf.Tensor) -> None:
        if input.ndim < 2:
            raise ArgumentError(f"SyncBatchNorm: the input must be (N, C, …), this is {input.spec}")

    def forward(self, input: wf.Tensor) -> wf.Tensor:
        """(N, C, …) to the same shape."""
        alone = not is_initialized() or group_of(self.process_group).size() == 1
        uses_batch = self.training or self.running_mean is None
        if alone or not uses_batch:
            return super().forward(input)
        self._check_input_dim(input)
        dims = [0, *range(2, input.ndim)]
        shape = [1, -1, *[1] * (input.ndim - 2)]
        count = wf.full((1,), input.numel() // input.shape[1], dtype=input.dtype)
        sums = all_reduce(wf.cat([input.sum(dims), count]), self.process_group)
        total = float(sums[-1].item())
        mean = sums[:-1] / total
        centred = input - mean.reshape(shape)
        var = all_reduce((centred * centred).sum(dims), self.process_group) / total
        if self.training and self.track_running_stats:
            self._track(mean.detach(), var.detach(), total)
        out = centred / (var + self.eps).sqrt().reshape(shape)
        if self.weight is not None:
            out = out * self.weight.reshape(shape)
        return out if self.bias is None else out + self.bias.reshape(shape)

    def _track(self, mean: wf.Tensor, var: wf.Tensor, total: float) -> None:
        assert self.running_mean is not None and self.running_var is not None
        with wf.no_grad():
            if self.num_batches_tracked is not None:
                self.num_batches_tracked.add_(1)
            momentum = self.momentum
            if momentum is None:
                assert self.num_batches_tracked is not None
                momentum = 1 / float(self.num_batches_tracked.item())
            self.running_mean.lerp_(mean, momentum)
            self.running_var.lerp_(var * (total / max(total - 1, 1)), momentum)

    @classmethod
    def convert_sync_batchnorm(cls, module: wf.nn.Module, process_group: Any = None) -> wf.nn.Module:
        """The module with a SyncBatchNorm in the place of every batch norm; parameters and statistics are kept."""
        plain = (wf.nn.BatchNorm1d, wf.nn.BatchNorm2d, wf.nn.BatchNorm3d)
        if isinstance(module, plain) and not isinstance(module, cls):
            made = cls(module.num_features, module.eps, module.momentum, module.affine, module.track_running_stats,
                       process_group)  # fmt: skip
            for name in ("weight", "bias", "running_mean", "running_var", "num_batches_tracked"):
                setattr(made, name, getattr(module, name))
            made.training = module.training
            return made
        for name, child in module.named_children():
            module.register_module(name, cls.convert_sync_batchnorm(child, process_group))
        return module
