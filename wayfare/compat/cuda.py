"""`wf.cuda`: GPUs, as `torch.cuda` shows them. Without CuPy or a GPU `is_available()` is False; seeding and freeing do
nothing then, and what needs a device says what to install."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NoReturn

import wayfare as wf
from wayfare.compat.cuda_devices import backend, backend_in_use, number_of
from wayfare.compat.cuda_memory import (
    device_memory_used,
    empty_cache,
    get_per_process_memory_fraction,
    max_memory_allocated,
    max_memory_reserved,
    mem_get_info,
    memory_allocated,
    memory_reserved,
    memory_stats,
    memory_summary,
    reset_max_memory_allocated,
    reset_peak_memory_stats,
    set_per_process_memory_fraction,
)
from wayfare.compat.cuda_streams import (
    Event,
    ExternalStream,
    Stream,
    StreamContext,
    current_stream,
    default_stream,
    is_current_stream_capturing,
    set_stream,
    stream,
)
from wayfare.core.errors import OperationError, OutOfMemoryError
from wayfare.core.missing_names import LEFT_OUT, no_such_name

__all__ = [
    "Event", "ExternalStream", "OutOfMemoryError", "Stream", "StreamContext", "can_device_access_peer",
    "current_device", "current_stream", "default_stream", "device", "device_count", "device_memory_used", "device_of",
    "empty_cache", "get_arch_list", "get_device_capability", "get_device_name", "get_device_properties",
    "get_per_process_memory_fraction", "get_rng_state", "get_rng_state_all", "get_stream_from_external", "init",
    "initial_seed", "is_available", "is_bf16_supported", "is_current_stream_capturing", "is_initialized",
    "is_tf32_supported", "manual_seed", "manual_seed_all", "max_memory_allocated", "max_memory_reserved",
    "mem_get_info", "memory_allocated", "memory_reserved", "memory_stats", "memory_summary",
    "reset_max_memory_allocated", "reset_peak_memory_stats", "seed", "seed_all", "set_device",
    "set_per_process_memory_fraction", "set_rng_state", "set_rng_state_all", "set_stream", "stream", "synchronize",
]  # fmt: skip

# As a package it may be asked for modules: `import wayfare.compat.cuda.amp` is answered with advice.
__path__: list[str] = []
_NO_SUCH = "it is not part of wf.cuda"


def is_available() -> bool:
    """Is there a GPU that CuPy can use?"""
    try:
        return bool(backend().count)
    except OperationError:
        return False


def is_initialized() -> bool:
    """Was CUDA asked for in this process?"""
    return backend_in_use() is not None


def init() -> None:
    """Start CUDA now, and not with the first tensor."""
    backend()


def device_count() -> int:
    """How many GPUs there are."""
    return int(backend().count) if is_available() else 0


# -- which one --------------------------------------------------------------------------------------------------------


def current_device() -> int:
    """The number of the GPU on which new tensors of "cuda" are made."""
    return number_of(None)


def set_device(device: Any) -> None:
    """Make a GPU the current one."""
    backend().xp.cuda.Device(number_of(device)).use()


class device:
    """`with wf.cuda.device(1):` — a GPU as the current one inside the block. None, or -1, changes nothing."""

    def __init__(self, device: Any) -> None:
        stays = device is None or (isinstance(device, int) and device < 0)
        self._inner = None if stays else backend().xp.cuda.Device(number_of(device))
        self.idx = -1 if self._inner is None else self._inner.id

    def __enter__(self) -> device:
        if self._inner is not None:
            self._inner.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        if self._inner is not None:
            self._inner.__exit__(*error)


class device_of(device):
    """`with wf.cuda.device_of(t):` — the GPU of a tensor as the current one; nothing changes if it is on the CPU."""

    def __init__(self, obj: wf.Tensor) -> None:
        super().__init__(obj.get_device() if obj.is_cuda else -1)


@dataclass(frozen=True)
class _Properties:
    """What a GPU is."""

    name: str
    major: int
    minor: int
    total_memory: int
    multi_processor_count: int
    warp_size: int
    max_threads_per_multi_processor: int
    shared_memory_per_block: int
    L2_cache_size: int


def get_device_properties(device: Any = None) -> _Properties:
    """Name, capability, memory and processors of a GPU."""
    found = backend().xp.cuda.runtime.getDeviceProperties(number_of(device))
    name = found["name"]
    return _Properties(
        name.decode() if isinstance(name, bytes) else str(name), int(found["major"]), int(found["minor"]),
        int(found["totalGlobalMem"]), int(found["multiProcessorCount"]), int(found["warpSize"]),
        int(found["maxThreadsPerMultiProcessor"]), int(found["sharedMemPerBlock"]), int(found["l2CacheSize"]),
    )  # fmt: skip


def get_device_name(device: Any = None) -> str:
    """The name of a GPU."""
    return get_device_properties(device).name


def get_device_capability(device: Any = None) -> tuple[int, int]:
    """The compute capability of a GPU, as (major, minor)."""
    found = get_device_properties(device)
    return found.major, found.minor


def can_device_access_peer(device: Any, peer_device: Any) -> bool:
    """Can a GPU read the memory of another one?"""
    here, there = number_of(device), number_of(peer_device)
    return here == there or bool(backend().xp.cuda.runtime.deviceCanAccessPeer(here, there))


def get_arch_list() -> list[str]:
    """The architectures that kernels are compiled for: those of the GPUs that are here."""
    found = (get_device_capability(number) for number in range(device_count()))
    return sorted({f"sm_{major}{minor}" for major, minor in found})


def is_bf16_supported(including_emulation: bool = True) -> bool:
    """Does the current GPU multiply bfloat16? Ops on it run on every GPU."""
    return is_available() and (including_emulation or get_device_capability()[0] >= 8)


def is_tf32_supported() -> bool:
    """Does the current GPU have TF32, which `wf.backends.cuda.matmul.allow_tf32` switches on?"""
    return is_available() and get_device_capability()[0] >= 8


# -- waiting -------------------------------------------------------------------------------------------------------


def get_stream_from_external(data_ptr: int, device: Any = None) -> Stream:
    """A stream of another library, by its address."""
    return ExternalStream(data_ptr, device)


def synchronize(device: Any = None) -> None:
    """Wait until all that was asked of a GPU is done. Errors of earlier ops (an index out of range) come here."""
    backend().synchronize(number_of(device))



# -- random numbers: one generator for all devices, so that they draw the same ---------------------------------------


def manual_seed(seed: int) -> None:
    """Seed the generator. There is one for all devices: the same seed draws the same numbers on each."""
    if backend_in_use() is not None:
        wf.manual_seed(seed)


def manual_seed_all(seed: int) -> None:
    """The same as `manual_seed`."""
    manual_seed(seed)


def seed() -> None:
    """Seed the generator from the operating system."""
    if backend_in_use() is not None:
        wf.seed()


def seed_all() -> None:
    """The same as `seed`."""
    seed()


def initial_seed() -> int:
    """The seed of the generator."""
    return wf.initial_seed()


def get_rng_state(device: Any = "cuda") -> wf.Tensor:
    """The state of the generator."""
    return wf.get_rng_state()


def set_rng_state(new_state: wf.Tensor, device: Any = "cuda") -> None:
    """Continue the generator from a state of `get_rng_state`."""
    wf.set_rng_state(new_state)


def get_rng_state_all() -> list[wf.Tensor]:
    """The state of the generator, in a list: there is one for all devices."""
    return [wf.get_rng_state()]


def set_rng_state_all(new_states: list[wf.Tensor]) -> None:
    """Continue the generator from a list of `get_rng_state_all`."""
    for state in new_states:
        wf.set_rng_state(state)


def __getattr__(name: str) -> NoReturn:
    raise no_such_name("wayfare.cuda", name, LEFT_OUT["wayfare.cuda"].get(name, _NO_SUCH))
