"""A few numbers written to the memory of a device. They travel as arguments of a kernel, so nothing waits."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from wayfare.codegen.cuda.launch import Launcher

# A kernel takes up to 4 KB of arguments: the address, the count, and so many words of 8 bytes.
_WORDS = 62
_TEXT = f"""
struct NumbersWords {{ long long* out; long long count; long long word[{_WORDS}]; }};
extern "C" __global__ void write_numbers(const NumbersWords a) {{
  const long long k = (long long)blockIdx.x * blockDim.x + threadIdx.x;
  if (k < a.count) a.out[k] = a.word[k];
}}
"""


def write_numbers(launcher: Launcher, array: np.ndarray[Any, np.dtype[Any]]) -> Any:
    """A copy of a short NumPy array on the device."""
    words = np.zeros(-(-max(array.nbytes, 1) // 8), np.int64)
    words.view(np.uint8)[: array.nbytes] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    made = launcher.empty((len(words) * 8 // array.itemsize,), array.dtype)
    function = launcher.compile(_TEXT)["write_numbers"]
    start = launcher.pointer(made)
    for first in range(0, len(words), _WORDS):
        part = words[first : first + _WORDS].tolist()
        given = (ctypes.c_int64 * (_WORDS + 2))(start + 8 * first, len(part), *part)
        launcher.launch(function, (1, 1, 1), (64, 1, 1), 0, given)
    return made[: array.size].reshape(array.shape)
