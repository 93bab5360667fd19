"""An elementwise loop over many sets of arrays in one launch: the step of an optimiser over all parameters.

    update(launcher, loop, sets, numbers)
    for part in arranged(loop, sizes, numbers):   # for a list of launches: all but the addresses
        run(launcher, part.text, part.name, (part.blocks,), (THREADS,), part.words(addresses, memory))

Each set lists the arrays of the loop's inputs but the last ones, then those of its outputs (which may be the inputs
themselves); all are C-contiguous and of one size. The last inputs are the scalars in `numbers`. Addresses and sizes are
part of the kernel's parameter: nothing is copied to the device before the launch. The numbers of a list lie in memory,
as doubles, because they differ from run to run.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from wayfare.codegen.cuda.expr import Body
from wayfare.codegen.cuda.functions import is_built_in
from wayfare.codegen.cuda.kernels.routine import THREADS, kernel_text, run
from wayfare.codegen.cuda.launch import Launcher
from wayfare.codegen.cuda.layout import Layout
from wayfare.codegen.cuda.nest import kernel_name
from wayfare.codegen.cuda.types import loaded, memory
from wayfare.codegen.loop.expr import NUMPY, Expr
from wayfare.codegen.loop.language import Loop
from wayfare.codegen.math.library import lowered

# Elements of one thread, which loads them at once where all arrays are aligned; elements of one block; and the most
# words of a kernel's parameter (CUDA allows 4095).
_GROUP = 4
_CHUNK = _GROUP * THREADS
_MOST_WORDS = 3584


def _lines(lines: Sequence[str]) -> str:
    return "\n    ".join(lines)


@lru_cache(256)
def update_text(loop: Loop, numbers: int, room: int, in_memory: bool = False) -> tuple[str, str]:
    """The name and the text of a kernel for up to `room` sets; its numbers are in its parameter, or in memory."""
    plain = lowered(loop, is_built_in)
    arrays = len(loop.inputs) - numbers
    operands = arrays + len(loop.outputs)

    def leaf(e: Expr) -> str:
        return f"number_{e.value - arrays}" if e.value >= arrays else loaded(e.dtype, f"x{e.value}")

    body = Body(leaf)
    dtypes = [operand.dtype for operand in (*loop.inputs[:arrays], *loop.outputs)]
    kept, sizes = [memory(d) for d in dtypes], [NUMPY[d].itemsize for d in dtypes]
    values = [(arrays + k, body.value(v)) for k, v in plain.stages[0].stores]
    # Of groups of elements, then of single ones.
    load = [f"const Vec<{kept[k]}, {_GROUP}> g{k} = at<Vec<{kept[k]}, {_GROUP}>>(set[{k}] + i * {sizes[k]});"
            for k in range(arrays)]  # fmt: skip
    load += [f"Vec<{kept[k]}, {_GROUP}> g{k};" for k, _ in values]
    element = [f"const {kept[k]} x{k} = g{k}.v[j];" for k in range(arrays)] + body.lines
    element += [f"g{k}.v[j] = {value};" for k, value in values]
    store = [f"*(Vec<{kept[k]}, {_GROUP}>*)(set[{k}] + i * {sizes[k]}) = g{k};" for k, _ in values]
    single = [f"const {kept[k]} x{k} = (({kept[k]}*)set[{k}])[e];" for k in range(arrays)] + body.lines
    single += [f"(({kept[k]}*)set[{k}])[e] = {value};" for k, value in values]
    # Read once: for all that the compiler knows, a store may change what lies in memory.
    kinds = [operand.dtype for operand in loop.inputs[arrays:]]
    read = "\n  ".join([f"const {kind} number_{k} = ({kind})a.numbers[{k}];" for k, kind in enumerate(kinds)])
    name = f"{kernel_name(loop, Layout('elements', 0, 1, True))}_{numbers}_{room}{'_m' * in_memory}"
    # Set s has the blocks first[s] … first[s + 1] - 1.
    text = f"""  i32 low = 0, high = (i32)a.sets;
  while (high - low > 1) {{
    const i32 middle = (low + high) / 2;
    if (a.first[middle] <= (i64)blockIdx.x) low = middle; else high = middle;
  }}
  char* const* const set = a.arrays + low * {operands};
  const i64 i = (((i64)blockIdx.x - a.first[low]) * blockDim.x + threadIdx.x) * {_GROUP}, end = a.sizes[low];
  {read}
  u64 places = 0;
  for (int k = 0; k < {operands}; ++k) places |= (u64)set[k];
  if (i + {_GROUP} <= end && places % {_GROUP * max(sizes)} == 0) {{
    {_lines(load)}
    #pragma unroll
    for (int j = 0; j < {_GROUP}; ++j) {{
      {_lines(element)}
    }}
    {_lines(store)}
  }} else for (i64 e = i; e < end && e < i + {_GROUP}; ++e) {{
    {_lines(single)}
  }}
"""
    given = "const f64* numbers" if in_memory else f"f64 numbers[{max(numbers, 1)}]"
    fields = ("i64 sets", given, f"i64 first[{room}]", f"i64 sizes[{room}]",
              f"char* arrays[{room * operands}]")  # fmt: skip
    return name, kernel_text(name, fields, text)


@dataclass(frozen=True, slots=True)
class UpdateLaunch:
    """One launch: the sets `begin` … `end`, the kernel, and its parameter but for numbers and addresses."""

    name: str
    text: str
    blocks: int
    begin: int
    end: int
    sizes: tuple[int, ...]
    room: int
    operands: int

    def words(self, addresses: Sequence[int], numbers: Sequence[int | float]) -> list[int | float]:
        """The parameter, with the addresses of the arrays of these sets; `numbers`, or where they lie."""
        first, blocks = [], 0
        for size in self.sizes:
            first.append(blocks)
            blocks += -(-size // _CHUNK)
        empty = [0] * (self.room - len(self.sizes))
        return [len(self.sizes), *numbers, *first, *empty, *self.sizes, *empty, *addresses, *empty * self.operands]


def arranged(loop: Loop, sizes: Sequence[int], numbers: int, in_memory: bool) -> list[UpdateLaunch]:
    """The launches for sets of so many elements (not 0); more than one only where the parameter would be too large."""
    operands = len(loop.inputs) - numbers + len(loop.outputs)
    most = (_MOST_WORDS - 1 - numbers) // (operands + 2)
    found = []
    for begin in range(0, len(sizes), most):
        chosen = tuple(sizes[begin : begin + most])
        room = min(most, 1 << (len(chosen) - 1).bit_length())
        name, text = update_text(loop, numbers, room, in_memory)
        blocks = sum(-(-size // _CHUNK) for size in chosen)
        found.append(UpdateLaunch(name, text, blocks, begin, begin + len(chosen), chosen, room, operands))
    return found


def update(launcher: Launcher, loop: Loop, sets: Sequence[Sequence[Any]], numbers: Sequence[float]) -> None:
    """Run an elementwise loop over all sets."""
    filled = [s for s in sets if math.prod(s[0].shape)]
    given = [float(n) for n in numbers] or [0.0]
    for part in arranged(loop, [math.prod(s[0].shape) for s in filled], len(numbers), False):
        addresses = [launcher.pointer(a) for s in filled[part.begin : part.end] for a in s]
        run(launcher, part.text, part.name, (part.blocks,), (THREADS,), part.words(addresses, given))
