"""What belongs to one example, and what all examples see.

Memory and modules that an example makes are its own, and it may change them at any time. Everything else may be seen by
the other examples too: parameters, buffers, gradients, the tensors it was given. Before such a thing changes, the
example waits for its turn, so that the changes happen in the order of the loop and nobody sees them too early.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from weakref import ref

from wayfare.batch.record.lazy_tensor import LazyTensor
from wayfare.batch.record.signature import OWN_LEAF
from wayfare.core.buffer_pool import Lease
from wayfare.core.tensor import Tensor
from wayfare.core.write_clock import owner_of

if TYPE_CHECKING:
    from wayfare.batch.fibers.example import Example


class Ownership:
    """Which example has made what."""

    __slots__ = ("_given", "_makers")

    def __init__(self) -> None:
        # id of an array that owns its memory, or of a module → that, weakly, the example that made it, and when: how
        # many calls were recorded before it
        self._makers: dict[int, tuple[Any, Example, int]] = {}
        # id of the memory of a tensor that is an argument → the one example it was given to, or None if to several
        self._given: dict[int, Example | None] = {}

    def clear(self) -> None:
        """Nobody asks any more."""
        self._makers.clear()
        self._given.clear()

    def add(self, thing: Any, example: Example | None, when: int = 0) -> None:
        """An example has made an array or a module. (An array on the memory of another is not its own.)"""
        base = getattr(thing, "base", None)
        if example is None or not (base is None or isinstance(base, Lease)):
            return
        self._makers[id(thing)] = (ref(thing), example, when)

    def add_arguments(self, example: Example) -> None:
        """Note the tensors among an example's arguments."""
        for part in example.args:
            if isinstance(part, Tensor) and part.__class__ is not LazyTensor:
                key = id(owner_of(part._array))
                self._given[key] = example if self._given.get(key, example) is example else None
                if part._requires_grad and part._edge is None and not hasattr(part, "_role"):
                    part._lazy = OWN_LEAF

    def born_at(self, tensor: Tensor) -> int:
        """How many calls were recorded before a tensor was made; 0 where nobody knows."""
        found = self._makers.get(id(owner_of(tensor._array)))
        return 0 if found is None else found[2]

    def given_to(self, tensor: Tensor) -> Example | None:
        """The one example that a tensor was given to, or that has made it."""
        if tensor.__class__ is not LazyTensor:
            found = self._given.get(id(owner_of(tensor._array)))
            if found is not None:
                return found
        return self.maker(tensor)

    def maker(self, thing: Any) -> Example | None:
        """The example that has made a tensor's memory, or a module; None where it came from outside."""
        while thing.__class__ is LazyTensor:
            origin = thing._lazy.origin
            if origin is None:
                made_in: Example | None = thing._lazy.call.example
                return made_in
            thing = origin[0]
        if isinstance(thing, Tensor):
            thing = owner_of(thing._array)
        found = self._makers.get(id(thing))
        # Another one may have come to the address of one that is gone.
        return found[1] if found is not None and found[0]() is thing else None
