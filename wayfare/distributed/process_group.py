"""Process groups: who takes part. One group of all processes is the default of every call."""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import io
import sys
import time
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

import numpy as np

from wayfare.core import launched
from wayfare.core.callsite import current_site
from wayfare.core.config import settings
from wayfare.core.errors import ArgumentError, ArgumentTypeError, DistributedError
from wayfare.core.version import __version__
from wayfare.distributed.agreement import Agreement, differing_ranks
from wayfare.distributed.departures import Departures
from wayfare.distributed.engine import Engine, LocalEngine, Request
from wayfare.distributed.work import _BACKGROUND, Stats, Work, seconds

__all__ = ["ProcessGroup", "adopt_engine", "destroy_process_group", "get_backend", "get_global_rank", "get_group_rank",
           "get_process_group_ranks", "get_rank", "get_world_size", "init_process_group", "is_available",
           "is_initialized", "is_mpi_available", "is_nccl_available", "new_group"]  # fmt: skip

Backend = Literal["auto", "mpi", "nccl", "ray", "gloo"]
_HALF_HOUR = 1800.0
# Seconds between the error of a rank and the end of all, where the other ranks have the same error to show.
_GRACE = 0.3
_STARTERS = ("runpy", "mpi4py", launched.__file__)
_INSTALL = 'Install it with: pip install "wayfare[mpi]" (mpi4py, and Open MPI with its mpirun).'


class ProcessGroup:
    """Some of the processes, in an order: their ranks in the group are 0 … size - 1."""

    def __init__(self, engine: Engine, ranks: Sequence[int], timeout: float, name: str = "world") -> None:
        self.engine = engine
        self.ranks = tuple(ranks)
        self.timeout = timeout
        self.name = name
        self.stats = Stats()
        self.departures = Departures(engine, self.ranks)
        self.agreement = Agreement(engine, self.departures) if settings.distributed_debug else None
        _WORLD.alive.add(self)

    def rank(self) -> int:
        """This process's rank in the group."""
        return self.engine.rank

    def size(self) -> int:
        """How many processes there are."""
        return self.engine.size

    def work(self, request: Request, call: str, *, size: int = 0, finish: Any = None, background: bool = False) -> Work:
        """The Work of a transfer between all ranks of the group, which was started."""
        return self._counted(request, call, self.departures.call(call), size, finish, background)

    def message(
        self, request: Request, call: str, rank: int, *, sends: bool, size: int = 0, finish: Any = None
    ) -> Work:
        """The Work of a message to or from a rank of the group, which was started."""
        look = self.departures.message(call, rank, sends=sends)
        return self._counted(request, call, look, size, finish, background=True)

    def _counted(
        self, request: Request, call: str, look: Callable[[], None], size: int, finish: Any, background: bool
    ) -> Work:
        self.stats.calls += 1
        self.stats.bytes += size
        return Work(request, call=call, timeout=self.timeout, stats=self.stats, finish=finish, look=look,
                    background=background)  # fmt: skip

    def agree(self, call: str, about: str = "") -> None:
        """In debug mode: raise on every rank if the ranks do not all make this call now."""
        if self.agreement is not None:
            self.agreement.check(call, about, current_site(), self.timeout)

    def split(self, ranks: Sequence[int], call: str) -> Engine | None:
        """The engine of a group of these ranks, None outside it. Every rank calls it, or it is an error in time."""
        # A split may wait without an end for a rank that does not come: so all meet before it.
        self.work(self.engine.barrier(), call).wait()
        return self.engine.split(ranks)

    def leave(self) -> None:
        """This rank makes no more calls, and says so."""
        self.departures.leave()
        self.close()

    def close(self) -> None:
        """No rank makes any more calls."""
        _WORLD.alive.discard(self)
        self.engine.close()

    def index_of(self, rank: int, what: str) -> int:
        """The rank in this group of a global rank."""
        if type(rank) is not int or rank not in self.ranks:
            raise ArgumentError(f"distributed: {what}={rank!r} is not one of the ranks of the group, "
                                f"{_listed(self.ranks)}")  # fmt: skip
        return self.ranks.index(rank)

    def __deepcopy__(self, _memo: Any) -> ProcessGroup:
        return self  # a copy of a model is trained by the same processes

    def __repr__(self) -> str:
        return f"<ProcessGroup {self.name!r} of {self.size()} ranks over {self.engine.name}>"


class _World:
    """The group of all processes, and the groups made of it."""

    def __init__(self) -> None:
        self.group: ProcessGroup | None = None
        self.made: list[ProcessGroup] = []
        # Also those of DistributedDataParallel.
        self.alive: weakref.WeakSet[ProcessGroup] = weakref.WeakSet()


_WORLD = _World()


class _Default(type):
    @property
    def WORLD(cls) -> ProcessGroup | None:
        """The group of all processes; None before `init_process_group`."""
        return _WORLD.group


class group(metaclass=_Default):
    """`group.WORLD` is the group of all processes."""


class GroupMember(metaclass=_Default):
    """What `new_group` gives to a process outside the group; and `GroupMember.WORLD`."""

    NON_GROUP_MEMBER = -100


def world() -> ProcessGroup:
    """The group of all processes; an error before `init_process_group`."""
    if _WORLD.group is None:
        raise DistributedError("distributed: there is no process group yet",
                               fix="Call wf.distributed.init_process_group() first.")  # fmt: skip
    return _WORLD.group


def group_of(group: Any) -> ProcessGroup:
    """The group that a call means: the one given, or that of all processes."""
    if group is None:
        return world()
    if isinstance(group, ProcessGroup):
        return group
    if group == GroupMember.NON_GROUP_MEMBER:
        raise DistributedError(f"distributed: rank {get_rank()} is not in this group",
                               fix="Call it on the ranks that new_group was given only.")  # fmt: skip
    raise ArgumentTypeError(f"distributed: group must come from new_group, this is a {type(group).__name__}")


def init_process_group(
    backend: str | None = None, init_method: str | None = None, timeout: Any = None, world_size: int = -1,
    rank: int = -1, store: Any = None, group_name: str = "", pg_options: Any = None, device_id: Any = None,
) -> None:  # fmt: skip
    """Join the other processes of this run.

    `backend` is "mpi" for processes started by `mpirun` or `wayfare launch`, and "auto" (or None) for what there is:
    a process that was started alone gets a group of one. "gloo" means "mpi", so that scripts of PyTorch run. The ranks
    are the engine's, so `init_method` and `store` are not needed; `world_size` and `rank`, if given, must be right.
    """
    if _WORLD.group is not None:
        raise DistributedError("init_process_group: there is a process group already",
                               fix="Call destroy_process_group() first.")  # fmt: skip
    engine = _engine(backend)
    _check_place(engine, world_size, rank)
    adopt_engine(engine, timeout)


def adopt_engine(engine: Engine, timeout: Any = None) -> ProcessGroup:
    """Make an engine's processes the group of all processes."""
    group = ProcessGroup(engine, range(engine.size), _HALF_HOUR if timeout is None else seconds(timeout))
    _same_program(group)
    _WORLD.group = group
    if engine.size > 1:
        _Hook.install(engine)
        atexit.register(_leave)
    return group


def _engine(backend: Any) -> Engine:
    known = ("mpi", "nccl", "ray", "auto", "gloo")
    name = "auto" if backend is None else str(backend).lower().removeprefix("cpu:")
    if name not in known:
        raise ArgumentError(f"init_process_group: backend must be one of {', '.join(known)}, it is {backend!r}")
    if name == "nccl":
        raise DistributedError('init_process_group: "nccl" moves tensors between GPUs, and Wayfare has no GPU tensors '
                               "yet", fix='Use "mpi", which moves those of the CPU.')  # fmt: skip
    if name == "ray":
        raise DistributedError('init_process_group: "ray" is made by Ray: its workers join before train_fn runs',
                               fix="Start the run with wayfare.ray.Trainer.")  # fmt: skip
    if name == "auto" and settings.launched_ranks is None:
        return LocalEngine()
    try:
        from wayfare.distributed.mpi import MPIEngine
    except ModuleNotFoundError as error:
        if error.name is None or not error.name.startswith("mpi4py"):
            raise
        raise DistributedError("init_process_group: mpi4py is not installed", fix=_INSTALL) from None
    except (ImportError, RuntimeError) as error:
        raise DistributedError(f"init_process_group: MPI could not be loaded ({error})", fix=_INSTALL) from None
    engine = MPIEngine()
    wanted = settings.launched_ranks
    if wanted is not None and wanted != engine.size:
        raise DistributedError(f"init_process_group: {wanted} processes were launched and MPI knows of {engine.size}",
                               fix="mpirun and mpi4py belong to different MPIs: use the mpirun of this Python's "
                               "environment (wayfare launch does).")  # fmt: skip
    return engine


def _check_place(engine: Engine, world_size: int, rank: int) -> None:
    """The numbers a script gives must be those of the run."""
    script = Path(sys.argv[0]).name or "train.py"
    if world_size not in (-1, engine.size):
        raise DistributedError(f"init_process_group: world_size={world_size} was given, and "
                               f"{engine.size} process{' was' if engine.size == 1 else 'es were'} started",
                               fix=f"Start it with: wayfare launch -n {world_size} {script}, or leave world_size "
                               "out.")  # fmt: skip
    if rank not in (-1, engine.rank):
        raise DistributedError(f"init_process_group: rank={rank} was given to the process of rank {engine.rank}",
                               fix="Leave it out: mpirun decides.")  # fmt: skip


def _same_program(group: ProcessGroup) -> None:
    """All ranks must run the same program with the same Wayfare: else they would wait for each other in vain."""
    parts = {"program": _digest_of_main(), "version of Wayfare": __version__, "version of NumPy": np.__version__}
    for what, text in parts.items():
        others = differing_ranks(group, text.encode())
        if others:
            raise DistributedError(f"init_process_group: the {what} of rank{'s' if len(others) > 1 else ''} "
                                   f"{_listed(others)} is not that of rank 0 (here: {text[:16]})",
                                   fix="Start all ranks from the same files and environment.")  # fmt: skip


def _digest_of_main() -> str:
    """A hash of the script's text."""
    path = getattr(sys.modules.get("__main__"), "__file__", None)
    try:
        return hashlib.sha256(Path(path).read_bytes()).hexdigest() if path else "no file"
    except OSError:
        return "no file"


class _Hook:
    """A rank that raises shows its traceback and ends all: the others would wait for it."""

    before: Any = None

    @classmethod
    def install(cls, engine: Engine) -> None:
        if cls.before is not None:
            return
        cls.before = sys.excepthook

        def end_all(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
            interrupted = issubclass(kind, KeyboardInterrupt)
            try:
                if not interrupted:
                    error.__traceback__ = _of_the_script(trace)
                    # In one piece, so that those of several ranks do not mix.
                    with contextlib.redirect_stderr(io.StringIO()) as text:
                        cls.before(kind, error, error.__traceback__)
                    sys.stderr.write(f"wayfare: rank {engine.rank} of {engine.size} failed:\n{text.getvalue()}")
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                if isinstance(error, DistributedError):
                    time.sleep(_GRACE)
                engine.abort(130 if interrupted else 1)

        sys.excepthook = end_all

    @classmethod
    def remove(cls) -> None:
        if cls.before is not None:
            sys.excepthook, cls.before = cls.before, None


def _of_the_script(trace: TracebackType | None) -> TracebackType | None:
    """A traceback without the frames of `python -m mpi4py` and of the launcher, which have started the script."""
    step = trace
    while step is not None and any(word in step.tb_frame.f_code.co_filename for word in _STARTERS):
        step = step.tb_next
    return trace if step is None else step


def destroy_process_group(group: ProcessGroup | None = None) -> None:
    """Leave the group of all processes, or one that `new_group` made."""
    if group is not None and group is not _WORLD.group:
        found = group_of(group)
        _WORLD.made.remove(found)
        found.leave()
        return
    last = world()
    _leave()
    del last


def _leave() -> None:
    group, _WORLD.group = _WORLD.group, None
    for each in _WORLD.alive:
        each.departures.leave()
    _WORLD.alive.clear()
    if group is not None:
        _BACKGROUND.finish(group.timeout)
    _BACKGROUND.stop()
    made, _WORLD.made = _WORLD.made, []
    _Hook.remove()
    if group is not None and sys.exc_info()[0] is None:
        for each in [*made, group]:
            each.engine.close()
    atexit.unregister(_leave)


def is_available() -> bool:
    """Can processes be joined at all? Always: a process alone is a group of one."""
    return True


def is_mpi_available() -> bool:
    """Is mpi4py installed?"""
    from importlib.util import find_spec

    return find_spec("mpi4py") is not None


def is_nccl_available() -> bool:
    """Not yet: there are no GPU tensors."""
    return False


def is_initialized() -> bool:
    """Was `init_process_group` called?"""
    return _WORLD.group is not None


def get_rank(group: Any = None) -> int:
    """This process's number in the group, -1 outside it."""
    return -1 if group == GroupMember.NON_GROUP_MEMBER else group_of(group).rank()


def get_world_size(group: Any = None) -> int:
    """How many processes the group has, -1 outside it."""
    return -1 if group == GroupMember.NON_GROUP_MEMBER else group_of(group).size()


def get_backend(group: Any = None) -> str:
    """The name of the engine: "mpi", or "local" for a process alone."""
    return group_of(group).engine.name


def get_process_group_ranks(group: Any = None) -> list[int]:
    """The global ranks of a group."""
    return list(group_of(group).ranks)


def get_global_rank(group: Any, group_rank: int) -> int:
    """The global rank of a rank of a group."""
    return group_of(group).ranks[group_rank]


def get_group_rank(group: Any, global_rank: int) -> int:
    """The rank in a group of a global rank."""
    return group_of(group).index_of(global_rank, "global_rank")


def new_group(
    ranks: Sequence[int] | None = None, timeout: Any = None, backend: str | None = None, pg_options: Any = None,
    use_local_synchronization: bool = False, group_desc: str | None = None,
) -> Any:  # fmt: skip
    """A group of some ranks (None: all). Every process must call it, in the same order, also those outside."""
    everyone = world()
    chosen = list(everyone.ranks) if ranks is None else sorted(ranks)
    if len(set(chosen)) != len(chosen) or not chosen or not set(chosen) <= set(everyone.ranks):
        raise ArgumentError(f"new_group: ranks must be different ones of 0 to {everyone.size() - 1}, they are "
                            f"{ranks!r}")  # fmt: skip
    everyone.agree("new_group", str(chosen))
    engine = everyone.split(chosen, "new_group")
    if engine is None:
        return GroupMember.NON_GROUP_MEMBER
    limit = everyone.timeout if timeout is None else seconds(timeout)
    made = ProcessGroup(engine, chosen, limit, group_desc or f"group {len(_WORLD.made) + 1}")
    _WORLD.made.append(made)
    return made


def _listed(ranks: Sequence[int]) -> str:
    return ", ".join(str(rank) for rank in ranks)

