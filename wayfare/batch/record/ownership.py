"""Which memory and which modules belong to one example, and which all examples can see.

What an example makes is its own, and it may change it at any time. Everything else may be visible to the other examples
too: parameters, buffers, gradients, the tensors it was given. Before an example changes such an object it waits for its
turn, so that changes happen in the order of the loop and nobody sees them too early.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from weakref import ref

from wayfare.batch.record.signature import OWN_LEAF
from wayfare.core.buffer_pool import Lease
from wayfare.core.stand_in import StandIn
from wayfare.core.tensor import Tensor
from wayfare.core.write_clock import owner_of

if TYPE_CHECKING:
    from wayfare.batch.fibers.example import Example


class Ownership:
    """Which example made which memory and modules."""

    __slots__ = ("_given", "_makers", "_shared")

    def __init__(self) -> None:
        # id of an array that owns its memory, or of a module → (weak reference to it, the example that made it, the
        # number of calls that were recorded before)
        self._makers: dict[int, tuple[Any, Example, int]] = {}
        # id of the memory of an argument → the only example it was given to; None if there are several
        self._given: dict[int, Example | None] = {}
        # ids of the memory that somebody besides one tensor may see: views of it, NumPy, nodes of the graph
        self._shared: set[int] = set()

    def clear(self) -> None:
        """Forget everything: the session has ended."""
        self._makers.clear()
        self._given.clear()
        self._shared.clear()

    def add(self, thing: Any, example: Example | None, when: int = 0) -> None:
        """An example made an array or a module. (An array that is a view of another is not its own.)"""
        base = getattr(thing, "base", None)
        if example is None or not (base is None or isinstance(base, Lease)):
            return
        self._makers[id(thing)] = (ref(thing), example, when)
        self._shared.discard(id(thing))

    def share(self, tensor: Tensor) -> None:
        """Others may see the memory of a tensor from now on."""
        self._shared.add(id(owner_of(tensor._array)))

    def share_all(self) -> None:
        """Code that nobody watches is about to run: others may see all memory that was made so far."""
        self._shared.update(self._makers)

    def has_private_memory(self, tensor: Tensor, example: Example | None) -> bool:
        """Whether an example made an ordinary tensor, and nothing but this tensor can see its memory."""
        if example is None or tensor._view is not None or tensor._array.base is not None:
            return False
        return id(tensor._array) not in self._shared and self.maker(tensor) is example

    def add_arguments(self, example: Example) -> None:
        """Note the tensors among the arguments of an example."""
        for part in example.args:
            if isinstance(part, Tensor) and part.__class__ is not StandIn:
                key = id(owner_of(part._array))
                self._given[key] = example if self._given.get(key, example) is example else None
                if part._requires_grad and part._edge is None and not hasattr(part, "_role"):
                    part._handle = OWN_LEAF

    def born_at(self, tensor: Tensor) -> int:
        """How many calls were recorded before a tensor was made; 0 if unknown."""
        found = self._makers.get(id(owner_of(tensor._array)))
        return 0 if found is None else found[2]

    def given_to(self, tensor: Tensor) -> Example | None:
        """The only example that a tensor was given to, or that made it; None if there is none."""
        if tensor.__class__ is not StandIn:
            found = self._given.get(id(owner_of(tensor._array)))
            if found is not None:
                return found
        return self.maker(tensor)

    def maker(self, thing: Any) -> Example | None:
        """The example that made a module or the memory of a tensor; None if it came from outside."""
        while thing.__class__ is StandIn:
            origin = thing._handle.origin
            if origin is None:
                made_in: Example | None = thing._handle.call.example
                return made_in
            thing = origin[0]
        if isinstance(thing, Tensor):
            thing = owner_of(thing._array)
        found = self._makers.get(id(thing))
        # The id may have been reused for another object.
        return found[1] if found is not None and found[0]() is thing else None
