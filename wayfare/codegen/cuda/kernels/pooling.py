"""Pooling over windows of an image: the largest value and its place, sums, and their gradients.

    max_forward(launcher, x, out, places, slide)        places[…] = index in the image; padding never wins
    max_backward(launcher, g, places, dx, slide)
    sum_forward(launcher, x, out, slide)                the sum of each window
    sum_backward(launcher, g, dx, slide)

Arrays are C-contiguous [batch, channels, sizes…] with any number of dimensions of space. Without a slide the windows
are the cells of adaptive pooling, which divide the image evenly. Backward visits the windows that contain an element,
in order, so nothing is added atomically. Of equal values the first wins, of NaNs the last, as in PyTorch.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any

from wayfare.codegen.cuda.kernels.routine import THREADS, all_of, blocks_for, kernel_text, pointers, run
from wayfare.codegen.cuda.launch import Launcher
from wayfare.codegen.cuda.nest import reduction_type
from wayfare.codegen.cuda.types import computed, memory, narrowed, widened
from wayfare.codegen.loop.expr import OF_NUMPY
from wayfare.codegen.routines.windows import Slide

_SLIDE = ("size", "stride", "padding", "dilation")


class _Text:
    """Parts of text for a number of dimensions of space; `cells`: for the windows of adaptive pooling."""

    def __init__(self, dims: int, cells: bool) -> None:
        self.dims, self.cells = range(dims), cells

    def fields(self) -> list[str]:
        """Fields after the arrays."""
        named = ("image", "out", *(() if self.cells else _SLIDE))
        return ["i64 n", *(f"i64 {what}{d}" for what in named for d in self.dims)]

    def place(self, letter: str, what: str) -> str:
        """Statements: the image `plane` and the coordinates of element i."""
        lines = ["i64 rest = i;"]
        for d in reversed(self.dims):
            lines.append(f"const i64 {letter}{d} = rest % a.{what}{d}; rest /= a.{what}{d};")
        return " ".join([*lines, "const i64 plane = rest;"])

    def flat(self, letter: str, what: str) -> str:
        """The index of coordinates in one plane."""
        text = f"{letter}0"
        for d in self.dims[1:]:
            text = f"({text}) * a.{what}{d} + {letter}{d}"
        return text

    def plane(self, what: str) -> str:
        """How many elements a plane has."""
        return " * ".join(f"a.{what}{d}" for d in self.dims)

    def window(self, body: str) -> str:
        """A loop over the elements of the window of output p… that lie in the image, at q…."""
        text = ""
        for d in self.dims:
            if self.cells:
                text += self._cell("q", "p", "image", "out", d)
            else:
                text += (f"for (i64 k{d} = 0; k{d} < a.size{d}; ++k{d}) {{ "
                         f"const i64 q{d} = p{d} * a.stride{d} - a.padding{d} + k{d} * a.dilation{d}; "
                         f"if (q{d} < 0 || q{d} >= a.image{d}) continue;\n")  # fmt: skip
        return text + body + "}" * len(self.dims) + "\n"

    def windows_of(self, body: str) -> str:
        """A loop over the outputs p… whose windows contain the element q…."""
        text = ""
        for d in self.dims:
            if self.cells:
                text += self._cell("p", "q", "out", "image", d)
            else:
                text += (f"for (i64 k{d} = a.size{d} - 1; k{d} >= 0; --k{d}) {{ const i64 t{d} = q{d} + a.padding{d} "
                         f"- k{d} * a.dilation{d}, p{d} = t{d} / a.stride{d}; "
                         f"if (t{d} < 0 || t{d} % a.stride{d} || p{d} >= a.out{d}) continue;\n")  # fmt: skip
        return text + body + "}" * len(self.dims) + "\n"

    def _cell(self, inner: str, outer: str, inside: str, outside: str, d: int) -> str:
        """The head of a loop over what meets cell `outer` where `inside` elements are shared out to `outside` cells.
        An element meets the cells that would be its own if the cells were the elements."""
        return (f"for (i64 {inner}{d} = {outer}{d} * a.{inside}{d} / a.{outside}{d}, end{d} = (({outer}{d} + 1) * "
                f"a.{inside}{d} + a.{outside}{d} - 1) / a.{outside}{d}; {inner}{d} < end{d}; ++{inner}{d}) {{\n"
                )  # fmt: skip


@cache
def max_text(dtype: str, dims: int, cells: bool) -> tuple[str, str]:
    """The name and the text of the kernel of the largest values."""
    t, wide, kept = _Text(dims, cells), computed(dtype), memory(dtype)
    name = f"{'cell' if cells else 'window'}_max{dims}_{dtype}"
    value = widened(dtype, f"a.x[plane * ({t.plane('image')}) + at]")
    # The first element is always taken: it may be the lowest number.
    taken = (f"const i64 at = {t.flat('q', 'image')}; const {wide} value = {value};\n"
             "if (value > best || value != value || place < 0) { best = value; place = at; }\n")  # fmt: skip
    body = (all_of("i", "a.n") + t.place("p", "out") + f" {wide} best = Limits<{wide}>::low(); i64 place = -1;\n"
            + t.window(taken) + f"a.y[i] = {narrowed(dtype, 'best')}; a.places[i] = place; }}\n")  # fmt: skip
    return name, kernel_text(name, [f"const {kept}* x", f"{kept}* y", "i64* places", *t.fields()], body)


@cache
def max_gradient_text(dtype: str, dims: int, cells: bool) -> tuple[str, str]:
    """The name and the text of the kernel of their gradient."""
    t, wide, kept = _Text(dims, cells), computed(dtype), memory(dtype)
    name = f"{'cell' if cells else 'window'}_max{dims}_dx_{dtype}"
    added = (f"const i64 at = plane * ({t.plane('out')}) + {t.flat('p', 'out')}; "
             f"if (a.places[at] == own) sum += {widened(dtype, 'a.g[at]')};\n")  # fmt: skip
    body = (all_of("i", "a.n") + t.place("q", "image") + f" const i64 own = {t.flat('q', 'image')}; {wide} sum = 0;\n"
            + t.windows_of(added) + f"a.dx[i] = {narrowed(dtype, 'sum')}; }}\n")  # fmt: skip
    return name, kernel_text(name, [f"const {kept}* g", "const i64* places", f"{kept}* dx", *t.fields()], body)


@cache
def sum_text(dtype: str, dims: int) -> tuple[str, str]:
    """The name and the text of the kernel of sums."""
    t, wide, kept, name = _Text(dims, False), computed(dtype), memory(dtype), f"window_sum{dims}_{dtype}"
    total = reduction_type("sum", wide)
    element = widened(dtype, f"a.x[plane * ({t.plane('image')}) + {t.flat('q', 'image')}]")
    body = (all_of("i", "a.n") + t.place("p", "out") + f" {total} sum = {total}::empty();\n"
            + t.window(f"sum.take({element}, 0);\n")
            + f"a.y[i] = {narrowed(dtype, 'sum.total().result()')}; }}\n")  # fmt: skip
    return name, kernel_text(name, [f"const {kept}* x", f"{kept}* y", *t.fields()], body)


@cache
def sum_gradient_text(dtype: str, dims: int) -> tuple[str, str]:
    """The name and the text of the kernel of their gradient."""
    t, wide, kept, name = _Text(dims, False), computed(dtype), memory(dtype), f"window_sum{dims}_dx_{dtype}"
    element = f"a.g[plane * ({t.plane('out')}) + {t.flat('p', 'out')}]"
    body = (all_of("i", "a.n") + t.place("q", "image") + f" {wide} sum = 0;\n"
            + t.windows_of(f"sum += {widened(dtype, element)};\n")
            + f"a.dx[i] = {narrowed(dtype, 'sum')}; }}\n")  # fmt: skip
    return name, kernel_text(name, [f"const {kept}* g", f"{kept}* dx", *t.fields()], body)


def _run(
    launcher: Launcher, made: tuple[str, str], arrays: list[Any], image: Any, out: Any, written: Any,
    slide: Slide | None,
) -> None:  # fmt: skip
    name, text = made
    n = math.prod(written.shape)
    how = () if slide is None else (*slide.kernel, *slide.stride, *slide.padding, *slide.dilation)
    words = [*pointers(launcher, *arrays), n, *image.shape[2:], *out.shape[2:], *how]
    if n:
        run(launcher, text, name, (blocks_for(launcher, n),), (THREADS,), words)


def max_forward(launcher: Launcher, x: Any, out: Any, places: Any, slide: Slide | None) -> None:
    """The largest value of each window, and its index in the image: -1 for a window without elements."""
    made = max_text(OF_NUMPY[x.dtype], x.ndim - 2, slide is None)
    _run(launcher, made, [x, out, places], x, out, out, slide)


def max_backward(launcher: Launcher, g: Any, places: Any, dx: Any, slide: Slide | None) -> None:
    """The gradient of the image."""
    made = max_gradient_text(OF_NUMPY[g.dtype], g.ndim - 2, slide is None)
    _run(launcher, made, [g, places, dx], dx, g, dx, slide)


def sum_forward(launcher: Launcher, x: Any, out: Any, slide: Slide) -> None:
    """The sum of each window."""
    _run(launcher, sum_text(OF_NUMPY[x.dtype], x.ndim - 2), [x, out], x, out, out, slide)


def sum_backward(launcher: Launcher, g: Any, dx: Any, slide: Slide) -> None:
    """The gradient of the image."""
    _run(launcher, sum_gradient_text(OF_NUMPY[g.dtype], g.ndim - 2), [g, dx], dx, g, dx, slide)
