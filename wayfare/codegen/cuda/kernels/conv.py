"""Convolution as an implicit matrix product, without columns in memory: the result and both gradients.

    forward(launcher, x, w, bias, out, slide, groups)
    input_gradient(launcher, g, w, dx, slide, groups)
    weight_gradient(launcher, x, g, dw, slide, groups)

Arrays are C-contiguous: x [batch, channels, sizes…], w [out channels, channels / groups, kernel sizes…], of floats or
integers, with any number of dimensions of space. All three are products of a matrix A, m × k, and a matrix B, k × n,
whose elements are read from where they lie: a block makes a tile of 64 × 64 from slices of 16 in shared memory. The sum
over batch and space of the weight's gradient is split over blocks, and the parts are added in order. float16 is summed
in float32.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any

from wayfare.codegen.cuda.kernels.routine import THREADS, all_of, blocks_for, kernel_text, pointers, run
from wayfare.codegen.cuda.launch import Launcher
from wayfare.codegen.cuda.types import computed, narrowed, widened
from wayfare.codegen.loop.expr import FLOATS, NUMPY, OF_NUMPY
from wayfare.codegen.routines.windows import Slide

# A tile of the product is _TILE × _TILE, the threads of a block _SIDE × _SIDE, a slice has _SIDE values of k.
_TILE, _SIDE = 64, 16
# The fewest values of k of one part of the weight's gradient, and the most parts.
_PART, _MOST_PARTS = 512, 64


def _split(index: str, first: str, names: list[str], sizes: list[str]) -> str:
    """Statements: `first` and the coordinates `names`, from an index that counts all of them, the last one fastest."""
    lines = [f"i64 rest_{first} = {index};"]
    for name, size in reversed(list(zip(names, sizes, strict=True))):
        lines.append(f"const i64 {name} = rest_{first} % {size}; rest_{first} /= {size};")
    return " ".join([*lines, f"const i64 {first} = rest_{first};"])


def _flat(names: list[str], sizes: list[str]) -> str:
    """The index of coordinates, the last one fastest."""
    text = names[0]
    for name, size in zip(names[1:], sizes[1:], strict=True):
        text = f"({text}) * {size} + {name}"
    return text


class _Text:
    """The text of one of the three products, for a number of dimensions of space."""

    def __init__(self, dtype: str, dims: int) -> None:
        self.dtype, self.wide, self.dims = dtype, computed(dtype), dims
        self.places, self.kernels, self.images = ([f"{letter}{d}" for d in range(dims)] for letter in "pki")
        self.out, self.kernel, self.image = (
            [f"a.{what}{d}" for d in range(dims)] for what in ("out", "kernel", "image")
        )

    def fields(self) -> list[str]:
        """Fields after the arrays."""
        named = [f"i64 {what}{d}" for what in ("image", "out", "kernel", "stride", "padding", "dilation")
                 for d in range(self.dims)]  # fmt: skip
        return ["i64 batch", "i64 groups", "i64 channels", "i64 filters", "i64 parts", *named]

    def image_places(self) -> tuple[str, str]:
        """Statements: the place in the image of each kernel element at an output, and whether it is there."""
        lines = [
            f"const i64 i{d} = p{d} * a.stride{d} - a.padding{d} + k{d} * a.dilation{d};" for d in range(self.dims)
        ]
        return " ".join(lines), " && ".join(f"i{d} >= 0 && i{d} < a.image{d}" for d in range(self.dims))

    def out_places(self) -> tuple[str, str]:
        """The other way round: the output that reads this place of the image with this kernel element."""
        lines, tests = [], []
        for d in range(self.dims):
            lines.append(f"const i64 t{d} = i{d} + a.padding{d} - k{d} * a.dilation{d}, p{d} = t{d} / a.stride{d};")
            tests.append(f"t{d} >= 0 && t{d} % a.stride{d} == 0 && p{d} < a.out{d}")
        return " ".join(lines), " && ".join(tests)

    def image_value(self) -> str:
        """The element of x of batch b and channel c at i…"""
        plane = "b * a.groups * a.channels + group * a.channels + c"
        return widened(self.dtype, f"a.x[{_flat([plane, *self.images], ['', *self.image])}]")

    def out_value(self) -> str:
        """The element of g of batch b and filter f at p…"""
        plane = "b * a.groups * a.filters + group * a.filters + f"
        return widened(self.dtype, f"a.g[{_flat([plane, *self.places], ['', *self.out])}]")

    def product(self, sizes: str, a: str, b: str, store: str, along_k: bool) -> str:
        """The body of a kernel: `sizes` declares M, N, K; `a` and `b` are statements that set `value` at (m, k) and
        (k, n) from zero; `store` stores `value` at (m, n). `along_k`: neighbouring threads load along k, and store
        along n; else they do both along m."""
        wide = self.wide
        local = (f"const int row = t / {_SIDE} + i * {_SIDE}, slice = t % {_SIDE};" if along_k
                 else f"const int row = t % {_TILE}, slice = t / {_TILE} + i * {THREADS // _TILE};")  # fmt: skip
        m_at, n_at = ("ty", "tx") if along_k else ("tx", "ty")
        each = _TILE // _SIDE
        a_value, b_value = f"as[slice][{m_at} + i * {_SIDE}]", f"bs[slice][{n_at} + j * {_SIDE}]"
        added = (f"fma({a_value}, {b_value}, sum[i][j])" if wide in FLOATS
                 else f"wrap_add(sum[i][j], wrap_mul({a_value}, {b_value}))")  # fmt: skip

        def load(shared: str, name: str, limit: str, value: str) -> str:
            return f"""    for (int i = 0; i < {each}; ++i) {{
      {local}
      const i64 {name} = first_{name} + row, k = first_k + slice;
      {wide} value = 0;
      if ({name} < {limit} && k < end) {{ {value} }}
      {shared}[slice][row] = value;
    }}
"""

        return f"""  const i64 group = blockIdx.z % a.groups, part = blockIdx.z / a.groups;
  {sizes}
  const int t = threadIdx.x, tx = t % {_SIDE}, ty = t / {_SIDE};
  const i64 first_m = (i64)blockIdx.x * {_TILE}, first_n = (i64)blockIdx.y * {_TILE};
  const i64 chunk = (K + a.parts - 1) / a.parts, begin = part * chunk, end = begin + chunk < K ? begin + chunk : K;
  __shared__ {wide} as[{_SIDE}][{_TILE + 1}], bs[{_SIDE}][{_TILE + 1}];
  {wide} sum[{each}][{each}];
  for (int i = 0; i < {each}; ++i) for (int j = 0; j < {each}; ++j) sum[i][j] = 0;
  for (i64 first_k = begin; first_k < end; first_k += {_SIDE}) {{
{load("as", "m", "M", a)}{load("bs", "n", "N", b)}    __syncthreads();
    #pragma unroll
    for (int slice = 0; slice < {_SIDE}; ++slice)
      #pragma unroll
      for (int i = 0; i < {each}; ++i)
        #pragma unroll
        for (int j = 0; j < {each}; ++j)
          sum[i][j] = {added};
    __syncthreads();
  }}
  for (int i = 0; i < {each}; ++i) for (int j = 0; j < {each}; ++j) {{
    const i64 m = first_m + {m_at} + i * {_SIDE}, n = first_n + {n_at} + j * {_SIDE};
    if (m >= M || n >= N) continue;
    {wide} value = sum[i][j];
    {store}
  }}
"""


@cache
def forward_text(dtype: str, dims: int) -> tuple[str, str]:
    """The name and the text of the kernel of the result: m places of outputs, n filters, k channels and kernel."""
    t = _Text(dtype, dims)
    name = f"conv{dims}_{dtype}"
    outs, kernel = " * ".join(t.out), " * ".join(t.kernel)
    where, there = t.image_places()
    a = (f"{_split('m', 'b', t.places, t.out)} {_split('k', 'c', t.kernels, t.kernel)} {where} if ({there}) "
         f"value = {t.image_value()};")  # fmt: skip
    b = f"value = {widened(dtype, 'a.w[(group * a.filters + n) * K + k]')};"
    store = (f"if (a.bias) value += {widened(dtype, 'a.bias[group * a.filters + n]')}; "
             f"a.y[(m / ({outs}) * a.groups * a.filters + group * a.filters + n) * ({outs}) + m % ({outs})] = "
             f"{narrowed(dtype, 'value')};")  # fmt: skip
    sizes = f"const i64 M = a.batch * {outs}, N = a.filters, K = a.channels * {kernel};"
    fields = [*(f"const {dtype}* {n}" for n in ("x", "w", "bias")), f"{dtype}* y", *t.fields()]
    return name, kernel_text(name, fields, t.product(sizes, a, b, store, along_k=False))


@cache
def input_text(dtype: str, dims: int) -> tuple[str, str]:
    """The name and the text of the kernel of dx: m places of the image, n channels, k filters and kernel."""
    t = _Text(dtype, dims)
    name = f"conv{dims}_dx_{dtype}"
    image, kernel = " * ".join(t.image), " * ".join(t.kernel)
    where, there = t.out_places()
    a = (f"{_split('m', 'b', t.images, t.image)} {_split('k', 'f', t.kernels, t.kernel)} {where} if ({there}) "
         f"value = {t.out_value()};")  # fmt: skip
    b = ("value = " + widened(dtype, f"a.w[((group * a.filters + k / ({kernel})) * a.channels + n) * ({kernel}) + "
                                     f"k % ({kernel})]") + ";")  # fmt: skip
    store = (f"a.dx[(m / ({image}) * a.groups * a.channels + group * a.channels + n) * ({image}) + m % ({image})] = "
             f"{narrowed(dtype, 'value')};")  # fmt: skip
    sizes = f"const i64 M = a.batch * {image}, N = a.channels, K = a.filters * {kernel};"
    fields = [f"const {dtype}* g", f"const {dtype}* w", f"{dtype}* dx", *t.fields()]
    return name, kernel_text(name, fields, t.product(sizes, a, b, store, along_k=False))


@cache
def weight_text(dtype: str, dims: int) -> tuple[str, str]:
    """The name and the text of the kernel of parts of dw: m filters, n channels and kernel, k places of outputs."""
    t = _Text(dtype, dims)
    name = f"conv{dims}_dw_{dtype}"
    outs, kernel = " * ".join(t.out), " * ".join(t.kernel)
    where, there = t.image_places()
    place = f"(k / ({outs}) * a.groups * a.filters + group * a.filters + m) * ({outs}) + k % ({outs})"
    a = f"value = {widened(dtype, f'a.g[{place}]')};"
    b = (f"{_split('n', 'c', t.kernels, t.kernel)} {_split('k', 'b', t.places, t.out)} {where} if ({there}) "
         f"value = {t.image_value()};")  # fmt: skip
    store = "a.dw[((part * a.groups + group) * M + m) * N + n] = value;"
    sizes = f"const i64 M = a.filters, N = a.channels * {kernel}, K = a.batch * {outs};"
    fields = [f"const {dtype}* x", f"const {dtype}* g", f"{t.wide}* dw", *t.fields()]
    return name, kernel_text(name, fields, t.product(sizes, a, b, store, along_k=True))


@cache
def parts_text(dtype: str) -> str:
    """Adds the parts of dw."""
    wide = computed(dtype)
    body = (
        all_of("i", "a.n")
        + f"""    {wide} sum = 0;
    for (i64 part = 0; part < a.parts; ++part) sum += a.table[part * a.n + i];
    a.out[i] = {narrowed(dtype, "sum")};
  }}
"""
    )
    return kernel_text(f"conv_parts_{dtype}", (f"const {wide}* table", f"{dtype}* out", "i64 n", "i64 parts"), body)


def _words(x: Any, w: Any, y: Any, slide: Slide, groups: int, parts: int = 1) -> list[int]:
    """The fields after the arrays, from the shapes of input, weight and result."""
    sizes = [x.shape[0], groups, w.shape[1], w.shape[0] // groups, parts]
    return [*sizes, *x.shape[2:], *y.shape[2:], *w.shape[2:], *slide.stride, *slide.padding, *slide.dilation]


def _grid(m: int, n: int, z: int) -> tuple[int, int, int]:
    return -(-m // _TILE), -(-n // _TILE), z


def forward(launcher: Launcher, x: Any, w: Any, bias: Any, out: Any, slide: Slide, groups: int = 1) -> None:
    """out = the convolution of x with w, plus a bias for each filter unless it is None."""
    name, text = forward_text(OF_NUMPY[x.dtype], x.ndim - 2)
    if not math.prod(out.shape):
        return
    arrays = [*pointers(launcher, x, w), 0 if bias is None else launcher.pointer(bias), launcher.pointer(out)]
    grid = _grid(out.shape[0] * math.prod(out.shape[2:]), w.shape[0] // groups, groups)
    run(launcher, text, name, grid, (THREADS,), [*arrays, *_words(x, w, out, slide, groups)])


def input_gradient(launcher: Launcher, g: Any, w: Any, dx: Any, slide: Slide, groups: int = 1) -> None:
    """dx from the gradient g of the result."""
    name, text = input_text(OF_NUMPY[g.dtype], g.ndim - 2)
    if not math.prod(dx.shape):
        return
    grid = _grid(dx.shape[0] * math.prod(dx.shape[2:]), w.shape[1], groups)
    run(launcher, text, name, grid, (THREADS,), [*pointers(launcher, g, w, dx), *_words(dx, w, g, slide, groups)])


def weight_gradient(launcher: Launcher, x: Any, g: Any, dw: Any, slide: Slide, groups: int = 1) -> None:
    """dw from the gradient g of the result."""
    dtype = OF_NUMPY[x.dtype]
    name, text = weight_text(dtype, x.ndim - 2)
    size, filters, columns = math.prod(dw.shape), dw.shape[0] // groups, math.prod(dw.shape[1:])
    if not size:
        return
    m, n, _ = _grid(filters, columns, 1)
    places = g.shape[0] * math.prod(g.shape[2:])
    wanted = 2 * launcher.limits.processors // (m * n * groups)
    parts = max(1, min(wanted, places // _PART, _MOST_PARTS))
    table = launcher.empty((parts, size), NUMPY[computed(dtype)])
    words = [*pointers(launcher, x, g, table), *_words(x, dw, g, slide, groups, parts)]
    run(launcher, text, name, (m, n, groups * parts), (THREADS,), words)
    words = [*pointers(launcher, table, dw), size, parts]
    run(launcher, parts_text(dtype), f"conv_parts_{dtype}", (blocks_for(launcher, size),), (THREADS,), words)
