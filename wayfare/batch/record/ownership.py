"""Which memory and which modules belong to one example, and which all examples can see.

What an example makes is its own, and it may change it at any time. Everything else may be visible to the other examples
too: parameters, buffers, gradients, the tensors it was given. Before an example changes such an object it waits for its
turn, so that changes happen in the order of the loop and nobody sees them too early.
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
    """Which example made which memory and modules."""

    __slots__ = ("_given", "_makers")

    def __init__(self) -> None:
        # id of an array that owns its memory, or of a module → (weak reference to it, the example that made it, the
        # number of calls that were recorded before)
        self._makers: dict[int, tuple[Any, Example, int]] = {}
        # id of the memory of an argument → the only example it was given to; None if there are several
        self._given: dict[int, Example | None] = {}

    def clear(self) -> None:
        """Forget everything: the session has ended."""
        self._makers.clear()
        self._given.clear()

    def add(self, thing: Any, example: Example | None, when: int = 0) -> None:
        """An example made an array or a module. (An array that is a view of another is not its own.)"""
        base = getattr(thing, "base", None)
        if example is None or not (base is None or isinstance(base, Lease)):
            return
        self._makers[id(thing)] = (ref(thing), example, when)

    def add_arguments(self, example: Example) -> None:
        """Note the tensors among the arguments of an example."""
        for part in example.args:
            if isinstance(part, Tensor) and part.__class__ is not LazyTensor:
                key = id(owner_of(part._array))
                self._given[key] = example if self._given.get(key, example) is example else None
                if part._requires_grad and part._edge is None and not hasattr(part, "_role"):
                    part._lazy = OWN_LEAF

    def born_at(self, tensor: Tensor) -> int:
        """How many calls were recorded before a tensor was made; 0 if unknown."""
        found = self._makers.get(id(owner_of(tensor._array)))
        return 0 if found is None else found[2]

    def given_to(self, tensor: Tensor) -> Example | None:
        """The only example that a tensor was given to, or that made it; None if there is none."""
        if tensor.__class__ is not LazyTensor:
            found = self._given.get(id(owner_of(tensor._array)))
            if found is not None:
                return found
        return self.maker(tensor)

    def maker(self, thing: Any) -> Example | None:
        """The example that made a module or the memory of a tensor; None if it came from outside."""
        while thing.__class__ is LazyTensor:
            origin = thing._lazy.origin
            if origin is None:
                made_in: Example | None = thing._lazy.call.example
                return made_in
            thing = origin[0]
        if isinstance(thing, Tensor):
            thing = owner_of(thing._array)
        found = self._makers.get(id(thing))
        # The id may have been reused for another object.
        return found[1] if found is not None and found[0]() is thing else None
