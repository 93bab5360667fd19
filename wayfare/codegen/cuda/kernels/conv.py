"""Convolution as an implicit matrix product, without columns in memory: the result and both gradients.

    forward(launcher, x, w, bias, out, slide, groups)
    input_gradient(launcher, g, w, dx, slide, groups)
    weight_gradient(launcher, x, g, dw, slide, groups)

Arrays are C-contiguous: x [batch, channels, sizes…], w [out channels, channels / groups, kernel sizes…], of floats or
integers, with any number of dimensions of space. All three are products of a matrix A, m × k, and a matrix B, k × n,
whose elements are read from where they lie. The address of an element is that of its row (m or n) plus that of its k,
and so is its place in the image: tables in shared memory keep both, so that nothing is divided for an element.

A block makes a tile of the product from slices of 16 values of k, each thread 8 × 8 of it; the next slice is loaded
while one is multiplied. Where there are few tiles, k is split over blocks, and the parts are added in order. float16 is
summed in float32.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import Any

from wayfare.codegen.cuda.kernels.routine import THREADS, all_of, blocks_for, kernel_text, run
from wayfare.codegen.cuda.launch import Launcher
from wayfare.codegen.cuda.types import computed, narrowed, widened
from wayfare.codegen.loop.expr import FLOATS, NUMPY, OF_NUMPY
from wayfare.codegen.routines.windows import Slide
from wayfare.core.errors import LoopError

# Threads of a block; along m and n; values of k of a slice.
_THREADS, _ALONG_M, _ALONG_N, _SLICE = 128, 16, 8, 16
_TILE_N = 64
# How many values of k are multiplied without a loop.
_UNROLLED = 8
# The fewest values of k of one part, and the most parts.
_PART, _MOST_PARTS = 128, 64


def _tile_m(dtype: str) -> int:
    return 128 if NUMPY[computed(dtype)].itemsize <= 4 else 64


def _split(index: str, first: str, names: list[str], sizes: list[str], dtype: str) -> str:
    """Statements: `first` and the coordinates `names`, from an index that counts all of them, the last one fastest."""
    lines = [f"{dtype} rest_{first} = {index};"]
    for name, size in reversed(list(zip(names, sizes, strict=True))):
        lines.append(f"const i32 {name} = (i32)(rest_{first} % ({dtype}){size}); rest_{first} /= ({dtype}){size};")
    return " ".join([*lines, f"const i64 {first} = rest_{first};"])


def _flat(names: list[str], sizes: list[str]) -> str:
    """The index of coordinates, the last one fastest."""
    text = names[0]
    for name, size in zip(names[1:], sizes[1:], strict=True):
        text = f"({text}) * {size} + {name}"
    return text


@dataclass(frozen=True)
class _Matrix:
    """How a matrix of the product is read.

    - `row`, `slice`: statements that set `base` from the index `row`, and `off` from the index `k`: the address of an
      element is their sum. If it has `places`, they also set r0, r1, … and s0, s1, …, which add up to its place.
    - `places`: the sizes of the image along its axes; () for a matrix that is an array as it lies.
    - `strides`: what a sum of r and s must be a multiple of, and is divided by.
    - `along_k`: neighbouring threads load along k, else along the rows.
    """

    array: str
    row: str
    slice: str
    along_k: bool
    places: tuple[str, ...] = ()
    strides: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Store:
    """Where an element (m, n) of the product belongs: `row` sets `base` from m, neighbours along n are `step` apart.
    `more` are statements that change `value` before it is stored, unless it is only a part."""

    array: str
    row: str
    step: str
    more: str = ""


class _Text:
    """The text of one of the three products, for a number of dimensions of space."""

    def __init__(self, dtype: str, dims: int) -> None:
        self.dtype, self.wide, self.dims = dtype, computed(dtype), dims
        self.out, self.kernel, self.image = (
            [f"a.{what}{d}" for d in range(dims)] for what in ("out", "kernel", "image")
        )
        self.outs, self.kernels, self.images = (" * ".join(sizes) for sizes in (self.out, self.kernel, self.image))

    def fields(self) -> list[str]:
        """Fields after the arrays."""
        named = [f"i64 {what}{d}" for what in ("image", "out", "kernel", "stride", "padding", "dilation")
                 for d in range(self.dims)]  # fmt: skip
        return ["i64 batch", "i64 groups", "i64 channels", "i64 filters", "i64 parts", *named]

    def split(self, index: str, first: str, letter: str, sizes: list[str], dtype: str) -> str:
        """Coordinates letter0, letter1, … and `first` from an index."""
        return _split(index, first, [f"{letter}{d}" for d in range(self.dims)], sizes, dtype)

    def placed(self, letter: str, text: str) -> str:
        """Statements that set the coordinates of an image, from `text` for each axis."""
        return " ".join(f"{letter}{d} = (i32)({text.format(d=d)});" for d in range(self.dims))

    def product(self, sizes: str, left: _Matrix, right: _Matrix, store: _Store) -> str:
        """The body of a kernel: `sizes` declares M, N, K."""
        tile_m = _tile_m(self.dtype)
        both = ((left, "A", "m", tile_m), (right, "B", "n", _TILE_N))
        shared = [f"  alignas(32) __shared__ {self.wide} {name}[2][{_SLICE}][{tile + 4}];"
                  for name, tile in (("as", tile_m), ("bs", _TILE_N))]  # fmt: skip
        rows, slices, loads, kept = [], [], [], []
        for matrix, name, limit, tile in both:
            shared.append(f"  __shared__ i64 row{name}[{tile}], off{name}[2][{_SLICE}];")
            for d in range(len(matrix.places)):
                shared.append(f"  __shared__ i32 r{name}{d}[{tile}], s{name}{d}[2][{_SLICE}];")
            rows.append(self._row_table(matrix, name, limit, tile))
            slices.append(self._slice_table(matrix, name))
            loads.append(self._loads(matrix, name, tile))
            kept.append(self._kept(matrix, name, tile))
        quads_m, quads_n = tile_m // (4 * _ALONG_M), _TILE_N // (4 * _ALONG_N)
        m_at, n_at = (f"t / {_ALONG_N}", f"t % {_ALONG_N}") if left.along_k else (f"t % {_ALONG_M}", f"t / {_ALONG_M}")
        value = "left[i / 4].v[i % 4], right[j / 4].v[j % 4]"
        added = (f"fma({value}, sum[i][j])" if self.wide in FLOATS else f"wrap_add(sum[i][j], wrap_mul({value}))")
        newline = "\n"
        return f"""  const i64 group = blockIdx.z % a.groups, part = blockIdx.z / a.groups;
  {sizes}
  const int t = threadIdx.x, m_at = {m_at}, n_at = {n_at};
  const i64 first_m = (i64)blockIdx.x * {tile_m}, first_n = (i64)blockIdx.y * {_TILE_N};
  const i64 chunk = (K + a.parts - 1) / a.parts, begin = part * chunk, end = begin + chunk < K ? begin + chunk : K;
{newline.join(shared)}
  {self.wide} sum[{4 * quads_m}][{4 * quads_n}];
  {self.wide} next_A[{tile_m * _SLICE // _THREADS}], next_B[{_TILE_N * _SLICE // _THREADS}];
  #pragma unroll
  for (int i = 0; i < {4 * quads_m}; ++i)
    #pragma unroll
    for (int j = 0; j < {4 * quads_n}; ++j) sum[i][j] = 0;
{"".join(rows)}  {{
    const i64 first_k = begin;
    const int into = 0;
{"".join(slices)}  }}
  __syncthreads();
  // The slice that is multiplied begins at `done`, and lies in the buffers `now ^ 1`; the first time there is none.
  int now = 0;
  for (i64 done = begin - {_SLICE}; done < end; done += {_SLICE}) {{
    const bool more = done + {_SLICE} < end;
    if (more) {{
{"".join(loads)}    }}
    if (done >= begin) {{
      #pragma unroll {_UNROLLED}
      for (int slice = 0; slice < {_SLICE}; ++slice) {{
        Vec<{self.wide}, 4> left[{quads_m}], right[{quads_n}];
        #pragma unroll
        for (int q = 0; q < {quads_m}; ++q)
          left[q] = *(const Vec<{self.wide}, 4>*)&as[now ^ 1][slice][q * {4 * _ALONG_M} + m_at * 4];
        #pragma unroll
        for (int q = 0; q < {quads_n}; ++q)
          right[q] = *(const Vec<{self.wide}, 4>*)&bs[now ^ 1][slice][q * {4 * _ALONG_N} + n_at * 4];
        #pragma unroll
        for (int i = 0; i < {4 * quads_m}; ++i)
          #pragma unroll
          for (int j = 0; j < {4 * quads_n}; ++j) sum[i][j] = {added};
      }}
    }}
    if (more) {{
{"".join(kept)}      const i64 first_k = done + {2 * _SLICE};
      const int into = now ^ 1;
{"".join(slices)}    }}
    __syncthreads();
    now ^= 1;
  }}
  #pragma unroll
  for (int i = 0; i < {4 * quads_m}; ++i) {{
    const i64 m = first_m + i / 4 * {4 * _ALONG_M} + m_at * 4 + i % 4;
    if (m >= M) continue;
    {store.row}
    #pragma unroll
    for (int j = 0; j < {4 * quads_n}; ++j) {{
      const i64 n = first_n + j / 4 * {4 * _ALONG_N} + n_at * 4 + j % 4, place = base + n * {store.step};
      if (n >= N) continue;
      {self.wide} value = sum[i][j];
      if (a.parts > 1) {{
        a.table[part * a.groups * M * N + place] = value;
        continue;
      }}
      {store.more}
      a.{store.array}[place] = {narrowed(self.dtype, "value")};
    }}
  }}
"""

    def _row_table(self, matrix: _Matrix, name: str, letter: str, tile: int) -> str:
        limit, axes = letter.upper(), range(len(matrix.places))
        places = "".join(f" i32 r{d} = 0;" for d in axes)
        kept = "".join(f" r{name}{d}[t] = r{d};" for d in axes)
        return f"""  if (t < {tile}) {{
    const i64 row = first_{letter} + t;
    i64 base = -1;{places}
    if (row < {limit}) {{ {matrix.row} }}
    row{name}[t] = base;{kept}
  }}
"""

    def _slice_table(self, matrix: _Matrix, name: str) -> str:
        axes = range(len(matrix.places))
        first = 0 if name == "A" else 32  # a warp for each matrix
        places = "".join(f" i32 s{d} = 0;" for d in axes)
        kept = "".join(f" s{name}{d}[into][slice] = s{d};" for d in axes)
        return f"""    if (t >= {first} && t < {first + _SLICE}) {{
      const int slice = t - {first};
      const u32 k = (u32)(first_k + slice);
      i64 off = -1;{places}
      if (first_k + slice < end) {{ {matrix.slice} }}
      off{name}[into][slice] = off;{kept}
    }}
"""

    def _place(self, matrix: _Matrix, name: str, tile: int) -> str:
        """Statements: the row and the slice of the element number `i` of a thread."""
        if matrix.along_k:
            return f"const int slice = t % {_SLICE}, row = t / {_SLICE} + i * {_THREADS // _SLICE};"
        return f"const int row = t % {tile}, slice = t / {tile} + i * {_THREADS // tile};"

    def _loads(self, matrix: _Matrix, name: str, tile: int) -> str:
        """Statements that load a thread's elements of slice `now` into registers."""
        lines, there = [], [f"(row{name}[row] | off{name}[now][slice]) >= 0"]
        flat = f"row{name}[row] + off{name}[now][slice]"
        for d, size in enumerate(matrix.places):
            stride = matrix.strides[d] if matrix.strides else ""
            lines.append(f"const i32 t{d} = r{name}{d}[row] + s{name}{d}[now][slice];")
            lines.append(f"const i32 i{d} = {f't{d} / (i32){stride}' if stride else f't{d}'};")
            # A negative number is a large one without its sign.
            there.append(f"(u32){f't{d}' if stride else f'i{d}'} < (u32){f'({size} * {stride})' if stride else size}")
            if stride:
                there.append(f"i{d} * (i32){stride} == t{d}")
        if matrix.places:
            flat += f" + {_flat([f'i{d}' for d in range(self.dims)], [f'(i32){s}' for s in matrix.places])}"
        return f"""      #pragma unroll
      for (int i = 0; i < {tile * _SLICE // _THREADS}; ++i) {{
        {self._place(matrix, name, tile)}
        {" ".join(lines)}
        next_{name}[i] = 0;
        if ({" && ".join(there)}) next_{name}[i] = {widened(self.dtype, f"a.{matrix.array}[{flat}]")};
      }}
"""

    def _kept(self, matrix: _Matrix, name: str, tile: int) -> str:
        """Statements that put these elements into shared memory."""
        return f"""      #pragma unroll
      for (int i = 0; i < {tile * _SLICE // _THREADS}; ++i) {{
        {self._place(matrix, name, tile)}
        {name.lower()}s[now][slice][row] = next_{name}[i];
      }}
"""


@cache
def forward_text(dtype: str, dims: int) -> tuple[str, str]:
    """The name and the text of the kernel of the result: m places of outputs, n filters, k channels and kernel."""
    t = _Text(dtype, dims)
    name = f"conv{dims}_{dtype}"
    rows = (f"{t.split('row', 'b', 'p', t.out, 'i64')} base = (b * a.groups + group) * a.channels * {t.images}; "
            + t.placed("r", "p{d} * a.stride{d} - a.padding{d}"))  # fmt: skip
    slices = (f"{t.split('k', 'c', 'k', t.kernel, 'u32')} off = c * {t.images}; "
              + t.placed("s", "k{d} * a.dilation{d}"))  # fmt: skip
    left = _Matrix("x", rows, slices, False, tuple(t.image))
    right = _Matrix("w", "base = (group * a.filters + row) * K;", "off = k;", True)
    store = _Store("y", f"const i64 picture = m / ({t.outs}), base = m + (picture * (a.groups * a.filters - 1) + "
                        f"group * a.filters) * {t.outs};", t.outs,
                   f"if (a.bias) value += {widened(dtype, 'a.bias[group * a.filters + n]')};")  # fmt: skip
    sizes = f"const i64 M = a.batch * {t.outs}, N = a.filters, K = a.channels * {t.kernels};"
    fields = [*(f"const {dtype}* {n}" for n in ("x", "w", "bias")), f"{dtype}* y", f"{t.wide}* table", *t.fields()]
    return name, kernel_text(name, fields, t.product(sizes, left, right, store))


@cache
def input_text(dtype: str, dims: int, strided: bool) -> tuple[str, str]:
    """The name and the text of the kernel of dx: m places of the image, n channels, k filters and kernel. `strided`: is
    a stride of the convolution other than 1?"""
    t = _Text(dtype, dims)
    name = f"conv{dims}_dx_{dtype}{'_strided' if strided else ''}"
    rows = (f"{t.split('row', 'b', 'p', t.image, 'i64')} base = (b * a.groups + group) * a.filters * {t.outs}; "
            + t.placed("r", "p{d} + a.padding{d}"))  # fmt: skip
    slices = (f"{t.split('k', 'f', 'k', t.kernel, 'u32')} off = f * {t.outs}; "
              + t.placed("s", "-k{d} * a.dilation{d}"))  # fmt: skip
    strides = tuple(f"a.stride{d}" for d in range(dims)) if strided else ()
    left = _Matrix("g", rows, slices, False, tuple(t.out), strides)
    right = _Matrix("w", f"base = row * {t.kernels};",
                    f"const u32 each = {t.kernels}; "
                    "off = (group * a.filters + k / each) * a.channels * each + k % each;", True)  # fmt: skip
    store = _Store("dx", f"const i64 picture = m / ({t.images}), base = m + (picture * (a.groups * a.channels - 1) + "
                         f"group * a.channels) * {t.images};", t.images)  # fmt: skip
    sizes = f"const i64 M = a.batch * {t.images}, N = a.channels, K = a.filters * {t.kernels};"
    fields = [f"const {dtype}* g", f"const {dtype}* w", f"{dtype}* dx", f"{t.wide}* table", *t.fields()]
    return name, kernel_text(name, fields, t.product(sizes, left, right, store))


@cache
def weight_text(dtype: str, dims: int) -> tuple[str, str]:
    """The name and the text of the kernel of dw: m filters, n channels and kernel, k places of outputs."""
    t = _Text(dtype, dims)
    name = f"conv{dims}_dw_{dtype}"
    left = _Matrix("g", f"base = (group * a.filters + row) * {t.outs};",
                   f"const u32 each = {t.outs}; "
                   "off = k / each * a.groups * a.filters * each + k % each;", True)  # fmt: skip
    rows = (f"{t.split('row', 'c', 'k', t.kernel, 'i64')} base = (group * a.channels + c) * {t.images}; "
            + t.placed("r", "k{d} * a.dilation{d} - a.padding{d}"))  # fmt: skip
    slices = (f"{t.split('k', 'b', 'p', t.out, 'u32')} off = b * a.groups * a.channels * {t.images}; "
              + t.placed("s", "p{d} * a.stride{d}"))  # fmt: skip
    right = _Matrix("x", rows, slices, True, tuple(t.image))
    sizes = f"const i64 M = a.filters, N = a.channels * {t.kernels}, K = a.batch * {t.outs};"
    fields = [f"const {dtype}* x", f"const {dtype}* g", f"{dtype}* dw", f"{t.wide}* table", *t.fields()]
    store = _Store("dw", "const i64 base = (group * M + m) * N;", "1")
    return name, kernel_text(name, fields, t.product(sizes, left, right, store))


@cache
def parts_text(dtype: str) -> str:
    """Adds the parts of a result, and a bias for each filter if there is one."""
    wide = computed(dtype)
    body = all_of("i", "a.n") + f"""    {wide} sum = 0;
    for (i64 part = 0; part < a.parts; ++part) sum += a.table[part * a.n + i];
    if (a.bias) sum += {widened(dtype, "a.bias[i / a.plane % a.filters]")};
    a.out[i] = {narrowed(dtype, "sum")};
  }}
"""
    fields = (f"const {wide}* table", f"const {dtype}* bias", f"{dtype}* out", "i64 n", "i64 parts", "i64 plane",
              "i64 filters")  # fmt: skip
    return kernel_text(f"conv_parts_{dtype}", fields, body)


def _words(x: Any, w: Any, y: Any, slide: Slide, groups: int, parts: int) -> list[int]:
    """The fields after the arrays, from the shapes of input, weight and result."""
    sizes = [x.shape[0], groups, w.shape[1], w.shape[0] // groups, parts]
    return [*sizes, *x.shape[2:], *y.shape[2:], *w.shape[2:], *slide.stride, *slide.padding, *slide.dilation]


def _run(
    launcher: Launcher, kernel: tuple[str, str], arrays: list[Any], out: Any, sizes: tuple[int, int, int],
    shapes: tuple[Any, Any, Any, Slide, int], bias: Any = None,
) -> None:  # fmt: skip
    """Launch a product of (m, n, k), in parts if there are too few tiles for the device."""
    (m, n, k), groups, dtype = sizes, shapes[4], OF_NUMPY[out.dtype]
    if not math.prod(out.shape):
        return
    if k >= 2**31:
        raise LoopError("the kernels of convolutions sum over fewer than 2³¹ elements")
    grid = (-(-m // _tile_m(dtype)), -(-n // _TILE_N))
    parts = max(1, min(2 * launcher.limits.processors // (grid[0] * grid[1] * groups), k // _PART, _MOST_PARTS))
    table = launcher.empty((parts, math.prod(out.shape)), NUMPY[computed(dtype)]) if parts > 1 else None
    wheres = [0 if a is None else launcher.pointer(a) for a in (*arrays, out, table)]
    name, text = kernel
    run(launcher, text, name, (*grid, groups * parts), (_THREADS,), [*wheres, *_words(*shapes, parts)])
    if table is None:
        return
    wheres = [0 if a is None else launcher.pointer(a) for a in (table, bias, out)]
    words = [*wheres, math.prod(out.shape), parts, math.prod(out.shape[2:]), out.shape[1]]
    blocks = (blocks_for(launcher, math.prod(out.shape)),)
    run(launcher, parts_text(dtype), f"conv_parts_{dtype}", blocks, (THREADS,), words)


def forward(launcher: Launcher, x: Any, w: Any, bias: Any, out: Any, slide: Slide, groups: int = 1) -> None:
    """out = the convolution of x with w, plus a bias for each filter unless it is None."""
    sizes = (out.shape[0] * math.prod(out.shape[2:]), w.shape[0] // groups, math.prod(w.shape[1:]))
    kernel = forward_text(OF_NUMPY[x.dtype], x.ndim - 2)
    _run(launcher, kernel, [x, w, bias], out, sizes, (x, w, out, slide, groups), bias)


def input_gradient(launcher: Launcher, g: Any, w: Any, dx: Any, slide: Slide, groups: int = 1) -> None:
    """dx from the gradient g of the result."""
    sizes = (dx.shape[0] * math.prod(dx.shape[2:]), w.shape[1], w.shape[0] // groups * math.prod(w.shape[2:]))
    kernel = input_text(OF_NUMPY[g.dtype], g.ndim - 2, any(s != 1 for s in slide.stride))
    _run(launcher, kernel, [g, w], dx, sizes, (dx, w, g, slide, groups))


def weight_gradient(launcher: Launcher, x: Any, g: Any, dw: Any, slide: Slide, groups: int = 1) -> None:
    """dw from the gradient g of the result."""
    sizes = (dw.shape[0] // groups, math.prod(dw.shape[1:]), g.shape[0] * math.prod(g.shape[2:]))
    kernel = weight_text(OF_NUMPY[x.dtype], x.ndim - 2)
    _run(launcher, kernel, [x, g], dw, sizes, (x, dw, g, slide, groups))
