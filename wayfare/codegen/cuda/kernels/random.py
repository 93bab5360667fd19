"""Uniform random numbers that are the CPU's to the last bit: NumPy's Philox, as a function of a key and a position.

    uniform(launcher, (seed, call), out)     what `wayfare.ops.random.draws.draw_uniform` gives for out.shape and dtype

A thread makes one block of the counter: 4 doubles, 8 floats or 16 numbers of half precision. Normal and exponential
numbers of NumPy reject some draws, so the place of each depends on all before it: they have no such form.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any

from wayfare.codegen.cuda.kernels.routine import THREADS, all_of, blocks_for, kernel_text, run
from wayfare.codegen.cuda.launch import Launcher
from wayfare.codegen.loop.expr import OF_NUMPY

# Philox-4x64 with 10 rounds; block b of call c has the counter (b + 1, c, 0, 0) and the key (seed, 0).
_PHILOX = """#ifndef WAYFARE_PHILOX
#define WAYFARE_PHILOX
__device__ void philox(u64 seed, u64 call, u64 block, u64 out[4]) {
  u64 c0 = block + 1, c1 = call, c2 = 0, c3 = 0, k0 = seed, k1 = 0;
  for (int round = 0; round < 10; ++round) {
    const u64 high0 = __umul64hi(0xD2E7470EE14C6C93ull, c0), low0 = 0xD2E7470EE14C6C93ull * c0;
    const u64 high1 = __umul64hi(0xCA5A826395121157ull, c2), low1 = 0xCA5A826395121157ull * c2;
    c0 = high1 ^ c1 ^ k0; c1 = low1; c2 = high0 ^ c3 ^ k1; c3 = low0;
    k0 += 0x9E3779B97F4A7C15ull; k1 += 0xBB67AE8584CAA73Bull;
  }
  out[0] = c0; out[1] = c1; out[2] = c2; out[3] = c3;
}
#endif
"""
# For each dtype: how many numbers a block has, and number j of the words w[4].
_NUMBERS = {
    "f64": (4, "(f64)(w[j] >> 11) * (1.0 / 9007199254740992.0)"),
    "f32": (8, "(f32)((u32)(w[j / 2] >> (32 * (j % 2))) >> 8) * (1.0f / 16777216.0f)"),
    "f16": (16, "to_f16((f32)((u16)(w[j / 4] >> (16 * (j % 4))) >> 5) * (1.0f / 2048.0f))"),
    "bf16": (16, "to_bf16((f32)((u16)(w[j / 4] >> (16 * (j % 4))) >> 8) * (1.0f / 256.0f))"),
}


@cache
def uniform_text(dtype: str) -> str:
    """Fills an array with numbers in [0, 1)."""
    count, number = _NUMBERS[dtype]
    body = (
        all_of("b", f"(a.n + {count - 1}) / {count}")
        + f"""    u64 w[4];
    philox((u64)a.seed, (u64)a.call, (u64)b, w);
    for (int j = 0; j < {count} && b * {count} + j < a.n; ++j) a.out[b * {count} + j] = {number};
  }}
"""
    )
    return kernel_text(f"uniform_{dtype}", (f"{dtype}* out", "i64 n", "i64 seed", "i64 call"), body, _PHILOX)


def uniform(launcher: Launcher, key: tuple[int, int], out: Any) -> None:
    """Fill a C-contiguous array of floats with the uniform draw of a key."""
    dtype = OF_NUMPY[out.dtype]
    n = math.prod(out.shape)
    seed, call = (word - (1 << 64) if word >= 1 << 63 else word for word in key)
    blocks = blocks_for(launcher, -(-n // _NUMBERS[dtype][0]))
    if n:
        run(
            launcher,
            uniform_text(dtype),
            f"uniform_{dtype}",
            (blocks,),
            (THREADS,),
            [launcher.pointer(out), n, seed, call],
        )
