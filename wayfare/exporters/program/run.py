"""Running a program: its steps one after the other, with sizes worked out as values come to be."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from wayfare.core.dispatch import apply
from wayfare.core.errors import OperationError, WayfareError
from wayfare.core.mode import executor
from wayfare.core.op import REGISTRY, Op
from wayfare.core.spec import Spec
from wayfare.core.symbolic_sizes import Dim, Number, settled
from wayfare.core.tensor import Tensor, wrap
from wayfare.exporters.onnx.program import Block, Node, Program, Var
from wayfare.exporters.program.held import Held, last_uses
from wayfare.exporters.program.numbers import LARGEST, Bad
from wayfare.exporters.program.ops import check_size, made_by
from wayfare.ops.recurrence_onnx import Repeated
from wayfare.ops.windows import memory_of

_STACK, _CLONE = REGISTRY["stack"], REGISTRY["clone"]
# Kinds of calls of one step that are remembered as fitting.
_KINDS = 64
# Bytes of a place in a tuple, of a tensor beside its numbers, and of what a step leaves behind for its gradient.
_POINTER, _TENSOR, _NODE = 8, 256, 512
# A call whose loops turn more often than this is not recorded: a plan would hold every turn.
MOST_RECORDED = 256


class Runner:
    """A program ready to run, with its constants as tensors."""

    def __init__(self, program: Program, constants: dict[int, Tensor], limit: int, turns: int) -> None:
        self.program = program
        self.limit = limit
        self.turns = turns
        self.most_turns = 0  # of the calls so far
        self._constants = constants
        self._sizes: dict[int, list[tuple[int, int]]] = {}
        for number, (var, axis) in enumerate(program.symbols):
            self._sizes.setdefault(id(var), []).append((number, axis))
        nodes = list(program.block.walk())
        self._varies = {id(node): _varies(node.attrs) for node in nodes}
        self._looks_beside = any(map(_looks_beside, nodes))
        self.unused_after = last_uses(program.block)
        # For each step the calls that were found to fit (shapes and dtypes of inputs, attributes that vary), with what
        # they give, the bytes of it, and the bytes needed on the way.
        self._fitting: dict[int, dict[Any, tuple[list[Spec], int, int]]] = {id(node): {} for node in nodes}

    def __call__(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """The results for these inputs."""
        call = _Call(self, dict(self._constants), [0] * len(self.program.symbols))
        block = self.program.block
        try:
            for var in self._constants_with_sizes():
                call.bind(var, self._constants[id(var)])
            for var, tensor in zip(block.inputs, tensors, strict=True):
                call.bind(var, self._alone(tensor) if self._looks_beside else tensor)
            return call.run(block)
        except Bad as why:
            raise OperationError(f"program: {why}", fix="A size of this call is none that the program was made for. If "
                                 "it is right, give load_program a larger `limit`, or export with examples of such "
                                 "sizes.") from None  # fmt: skip
        except (ArithmeticError, ValueError, TypeError, LookupError, MemoryError) as error:
            if isinstance(error, WayfareError):
                raise
            raise OperationError(f"program: a size of this call cannot be worked out: {error!s:.120}",
                                 fix="Make the file again with wf.export.") from None  # fmt: skip

    def _constants_with_sizes(self) -> list[Var]:
        return [var for var, _ in self.program.symbols if id(var) in self._constants]

    def _alone(self, tensor: Tensor) -> Tensor:
        """The tensor in memory of its own: steps that look at memory by strides see nothing beside it."""
        found = memory_of(tensor._array)
        return tensor if found is not None and found[0].size == tensor._array.size else apply(_CLONE, (tensor,))


class _Call:
    """One call: the tensors so far, and the sizes."""

    def __init__(self, runner: Runner, known: dict[int, Tensor], sizes: list[int]) -> None:
        self.runner = runner
        self.known = known
        self.sizes = sizes
        self.turns = 0
        self.held = Held(runner.limit)

    def bind(self, var: Var, tensor: Tensor) -> None:
        """A variable is this tensor from now on."""
        self.known[id(var)] = tensor
        for number, axis in self.runner._sizes.get(id(var), ()):
            # item() tells whoever records this call that a decision hangs on the number.
            self.sizes[number] = tensor.shape[axis] if axis >= 0 else int(tensor.item())

    def run(self, block: Block) -> list[Tensor]:
        """The steps of a block; its results."""
        known, unused_after = self.known, self.runner.unused_after
        for node in block.nodes:
            if node.op is None:
                getattr(self, f"_{node.kind}")(node)
            else:
                self._op(node, node.op)
            for var in unused_after[id(node)]:
                known.pop(var, None)
        return [known[id(v)] for v in block.outputs]

    def _op(self, node: Node, op: Op) -> None:
        varies = self.runner._varies[id(node)]
        attrs = self.settled(node.attrs) if varies else node.attrs
        inputs = tuple([self.known[id(v)] for v in node.inputs])
        kind: Any = tuple([(t._array.shape, t._array.dtype) for t in inputs])
        if varies:
            kind = (kind, tuple(attrs.values()))
        fitting = self.runner._fitting[id(node)]
        found = fitting.get(kind)
        if found is None:
            if len(fitting) >= _KINDS:
                fitting.clear()
            call = made_by(op, [t.spec for t in inputs], attrs, self.runner.limit)
            # A view makes nothing; where it cannot be one, the copy is counted when it is there.
            found = fitting[kind] = (call.made, 0 if op.view else call.size, call.room)
        promised, size, room = found
        self.held.expect(op.name, size, room)
        made = apply(op, inputs, attrs)
        outputs = made if isinstance(made, tuple) else (made,)
        for var, tensor, spec in zip(node.outputs, outputs, promised, strict=True):
            if tensor.dtype is not var.dtype or tensor.ndim != len(var.shape):
                raise Bad(f"{op.name} gave {tensor.spec}, and the file says otherwise")
            if tensor._array.shape != spec.shape:
                raise Bad(f"{op.name} gave {tensor.spec}, and its shape rule says {spec}")
            self.held.add(op.name, tensor._array)
            self.bind(var, tensor)

    def settled(self, structure: Any) -> Any:
        """Numbers worked out for the sizes of this call."""
        if isinstance(structure, dict):
            return {name: self.settled(part) for name, part in structure.items()}
        if isinstance(structure, tuple):
            return tuple(self.settled(part) for part in structure)
        if isinstance(structure, Repeated):
            times = self.settled(structure.times)
            if times * _POINTER > self.runner.limit:
                raise Bad(f"a recurrence would have {times:,} steps, over the {self.runner.limit:,} bytes allowed")
            return (self.settled(structure.value),) * times
        number = settled(structure, self.sizes)
        if isinstance(number, int) and not -LARGEST <= number <= LARGEST:
            raise Bad("a size is a number with too many digits")
        return number

    # -- what is no op

    def _number(self, node: Node) -> None:
        (var,) = node.outputs
        self.bind(var, wrap(np.asarray(self.settled(node.attrs["value"])).astype(var.dtype.numpy)))

    def _grid(self, node: Node) -> None:
        """(start + Σ step·index along the axes) // over."""
        (var,) = node.outputs
        shape = self.settled(var.shape)
        if any(n < 0 for n in shape):
            raise Bad(f"a grid would have the shape {list(shape)}")
        # Indices are counted in int64, whatever comes of them.
        check_size("grid", shape, max(8, var.dtype.itemsize), self.runner.limit)
        total = np.full(shape, self.settled(node.attrs["start"]), var.dtype.numpy)
        for axis, formula in enumerate(node.attrs["steps"]):
            # Of one element there is no step: 1 / (n - 1).
            step = self.settled(formula) if shape[axis] > 1 else 0
            if step:
                ramp = (np.arange(shape[axis]) * step).astype(var.dtype.numpy)
                total += ramp.reshape(-1, *[1] * (len(shape) - axis - 1))
        total = total if node.attrs["over"] == 1 else total // node.attrs["over"]
        self.held.add("grid", total)
        self.bind(var, wrap(total))

    def _if(self, node: Node) -> None:
        way = 0 if bool(self.known[id(node.inputs[0])]) else 1
        for var, tensor in zip(node.outputs, self.run(node.blocks[way]), strict=True):
            self.bind(var, tensor)

    def _loop(self, node: Node) -> None:
        (block,) = node.blocks
        trips, asks, count = self.settled(node.attrs["trips"]), node.attrs["asks"], node.attrs["carried"]
        inputs = [self.known[id(v)] for v in node.inputs]
        going = bool(inputs.pop(0)) if node.attrs["entry"] else True
        carried, rows, step = inputs, [[] for _ in node.outputs[count:]], 0  # type: ignore[var-annotated]
        counter, *states = block.inputs
        while going and (trips is None or step < trips):
            self.bind(counter, wrap(np.asarray(step)))
            for var, tensor in zip(states, carried, strict=True):
                self.bind(var, tensor)
            outs = self.run(block)
            going = bool(outs.pop(0)) if asks else True
            carried = outs[:count]
            for column, part in zip(rows, outs[count:], strict=True):
                column.append(part)
            step += 1
            if len(rows) * step * _TENSOR > self.runner.limit:
                raise Bad(f"a loop has collected {step:,} values, over the {self.runner.limit:,} bytes allowed")
            if any([t._requires_grad for t in carried]) and step * len(block.nodes) * _NODE > self.runner.limit:
                raise Bad(f"a loop has turned {step:,} times, and what it keeps for its gradient takes more than the "
                          f"{self.runner.limit:,} bytes allowed")  # fmt: skip
            self.turns += 1
            self.runner.most_turns = max(self.runner.most_turns, self.turns)
            if self.turns == MOST_RECORDED:
                executor().not_replayable(f"its loops turn more than {MOST_RECORDED} times")
            if self.turns > self.runner.turns:
                raise OperationError(f"program: its loops have turned {self.runner.turns:,} times in this call",
                                     fix="If that is right, give load_program more `turns`.")  # fmt: skip
        for var, tensor in zip(node.outputs[:count], carried, strict=True):
            self.bind(var, tensor)
        for var, column in zip(node.outputs[count:], rows, strict=True):
            self.bind(var, self._stacked(var, column))

    def _stacked(self, var: Var, column: list[Tensor]) -> Tensor:
        if not column:
            return wrap(np.zeros((0, *self.settled(var.shape[1:])), var.dtype.numpy))
        self.held.expect("loop", made_by(_STACK, [t.spec for t in column], {"dim": 0}, self.runner.limit).size, 0)
        stacked: Tensor = apply(_STACK, tuple(column), {"dim": 0})
        self.held.add("loop", stacked._array)
        return stacked


def _looks_beside(node: Node) -> bool:
    """Can the step see memory beside its input?"""
    return node.label == "as_strided" or "as_strided" in str(node.attrs.get("path", ""))


def _varies(value: Any) -> bool:
    if isinstance(value, dict):
        return any(map(_varies, value.values()))
    if isinstance(value, tuple):
        return any(map(_varies, value))
    return isinstance(value, (Dim, Number, Repeated))


def opaque(runner: Runner) -> Callable[..., list[Tensor]]:
    """The runner as a plain function, into which guards of compiled functions do not look: nothing in it changes."""

    def run(*tensors: Tensor) -> list[Tensor]:
        return runner(tensors)

    return run
