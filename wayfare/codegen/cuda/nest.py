"""Loops to the text of kernels.

A kernel has one parameter, a struct of 8-byte fields: the addresses of the operands, then sizes and byte strides. So
the text does not depend on sizes, and a launch fills in one block of words. An element is visited by the same thread in
every stage: what a stage has stored, a later one can read back.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import fields as fields_of

from wayfare.codegen.cuda.expr import Body
from wayfare.codegen.cuda.functions import is_built_in
from wayfare.codegen.cuda.layout import HELD_THREADS, Layout, held_inputs, operand_names
from wayfare.codegen.cuda.prelude import COLUMN_ROWS, prelude
from wayfare.codegen.cuda.special import texts
from wayfare.codegen.cuda.types import loaded, memory
from wayfare.codegen.loop.expr import Expr, walk
from wayfare.codegen.loop.language import Loop, Operand, Reduction, Stage, exact, expressions, source
from wayfare.codegen.math.library import lowered
from wayfare.core.errors import LoopError

_REDUCTIONS = {
    "sum": "SumOf<{0}>::Type", "prod": "ProdOf<{0}>::Type", "max": "Extreme<{0}, true>", "min": "Extreme<{0}, false>",
    "argmax": "Place<{0}, true>", "argmin": "Place<{0}, false>", "any": "Truth<false>", "all": "Truth<true>",
}  # fmt: skip
# How a team combines what its threads have.
_TEAM_TOTAL = {"lanes": "lanes_total({}, width)", "block": "block_total({})", "column": "column_total({})"}


# The parts of operands and stages that are written here.
_KNOWN = {Operand: {"dtype", "per_row"}, Stage: {"stores", "reductions"}}


def check_known(loop: Loop) -> None:
    """Raise LoopError for a loop with a part that this code generator does not know: nothing is left out silently."""
    parts: list[Operand | Stage] = [*loop.inputs, *loop.outputs, *loop.stages]
    for part in parts:
        for field in fields_of(part):
            if field.name not in _KNOWN[type(part)] and getattr(part, field.name):
                raise LoopError(f"loop {loop.name}: {field.name} cannot be written in CUDA C yet")


def kernel_name(loop: Loop, layout: Layout) -> str:
    """The name of the kernel: different for every loop and layout."""
    return "k" + hashlib.sha256(f"{exact(loop)}\n{layout}".encode()).hexdigest()[:24]


def text(loop: Loop, layout: Layout) -> str:
    """The whole text of one kernel, with everything it needs."""
    plain = lowered(loop, is_built_in)
    called = {str(e.value) for e in expressions(plain) if e.op in ("call", "rescue")}
    return prelude() + texts(called) + Writer(plain, layout, kernel_name(loop, layout), source(loop)).text()


def fields(loop: Loop, layout: Layout) -> list[str]:
    """The fields of a kernel's parameter after the addresses of the operands, in order."""
    names = operand_names(loop)
    operands = (*loop.inputs, *loop.outputs)
    found = []
    if layout.part is not None:
        found += [f"table{r}" for r in range(len(loop.reductions))]
    found += ["n", "length"] if layout.form == "elements" else ["n", "rows", "chunk", "chunks"]
    if layout.form == "lanes":
        found.append("width")
    for letter, count in (("o", layout.row_axes), ("e", layout.element_axes)):
        found += [f"{letter}_size{d}" for d in range(count)]
        moving = [n for n, o in zip(names, operands, strict=True) if letter == "o" or not o.per_row]
        found += [f"{name}_{letter}{d}" for name in moving for d in range(count)]
    return found


class Writer:
    """Writes one kernel."""

    def __init__(self, loop: Loop, layout: Layout, name: str, about: str) -> None:
        self.loop, self.layout, self.name, self.about = loop, layout, name, about
        self.names = operand_names(loop)
        self.operands = dict(zip(self.names, (*loop.inputs, *loop.outputs), strict=True))
        self.classes = dict(zip(self.names, layout.classes or "s" * len(self.names), strict=True))
        self.index, self.unsigned = ("i64", "u64") if layout.wide else ("i32", "u32")
        self.held = [f"x{k}" for k in held_inputs(loop, layout)] if layout.held else []
        self.lines: list[str] = []
        self.depth = 0

    def text(self) -> str:
        """The struct of the parameter, and the kernel."""
        self.lines += ["// " + line for line in self.about.splitlines()]
        kinds = [f"{'const ' if n[0] == 'x' else ''}char* {n};" for n in self.names]
        kinds += [f"{'char*' if f.startswith('table') else 'i64'} {f};" for f in fields(self.loop, self.layout)]
        self.lines.append(f"struct {self.name}_words {{ {' '.join(kinds)} }};")
        bounds = f" __launch_bounds__({HELD_THREADS})" if self.layout.held else ""
        self.add(f'extern "C" __global__ void{bounds} {self.name}(const {self.name}_words a) {{')
        if self.layout.form == "elements":
            self._all_elements()
        else:
            self._all_rows()
        self.add("}")
        return "\n".join(self.lines) + "\n"

    def add(self, *lines: str) -> None:
        """Add lines, indented by their braces."""
        for line in lines:
            self.depth -= line.startswith("}")
            self.lines.append("  " * self.depth + line)
            self.depth += line.endswith("{")

    # -- loops without rows

    def _all_elements(self) -> None:
        index = self.index
        self.add(
            f"const {index} n = ({index})a.n;",
            f"for ({index} e = ({index})blockIdx.x * blockDim.x + threadIdx.x; e < n; "
            f"e += ({index})gridDim.x * blockDim.x) {{",
        )
        self._visit(self.loop.stages[0], 0)
        self.add("}")

    # -- loops over rows

    def _all_rows(self) -> None:
        layout, index = self.layout, self.index
        lane, mine, width, at_once = {
            "lanes": ("threadIdx.x & (width - 1)", "threadIdx.x / width", "(i32)a.width", "blockDim.x / width"),
            "block": ("threadIdx.x", "0", "blockDim.x", "1"),
            "column": ("threadIdx.y", "threadIdx.x", "blockDim.y", str(COLUMN_ROWS)),
        }[layout.form]
        self.add(
            f"const {index} n = ({index})a.n, rows = ({index})a.rows;",
            f"const i32 width = {width}, lane = {lane}, mine = {mine}, at_once = {at_once};",
            # Rows beyond the last one do the last one again and store nothing: all threads of a block must be there
            # when a team combines its totals.
            f"for ({index} first = ({index})blockIdx.x * at_once; first < rows; "
            f"first += ({index})gridDim.x * at_once) {{",
            "const bool live = first + mine < rows;",
            f"const {index} row = live ? first + mine : rows - 1;",
        )
        self._coordinates("row", "o", layout.row_axes)
        for name in self.names:
            const = "const char*" if name[0] == "x" else "char*"
            self.add(f"{const} const p_{name} = a.{name} + ({self._offset(name, 'o', layout.row_axes)});")
        for name in self._row_loads():
            dtype = self.operands[name].dtype
            self.add(f"const {dtype} v_{name} = {loaded(dtype, f'at<{memory(dtype)}>(p_{name})')};")
        self._hold()
        first = 0
        for number, stage in enumerate(self.loop.stages):
            if layout.part is None:
                self._stage(stage, first)
                for r, f in enumerate(stage.reductions, first):
                    self.add(f"const {f.dtype} r{r} = {self._team_total(f'f{r}.total()')}.result();")
            elif layout.part == number:
                self._combine([v for _, v in stage.stores] + [f.value for f in stage.reductions])
                self._stage(stage, first)
                for r, f in enumerate(stage.reductions, first):
                    self._to_table(r, f)
            first += len(stage.reductions)
        if layout.part in (None, len(self.loop.stages)):
            self._results()
        self.add("}")

    def _row_loads(self) -> list[str]:
        used = {e.value for e in expressions(self.loop) if e.op == "load" and self.loop.inputs[e.value].per_row}
        return [f"x{k}" for k in sorted(used)]

    def _stage(self, stage: Stage, first: int) -> None:
        for r, f in enumerate(stage.reductions, first):
            kind = _type(f)
            self.add(f"{kind} f{r} = {kind}::empty();")
        begin, end = "lane", "n"
        if self.layout.part is not None:
            index = self.index
            self.add(f"const {index} begin = ({index})blockIdx.y * ({index})a.chunk, "
                     f"end = n - begin < ({index})a.chunk ? n : begin + ({index})a.chunk;")  # fmt: skip
            begin, end = "begin + lane", "end"
        if self.layout.held:
            self._for_held()
        else:
            self.add(f"for ({self.index} e = {begin}; e < {end}; e += width) {{")
        self._visit(stage, first)
        self.add("}")

    def _hold(self) -> None:
        """Load what several stages read into registers, with all loads under way at once."""
        if not self.held:
            return
        for name in self.held:
            self.add(f"{self._group(name)} h_{name}[{self.layout.held}];")
        self._for_held()
        self._coordinates("e", "e", self.layout.element_axes)
        for name in self.held:
            self.add(f"h_{name}[u] = at<{self._group(name)}>({self._address(name)});")
        self.add("}")

    def _for_held(self) -> None:
        # It ends early instead of skipping: so how many elements a thread has seen is known when this is compiled.
        self.add("#pragma unroll", f"for (int u = 0; u < {self.layout.held}; ++u) {{",
                 f"const {self.index} e = lane + u * width;", "if (e >= n) break;")  # fmt: skip

    def _group(self, name: str) -> str:
        return f"Vec<{memory(self.operands[name].dtype)}, {self.layout.vector}>"

    def _team_total(self, text: str) -> str:
        return _TEAM_TOTAL[self.layout.form].format(text)

    def _to_table(self, r: int, f: Reduction) -> None:
        kind = f"{_type(f)}::Total"
        self.add(
            f"const {kind} total{r} = {self._team_total(f'f{r}.total()')};",
            f"if (live && lane == 0) (({kind}*)a.table{r})[(i64)blockIdx.y * rows + row] = total{r};",
        )

    def _combine(self, roots: Sequence[Expr]) -> None:
        """Read the reductions of earlier stages from their tables."""
        used = sorted({e.value for e in walk(*roots) if e.op == "reduction"})
        for r in used:
            f = self.loop.reductions[r]
            kind = _type(f)
            self.add(
                f"{kind}::Total f{r} = {kind}::empty().total();",
                f"for (i32 c = lane; c < (i32)a.chunks; c += width) "
                f"f{r}.merge(((const {kind}::Total*)a.table{r})[(i64)c * rows + row]);",
                f"const {f.dtype} r{r} = {self._team_total(f'f{r}')}.result();",
            )

    def _results(self) -> None:
        if not self.loop.results:
            return
        if self.layout.part is not None:
            self._combine([v for _, v in self.loop.results])
        body = Body(self._row_leaf, "q")
        stores = [(k, body.value(v)) for k, v in self.loop.results]
        self.add("if (live && lane == 0) {")
        self.add(*body.lines)
        for k, value in stores:
            self.add(f"*({memory(self.loop.outputs[k].dtype)}*)p_y{k} = {value};")
        self.add("}")

    def _row_leaf(self, e: Expr) -> str:
        return f"r{e.value}" if e.op == "reduction" else f"v_x{e.value}"

    # -- the elements of a stage

    def _visit(self, stage: Stage, first: int) -> None:
        """Visit one group of elements: load, compute, store."""
        vector, in_rows = self.layout.vector, self.layout.form != "elements"
        body = Body(self._leaf)
        stores = [(k, body.value(v)) for k, v in stage.stores]
        takes = [(r, body.value(f.value)) for r, f in enumerate(stage.reductions, first)]
        self._coordinates("e", "e", self.layout.element_axes)
        if self.layout.tail:
            self.add(f"const i32 count = a.length - (i64)e * {vector} < {vector} ? "
                     f"(i32)(a.length - (i64)e * {vector}) : {vector};")  # fmt: skip
        roots = [v for _, v in stage.stores] + [f.value for f in stage.reductions]
        for name in self._element_loads(roots):
            self._load(name)
        grouped = vector > 1
        for k, _ in stores:
            if grouped:
                self.add(f"Vec<{memory(self.loop.outputs[k].dtype)}, {vector}> s_y{k};")
        if grouped:
            self.add("#pragma unroll", f"for (int j = 0; j < {vector}; ++j) {{")
        self.add(*body.lines)
        place = f"(i64)e * {vector} + j" if grouped else "(i64)e"
        for r, value in takes:
            self.add(f"f{r}.take({value}, {place});")
        for k, value in stores:
            kept = memory(self.loop.outputs[k].dtype)
            if grouped:
                self.add(f"s_y{k}.v[j] = {value};")
            else:
                self.add(f"{'if (live) ' if in_rows else ''}*({kept}*)({self._address(f'y{k}')}) = {value};")
        if grouped:
            self.add("}")
            for k, _ in stores:
                self._store_group(k)

    def _store_group(self, k: int) -> None:
        kept, vector, address = memory(self.loop.outputs[k].dtype), self.layout.vector, self._address(f"y{k}")
        whole = f"*(Vec<{kept}, {vector}>*)({address}) = s_y{k};"
        if self.layout.tail:
            self.add(f"if (count == {vector}) {whole}",
                     f"else for (int j = 0; j < count; ++j) (({kept}*)({address}))[j] = s_y{k}.v[j];")  # fmt: skip
        else:
            self.add(f"{'if (live) ' if self.layout.form != 'elements' else ''}{whole}")

    def _element_loads(self, roots: Sequence[Expr]) -> list[str]:
        """The operands that a stage reads for each element."""
        found: dict[str, None] = {}
        for e in walk(*roots):
            if e.op == "load" and not self.loop.inputs[e.value].per_row:
                found[f"x{e.value}"] = None
            elif e.op == "reload":
                found[f"y{e.value}"] = None
        return list(found)

    def _load(self, name: str) -> None:
        kept, vector, address = memory(self.operands[name].dtype), self.layout.vector, self._address(name)
        if name in self.held:
            self.add(f"const {self._group(name)} v_{name} = h_{name}[u];")
        elif vector == 1 or self.classes[name] == "b":
            self.add(f"const {kept} v_{name} = at<{kept}>({address});")
        elif self.layout.tail:
            kind = f"Vec<{kept}, {vector}>"
            self.add(f"{kind} v_{name} = {{}};")
            self.add(f"if (count == {vector}) v_{name} = at<{kind}>({address});")
            self.add(f"else for (int j = 0; j < count; ++j) v_{name}.v[j] = ((const {kept}*)({address}))[j];")
        else:
            self.add(f"const Vec<{kept}, {vector}> v_{name} = at<Vec<{kept}, {vector}>>({address});")

    def _leaf(self, e: Expr) -> str:
        if e.op == "index":
            return f"(i64)e * {self.layout.vector} + j" if self.layout.vector > 1 else "(i64)e"
        if e.op == "reduction":
            return f"r{e.value}"
        name = f"{'x' if e.op == 'load' else 'y'}{e.value}"
        if self.operands[name].per_row:
            return f"v_{name}"
        grouped = self.layout.vector > 1 and self.classes[name] != "b"
        return loaded(e.dtype, f"v_{name}.v[j]" if grouped else f"v_{name}")

    # -- addresses

    def _coordinates(self, position: str, letter: str, axes: int) -> None:
        """The index along each axis, from one that counts all of them."""
        if axes == 1:
            self.add(f"const {self.index} {letter}0 = {position};")
            return
        unsigned, index = self.unsigned, self.index
        self.add(f"{unsigned} {letter}_rest = ({unsigned}){position};")
        for d in range(axes - 1, 0, -1):
            size = f"({unsigned})a.{letter}_size{d}"
            self.add(f"const {index} {letter}{d} = ({index})({letter}_rest % {size}); {letter}_rest /= {size};")
        self.add(f"const {index} {letter}0 = ({index}){letter}_rest;")

    def _offset(self, name: str, letter: str, axes: int) -> str:
        return " + ".join(f"{letter}{d} * ({self.index})a.{name}_{letter}{d}" for d in range(axes))

    def _address(self, name: str) -> str:
        base = f"a.{name}" if self.layout.form == "elements" else f"p_{name}"
        return f"{base} + ({self._offset(name, 'e', self.layout.element_axes)})"


def reduction_type(kind: str, dtype: str) -> str:
    """The C type of a reduction of values of a dtype."""
    return _REDUCTIONS[kind].format(dtype)


def _type(f: Reduction) -> str:
    return reduction_type(f.kind, f.value.dtype)
