"""Mixed precision (`wf.amp`): autocast, and the scaling of losses in float16."""

from wayfare.api.autocast import autocast, custom_bwd, custom_fwd, is_autocast_available
from wayfare.api.grad_scaler import GradScaler

__all__ = ["GradScaler", "autocast", "custom_bwd", "custom_fwd", "is_autocast_available"]
