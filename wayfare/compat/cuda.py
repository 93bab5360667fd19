"""`wf.cuda`: this version has no CUDA device; code that asks first is told so, and seeding or freeing does nothing.

What PyTorch without a GPU lets pass does nothing here, and what it refuses is refused with a sentence.
"""

from __future__ import annotations

from typing import Any, NoReturn

from wayfare.core.errors import OperationError
from wayfare.core.missing_names import LEFT_OUT, no_such_name

__all__ = [
    "device_count", "empty_cache", "is_available", "is_initialized", "manual_seed", "manual_seed_all",
    "max_memory_allocated", "memory_allocated", "synchronize",
]  # fmt: skip

# As a package it may be asked for modules: `import wayfare.compat.cuda.amp` is answered with advice.
__path__: list[str] = []
_NO_GPU = "there is no GPU support yet; ask wf.cuda.is_available() first"


def is_available() -> bool:
    """False: this version computes on the CPU."""
    return False


def is_initialized() -> bool:
    """False: this version computes on the CPU."""
    return False


def device_count() -> int:
    """0: this version computes on the CPU."""
    return 0


def manual_seed(seed: int) -> None:
    """Nothing: there is no generator of a GPU to seed. `wf.manual_seed` seeds the CPU's."""


def manual_seed_all(seed: int) -> None:
    """Nothing: there are no generators of GPUs to seed. `wf.manual_seed` seeds the CPU's."""


def empty_cache() -> None:
    """Nothing: there is no memory of a GPU to give back."""


def memory_allocated(device: Any = None) -> int:
    """0: nothing lies in the memory of a GPU."""
    return 0


def max_memory_allocated(device: Any = None) -> int:
    """0: nothing ever lay in the memory of a GPU."""
    return 0


def synchronize(device: Any = None) -> NoReturn:
    """An error, as in PyTorch without a GPU."""
    raise OperationError("cuda.synchronize: there is no GPU support yet",
                         fix="Leave it out: on the CPU every result is there when its function returns.")  # fmt: skip


def __getattr__(name: str) -> NoReturn:
    raise no_such_name("wayfare.cuda", name, LEFT_OUT["wayfare.cuda"].get(name, _NO_GPU))
