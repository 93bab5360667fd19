"""GradScaler: a loss in float16 is multiplied by a large number, so that small gradients do not become 0.

    scaler = wf.amp.GradScaler("cpu")
    scaler.scale(loss).backward()
    scaler.step(optimizer)          # divides the gradients again, and leaves the step out if one is not finite
    scaler.update()
"""

from __future__ import annotations

import warnings
from typing import Any

from wayfare.api.autocast import has_gpu
from wayfare.api.functions._new import read_number
from wayfare.api.functions.creation import tensor
from wayfare.api.functions.join import stack
from wayfare.autograd.modes import no_grad
from wayfare.core.callsite import outside_frames
from wayfare.core.errors import ArgumentError, ArgumentTypeError, MissingEntryError, OperationError
from wayfare.core.spec import float16
from wayfare.core.tensor import Tensor

__all__ = ["GradScaler"]

# The largest scale that float32 holds.
_MOST = 3.4028234663852886e38
_READY, _UNSCALED, _STEPPED = "ready", "unscaled", "stepped"


class GradScaler:
    """Scales losses, and gradients back; the scale grows while all gradients are finite, and shrinks when one is not.

    `enabled=False` makes every method do nothing more than the optimiser or the loss alone would. So does "cuda" where
    there is no GPU, with a warning, as in PyTorch.
    """

    def __init__(
        self, device: str = "cuda", init_scale: float = 2.0**16, growth_factor: float = 2.0,
        backoff_factor: float = 0.5, growth_interval: int = 2000, enabled: bool = True,
    ) -> None:  # fmt: skip
        if growth_factor <= 1:
            raise ArgumentError(f"GradScaler: growth_factor must be greater than 1, it is {growth_factor}")
        if not 0 < backoff_factor < 1:
            raise ArgumentError(f"GradScaler: backoff_factor must be between 0 and 1, it is {backoff_factor}")
        if device not in ("cpu", "cuda"):
            raise ArgumentTypeError(f"GradScaler: device must be 'cpu' or 'cuda', not {device!r}")
        if enabled and device == "cuda" and not has_gpu():
            warnings.warn("GradScaler: there is no GPU, so it is off; for the CPU write GradScaler('cpu')",
                          stacklevel=outside_frames())  # fmt: skip
            enabled = False
        self._device, self._enabled = device, bool(enabled)
        # Was a loss scaled so far? Gradients of another are not to be divided.
        self._has_scaled = False
        self._scale, self._growth_tracker = float(init_scale), 0
        self._growth_factor, self._backoff_factor = float(growth_factor), float(backoff_factor)
        self._growth_interval = growth_interval
        # For each optimiser since the last update: how far it is, and whether one of its gradients is not finite.
        self._stages: dict[int, str] = {}
        self._found_inf: dict[int, bool] = {}

    # -- one step -----------------------------------------------------------------------------------------------

    def scale(self, outputs: Any) -> Any:
        """A loss times the scale, or several of them in a tuple or list."""
        if not self._enabled:
            return outputs
        if not self._has_scaled:
            self._has_scaled = True
        if isinstance(outputs, Tensor):
            # In float16 the scale itself may be too large: such a loss becomes float32, as in PyTorch's arithmetic.
            return outputs * tensor(self._scale, device="cpu")
        if isinstance(outputs, (list, tuple)):
            return type(outputs)([self.scale(value) for value in outputs])
        raise ArgumentError(f"scale: takes a tensor, or a list or tuple of tensors, not {type(outputs).__name__}")

    def unscale_(self, optimizer: Any) -> None:
        """Divide the gradients of an optimiser by the scale now, to clip them before `step`."""
        if not self._enabled:
            return
        if not self._has_scaled:
            raise OperationError("unscale_: no loss was scaled so far, so the gradients are not scaled either",
                                 fix="Call scale(loss).backward() first.")  # fmt: skip
        stage = self._stages.get(id(optimizer), _READY)
        if stage != _READY:
            what = "has been called for this optimizer" if stage == _UNSCALED else "comes after step()"
            raise OperationError(f"unscale_: it {what} since the last update()",
                                 fix="Call it once, before step().")  # fmt: skip
        found = False
        inverse = 1.0 / self._scale
        finite: dict[Any, list[Tensor]] = {}
        with no_grad():
            for group in optimizer.param_groups:
                for p in group["params"]:
                    if p.grad is None:
                        continue
                    if p.dtype is float16:
                        raise ArgumentError("unscale_: a gradient of float16 cannot be scaled back",
                                            fix="Keep the parameters in float32, and compute under "
                                            "wf.autocast.")  # fmt: skip
                    p.grad.mul_(inverse)
                    if p.is_cpu:
                        found = found or not bool(p.grad.isfinite().all())
                    else:  # a device is asked once for all
                        finite.setdefault(p.device, []).append(p.grad.isfinite().all())
                    self._found_inf[id(optimizer)] = found
            for flags in finite.values():
                self._found_inf[id(optimizer)] = found = found or not bool(stack(flags).all())
        self._stages[id(optimizer)] = _UNSCALED

    def step(self, optimizer: Any, *args: Any, **options: Any) -> Any:
        """`optimizer.step()`, if all gradients are finite; they are scaled back first, if they are not yet."""
        if not self._enabled:
            return optimizer.step(*args, **options)
        if "closure" in options or args:
            raise OperationError("step: a GradScaler cannot step with a closure", fix="Call step(optimizer) alone.")
        if self._stages.get(id(optimizer)) == _STEPPED:
            raise OperationError("step: it has been called for this optimizer since the last update()",
                                 fix="Call update() after each step.")  # fmt: skip
        if self._stages.get(id(optimizer), _READY) == _READY:
            self.unscale_(optimizer)
        if id(optimizer) not in self._found_inf:
            raise OperationError("step: no parameter of this optimizer has a gradient",
                                 fix="Call scale(loss).backward() first.")  # fmt: skip
        self._stages[id(optimizer)] = _STEPPED
        return None if self._found_inf[id(optimizer)] else optimizer.step()

    def update(self, new_scale: Any = None) -> None:
        """Shrink the scale if a step was left out, let it grow after enough steps that were not; or set it."""
        if not self._enabled:
            return
        if new_scale is not None:
            self._scale = float(read_number("update", "new_scale", new_scale))
        elif not self._found_inf:
            raise OperationError("update: no gradients were looked at since the last one",
                                 fix="Call step(optimizer) first.")  # fmt: skip
        elif any(self._found_inf.values()):
            self._scale *= self._backoff_factor
            self._growth_tracker = 0
        else:
            self._growth_tracker += 1
            if self._growth_tracker == self._growth_interval:
                grown = self._scale * self._growth_factor
                if grown <= _MOST:
                    self._scale = grown
                self._growth_tracker = 0
        self._stages.clear()
        self._found_inf.clear()

    # -- options ------------------------------------------------------------------------------------------------

    def is_enabled(self) -> bool:
        """Does it scale?"""
        return self._enabled

    def get_scale(self) -> float:
        """The scale; 1 if it is off."""
        return self._scale if self._enabled else 1.0

    def get_growth_factor(self) -> float:
        """By what the scale grows."""
        return self._growth_factor

    def set_growth_factor(self, new_factor: float) -> None:
        """Set by what the scale grows."""
        self._growth_factor = new_factor

    def get_backoff_factor(self) -> float:
        """By what the scale shrinks."""
        return self._backoff_factor

    def set_backoff_factor(self, new_factor: float) -> None:
        """Set by what the scale shrinks."""
        self._backoff_factor = new_factor

    def get_growth_interval(self) -> int:
        """After how many steps in a row the scale grows."""
        return self._growth_interval

    def set_growth_interval(self, new_interval: int) -> None:
        """Set after how many steps in a row the scale grows."""
        self._growth_interval = new_interval

    def state_dict(self) -> dict[str, Any]:
        """What to save; empty if it is off. The names are PyTorch's."""
        if not self._enabled:
            return {}
        return {
            "scale": self._scale, "growth_factor": self._growth_factor, "backoff_factor": self._backoff_factor,
            "growth_interval": self._growth_interval, "_growth_tracker": self._growth_tracker,
        }  # fmt: skip

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over what `state_dict` saved."""
        if not self._enabled:
            return
        if not state_dict:
            raise OperationError("load_state_dict: the saved state is empty: it is of a GradScaler that was off",
                                 fix="Load it only if the saved one was enabled.")  # fmt: skip
        missing = [key for key in self.state_dict() if key not in state_dict]
        if missing:
            raise MissingEntryError(f"load_state_dict: the saved state has no {', '.join(missing)}",
                                    fix="Give what GradScaler.state_dict() returned.")  # fmt: skip
        self._scale = float(state_dict["scale"])
        self._growth_factor = float(state_dict["growth_factor"])
        self._backoff_factor = float(state_dict["backoff_factor"])
        self._growth_interval = int(state_dict["growth_interval"])
        self._growth_tracker = int(state_dict["_growth_tracker"])
