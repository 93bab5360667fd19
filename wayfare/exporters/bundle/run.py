"""Running a program: its steps in order, with sizes computed as values become known."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from wayfare.core.dispatch import apply
from wayfare.core.errors import OperationError, WayfareError
from wayfare.core.mode import executor
from wayfare.core.op import REGISTRY, Op
from wayfare.core.spec import Spec
from wayfare.core.symbolic_sizes import Dim, Number, Repeated, evaluated
from wayfare.core.tensor import Tensor, wrap
from wayfare.exporters.bundle.check_ops import check_size, made_by
from wayfare.exporters.bundle.json_values import LARGEST, Bad
from wayfare.exporters.bundle.memory import MemoryUse, last_uses
from wayfare.ir.graph import Block, Step, Value
from wayfare.ir.program import Program
from wayfare.ops.movement.windows import memory_of

_STACK, _CLONE = REGISTRY["stack"], REGISTRY["clone"]
# How many signatures of checked calls are remembered for each step.
_KINDS = 64
# Bytes of a pointer in a tuple, of a Tensor object without its numbers, and of a node kept for the gradient.
_POINTER, _TENSOR, _NODE = 8, 256, 512
# A call with more loop iterations than this is not recorded: a plan would unroll all of them.
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
        for number, (value, axis) in enumerate(program.symbols):
            self._sizes.setdefault(id(value), []).append((number, axis))
        steps = list(program.block.walk())
        self._varies = {id(step): _varies(step.attrs) for step in steps}
        self._reads_outside = any(map(_reads_outside, steps))
        self.unused_after = last_uses(program.block)
        # For each step, the calls that were checked (shapes and dtypes of inputs, varying attributes), with the specs
        # of the results, their bytes, and the bytes of workspace.
        self._fitting: dict[int, dict[Any, tuple[list[Spec], int, int]]] = {id(step): {} for step in steps}

    def __call__(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """The results for these inputs."""
        call = _Call(self, dict(self._constants), [0] * len(self.program.symbols))
        block = self.program.block
        try:
            for value in self._constants_with_sizes():
                call.bind(value, self._constants[id(value)])
            for value, tensor in zip(block.inputs, tensors, strict=True):
                call.bind(value, self._in_own_memory(tensor) if self._reads_outside else tensor)
            return call.run(block)
        except Bad as why:
            raise OperationError(f"program: {why}", fix="The program was not made for a size of this call. If "
                                 "it is right, give load_program a larger `limit`, or export with examples of such "
                                 "sizes.") from None  # fmt: skip
        except (ArithmeticError, ValueError, TypeError, LookupError, MemoryError) as error:
            if isinstance(error, WayfareError):
                raise
            raise OperationError(f"program: a size of this call cannot be worked out: {error!s:.120}",
                                 fix="Make the file again with wf.export.") from None  # fmt: skip

    def _constants_with_sizes(self) -> list[Value]:
        return [value for value, _ in self.program.symbols if id(value) in self._constants]

    def _in_own_memory(self, tensor: Tensor) -> Tensor:
        """The tensor, copied if its memory has more elements: as_strided must not read those."""
        found = memory_of(tensor._array)
        return tensor if found is not None and found[0].size == tensor._array.size else apply(_CLONE, (tensor,))


class _Call:
    """One call: the tensors so far, and the sizes."""

    def __init__(self, runner: Runner, known: dict[int, Tensor], sizes: list[int]) -> None:
        self.runner = runner
        self.known = known
        self.sizes = sizes
        self.turns = 0
        self.memory = MemoryUse(runner.limit)

    def bind(self, value: Value, tensor: Tensor) -> None:
        """Set the tensor of a value, and the size symbols that belong to it."""
        self.known[id(value)] = tensor
        for number, axis in self.runner._sizes.get(id(value), ()):
            # item() tells the recorder of wf.compile that Python read this number.
            self.sizes[number] = tensor.shape[axis] if axis >= 0 else int(tensor.item())

    def run(self, block: Block) -> list[Tensor]:
        """Run the steps of a block; returns its results."""
        known, unused_after = self.known, self.runner.unused_after
        for step in block.steps:
            if step.op is None:
                getattr(self, f"_{step.kind}")(step)
            else:
                self._op(step, step.op)
            for value in unused_after[id(step)]:
                known.pop(value, None)
        return [known[id(v)] for v in block.outputs]

    def _op(self, step: Step, op: Op) -> None:
        varies = self.runner._varies[id(step)]
        attrs = self.evaluated(step.attrs) if varies else step.attrs
        inputs = tuple([self.known[id(v)] for v in step.inputs])
        kind: Any = tuple([(t._array.shape, t._array.dtype) for t in inputs])
        if varies:
            kind = (kind, tuple(attrs.values()))
        fitting = self.runner._fitting[id(step)]
        found = fitting.get(kind)
        if found is None:
            if len(fitting) >= _KINDS:
                fitting.clear()
            call = made_by(op, [t.spec for t in inputs], attrs, self.runner.limit)
            # A view makes no new memory; if NumPy had to copy, the copy is counted afterwards.
            found = fitting[kind] = (call.made, 0 if op.view else call.size, call.workspace)
        promised, size, workspace = found
        self.memory.expect(op.name, size, workspace)
        made = apply(op, inputs, attrs)
        outputs = made if isinstance(made, tuple) else (made,)
        for value, tensor, spec in zip(step.outputs, outputs, promised, strict=True):
            if tensor._array.dtype != value.dtype or tensor.ndim != value.ndim:
                raise Bad(f"{op.name} gave {tensor.spec}, and the file says otherwise")
            if tensor._array.shape != spec.shape:
                raise Bad(f"{op.name} gave {tensor.spec}, and its shape rule says {spec}")
            self.memory.add(op.name, tensor._array)
            self.bind(value, tensor)

    def evaluated(self, structure: Any) -> Any:
        """Formulas replaced by their values for the sizes of this call."""
        if isinstance(structure, dict):
            return {name: self.evaluated(part) for name, part in structure.items()}
        if isinstance(structure, tuple):
            return tuple(self.evaluated(part) for part in structure)
        if isinstance(structure, Repeated):
            times = self.evaluated(structure.times)
            if times * _POINTER > self.runner.limit:
                raise Bad(f"a recurrence would have {times:,} steps, over the {self.runner.limit:,} bytes allowed")
            return (self.evaluated(structure.value),) * times
        number = evaluated(structure, self.sizes)
        if isinstance(number, int) and not -LARGEST <= number <= LARGEST:
            raise Bad("a size is a number with too many digits")
        return number

    # -- steps other than ops

    def _number(self, step: Step) -> None:
        (value,) = step.outputs
        self.bind(value, wrap(np.asarray(self.evaluated(step.data)).astype(value.dtype)))

    def _grid(self, step: Step) -> None:
        """(start + Σ step·index along the axes) // over."""
        (value,) = step.outputs
        shape = self.evaluated(value.shape)
        if any(n < 0 for n in shape):
            raise Bad(f"a grid would have the shape {list(shape)}")
        # Indices are computed in int64 for every dtype of the result.
        check_size("grid", shape, max(8, value.dtype.itemsize), self.runner.limit)
        total = np.full(shape, self.evaluated(step.attrs["start"]), value.dtype)
        for axis, formula in enumerate(step.attrs["steps"]):
            # For n = 1 the step 1 / (n - 1) does not exist, and is not needed.
            difference = self.evaluated(formula) if shape[axis] > 1 else 0
            if difference:
                ramp = (np.arange(shape[axis]) * difference).astype(value.dtype)
                total += ramp.reshape(-1, *[1] * (len(shape) - axis - 1))
        total = total if step.attrs["over"] == 1 else total // step.attrs["over"]
        self.memory.add("grid", total)
        self.bind(value, wrap(total))

    def _if(self, step: Step) -> None:
        way = 0 if bool(self.known[id(step.inputs[0])]) else 1
        for value, tensor in zip(step.outputs, self.run(step.blocks[way]), strict=True):
            self.bind(value, tensor)

    def _loop(self, step: Step) -> None:
        (block,) = step.blocks
        trips, asks, count = self.evaluated(step.attrs["trips"]), step.attrs["asks"], step.attrs["carried"]
        inputs = [self.known[id(v)] for v in step.inputs]
        going = bool(inputs.pop(0)) if step.attrs["entry"] else True
        carried, rows, done = inputs, [[] for _ in step.outputs[count:]], 0  # type: ignore[var-annotated]
        counter, *states = block.inputs
        while going and (trips is None or done < trips):
            self.bind(counter, wrap(np.asarray(done)))
            for value, tensor in zip(states, carried, strict=True):
                self.bind(value, tensor)
            outs = self.run(block)
            going = bool(outs.pop(0)) if asks else True
            carried = outs[:count]
            for column, part in zip(rows, outs[count:], strict=True):
                column.append(part)
            done += 1
            if len(rows) * done * _TENSOR > self.runner.limit:
                raise Bad(f"a loop has collected {done:,} values, over the {self.runner.limit:,} bytes allowed")
            if any([t._requires_grad for t in carried]) and done * len(block.steps) * _NODE > self.runner.limit:
                raise Bad(f"a loop has turned {done:,} times, and what it keeps for its gradient takes more than the "
                          f"{self.runner.limit:,} bytes allowed")  # fmt: skip
            self.turns += 1
            self.runner.most_turns = max(self.runner.most_turns, self.turns)
            if self.turns == MOST_RECORDED:
                executor().not_replayable(f"its loops turn more than {MOST_RECORDED} times")
            if self.turns > self.runner.turns:
                raise OperationError(f"program: its loops have turned {self.runner.turns:,} times in this call",
                                     fix="If that is right, give load_program more `turns`.")  # fmt: skip
        for value, tensor in zip(step.outputs[:count], carried, strict=True):
            self.bind(value, tensor)
        for value, column in zip(step.outputs[count:], rows, strict=True):
            self.bind(value, self._stacked(value, column))

    def _stacked(self, value: Value, column: list[Tensor]) -> Tensor:
        if not column:
            return wrap(np.zeros((0, *self.evaluated(value.shape[1:])), value.dtype))
        self.memory.expect("loop", made_by(_STACK, [t.spec for t in column], {"dim": 0}, self.runner.limit).size, 0)
        stacked: Tensor = apply(_STACK, tuple(column), {"dim": 0})
        self.memory.add("loop", stacked._array)
        return stacked


def _reads_outside(step: Step) -> bool:
    """Can the op read memory outside its input?"""
    return step.name == "as_strided" or "as_strided" in str(step.attrs.get("path", ""))


def _varies(value: Any) -> bool:
    if isinstance(value, dict):
        return any(map(_varies, value.values()))
    if isinstance(value, tuple):
        return any(map(_varies, value))
    return isinstance(value, (Dim, Number, Repeated))


def opaque(runner: Runner) -> Callable[..., list[Tensor]]:
    """The runner as a plain function that wf.compile does not guard: nothing in it changes."""

    def run(*tensors: Tensor) -> list[Tensor]:
        return runner(tensors)

    return run
