"""Running a program: its steps one after the other, with sizes worked out as values come to be."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from wayfare.eager import apply
from wayfare.errors import OperationError
from wayfare.fusion.sizes import Dim, Number, settled
from wayfare.onnx.program import Block, Node, Program, Var
from wayfare.op import REGISTRY
from wayfare.ops.recurrence_onnx import Repeated
from wayfare.program.numbers import MOST_STEPS
from wayfare.tensor import Tensor, wrap

_STACK = REGISTRY["stack"]


class Runner:
    """A program ready to run, with its constants as tensors."""

    def __init__(self, program: Program, constants: dict[int, Tensor], limit: int, turns: int) -> None:
        self.program = program
        self.limit = limit
        self.turns = turns
        self._constants = constants
        self._sizes: dict[int, list[tuple[int, int]]] = {}
        for number, (var, axis) in enumerate(program.symbols):
            self._sizes.setdefault(id(var), []).append((number, axis))
        self._varies = {id(node): _varies(node.attrs) for node in program.block.walk()}

    def __call__(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """The results for these inputs."""
        call = _Call(self, dict(self._constants), [0] * len(self.program.symbols))
        block = self.program.block
        for var, tensor in zip(block.inputs, tensors, strict=True):
            call.bind(var, tensor)
        return call.run(block)


class _Call:
    """One call: the tensors so far, and the sizes."""

    def __init__(self, runner: Runner, known: dict[int, Tensor], sizes: list[int]) -> None:
        self.runner = runner
        self.known = known
        self.sizes = sizes
        self.turns = 0

    def bind(self, var: Var, tensor: Tensor) -> None:
        """A variable is this tensor from now on."""
        self.known[id(var)] = tensor
        for number, axis in self.runner._sizes.get(id(var), ()):
            self.sizes[number] = tensor.shape[axis] if axis >= 0 else int(tensor._array)

    def run(self, block: Block) -> list[Tensor]:
        """The steps of a block; its results."""
        for node in block.nodes:
            if node.op is None:
                getattr(self, f"_{node.kind}")(node)
                continue
            attrs = self.settled(node.attrs) if self.runner._varies[id(node)] else node.attrs
            self._check_room(node)
            made = apply(node.op, tuple([self.known[id(v)] for v in node.inputs]), attrs)
            outputs = made if isinstance(made, tuple) else (made,)
            for var, tensor in zip(node.outputs, outputs, strict=True):
                if tensor.dtype is not var.dtype or tensor.ndim != len(var.shape):
                    raise OperationError(f"program: {node.op.name} gave {tensor.spec}, and the file says otherwise",
                                         fix="Make the file again with wf.export.")  # fmt: skip
                self.bind(var, tensor)
        return [self.known[id(v)] for v in block.outputs]

    def settled(self, structure: Any) -> Any:
        """Numbers worked out for the sizes of this call."""
        if isinstance(structure, dict):
            return {name: self.settled(part) for name, part in structure.items()}
        if isinstance(structure, tuple):
            return tuple(self.settled(part) for part in structure)
        if isinstance(structure, Repeated):
            times = self.settled(structure.times)
            if times > MOST_STEPS:
                raise OperationError(f"program: a recurrence would have {times:,} steps, over {MOST_STEPS:,}")
            return (self.settled(structure.value),) * times
        return settled(structure, self.sizes)

    def _check_room(self, node: Node) -> None:
        for var in node.outputs:
            count = var.dtype.itemsize
            for n in var.shape:
                count *= self.settled(n) if isinstance(n, Dim) else n
            if count > self.runner.limit:
                raise OperationError(f"program: {node.label} would make a value of {count:,} bytes, over the limit of "
                                     f"{self.runner.limit:,}", fix="Give load_program a larger `limit`.")  # fmt: skip

    # -- what is no op

    def _number(self, node: Node) -> None:
        (var,) = node.outputs
        self.bind(var, wrap(np.asarray(self.settled(node.attrs["value"])).astype(var.dtype.numpy)))

    def _grid(self, node: Node) -> None:
        """(start + Σ step·index along the axes) // over."""
        self._check_room(node)
        (var,) = node.outputs
        shape = self.settled(var.shape)
        total = np.full(shape, self.settled(node.attrs["start"]), var.dtype.numpy)
        for axis, formula in enumerate(node.attrs["steps"]):
            # Of one element there is no step: 1 / (n - 1).
            step = self.settled(formula) if shape[axis] > 1 else 0
            if step:
                ramp = (np.arange(shape[axis]) * step).astype(var.dtype.numpy)
                total += ramp.reshape(-1, *[1] * (len(shape) - axis - 1))
        self.bind(var, wrap(total if node.attrs["over"] == 1 else total // node.attrs["over"]))

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
            self.turns += 1
            if self.turns > self.runner.turns:
                raise OperationError(f"program: its loops have turned {self.runner.turns:,} times in this call",
                                     fix="If that is right, give load_program more `turns`.")  # fmt: skip
        for var, tensor in zip(node.outputs[:count], carried, strict=True):
            self.bind(var, tensor)
        for var, column in zip(node.outputs[count:], rows, strict=True):
            self.bind(var, self._stacked(var, column))

    def _stacked(self, var: Var, column: list[Tensor]) -> Tensor:
        if column:
            return apply(_STACK, tuple(column), {"dim": 0})  # type: ignore[no-any-return]
        return wrap(np.zeros((0, *self.settled(var.shape[1:])), var.dtype.numpy))


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
