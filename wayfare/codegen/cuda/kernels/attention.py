"""Attention without the matrix of scores in memory: softmax(q kᵀ · scale) v, forward and backward.

    forward(launcher, q, k, v, out, logs, scale, causal)
    backward(launcher, q, k, v, out, logs, g, dq, dk, dv, scale, causal)

Arrays are [batch, heads, length, width] of float32, float16 or bfloat16 with contiguous rows of width 32, 64 or 128;
other strides are free, and `scale` is positive. `logs`, float32 [batch, heads, queries], keeps the logarithm of each
row's sum for backward. With `causal` query i sees the keys 0 … i. A query that sees no key gets zeros.

A block has a tile of queries and passes over tiles of keys in shared memory; maximum and sum of each row are corrected
as larger scores come. Backward computes the weights again, once for each tile of queries (dq) and once for each tile
of keys (dk, dv), so nothing is added atomically and results are always the same. Sums are in float32. The kernels here
are for float32; those for float16 and bfloat16 use tensor cores (`attention_half`).
"""

from __future__ import annotations

from functools import cache
from typing import Any

from wayfare.codegen.cuda.kernels import attention_half as half
from wayfare.codegen.cuda.kernels.routine import kernel_text, pointers, run
from wayfare.codegen.cuda.launch import Launcher
from wayfare.codegen.cuda.types import TYPES
from wayfare.codegen.loop.expr import OF_NUMPY
from wayfare.core.errors import LoopError

# Threads of a block: 16 × 16; the 16 that share rows of a tile are neighbouring lanes.
_SIDE = 16
THREADS = _SIDE * _SIDE
WIDTHS = (32, 64, 128)
_ALIGNED = 16

# Rows of a tile by width of a row: what fits 48 KB of shared memory.
_QUERIES = {32: 64, 64: 64, 128: 32}
_KEYS = 32
_BACKWARD = {32: 32, 64: 32, 128: 16}

_HELPERS = """#ifndef WAYFARE_ATTENTION
#define WAYFARE_ATTENTION
__device__ __forceinline__ f32 row_max(f32 x) {
  for (int d = 8; d > 0; d /= 2) x = maximum(x, __shfl_xor_sync(0xffffffffu, x, d));
  return x;
}
__device__ __forceinline__ f32 row_sum(f32 x) {
  for (int d = 8; d > 0; d /= 2) x += __shfl_xor_sync(0xffffffffu, x, d);
  return x;
}
// Rows first … first + ROWS - 1 of a matrix to shared memory; rows beyond its end are zero.
template <class T, int ROWS, int D> __device__ __forceinline__ void tile(f32 (*to)[D + 1], const T* from, i64 step,
                                                                         i64 first, i64 count) {
  for (int k = threadIdx.x; k < ROWS * D; k += blockDim.x) {
    const int row = k / D, at = k % D;
    to[row][at] = first + row < count ? to_f32(from[(first + row) * step + at]) : 0.0f;
  }
}
#endif
"""


def _start(width: int, rows: int, columns: int) -> str:
    """Names that all kernels use: sizes of a thread's part, and the thread's place."""
    return f"""  typedef f32 T;
  const int D = {width}, R = {rows // _SIDE}, C = {columns // _SIDE}, W = {width // _SIDE};
  const int tx = threadIdx.x % {_SIDE}, ty = threadIdx.x / {_SIDE};
  const i64 head = blockIdx.y % a.heads, batch = blockIdx.y / a.heads;
"""


def _matrix(name: str, field: str) -> str:
    return f"{name}{field} + batch * a.{field}_b + head * a.{field}_h"


def _fields(*names: str) -> list[str]:
    """Strides of matrices, in elements: along batches, heads and rows."""
    return [f"i64 {name}_{letter}" for name in names for letter in "bht"]


_SIZES = ["i64 heads", "i64 queries", "i64 keys", "f64 scale"]


def forward_fields(dtype: str) -> tuple[str, ...]:
    """The fields of the forward kernel."""
    return (f"const {dtype}* q", f"const {dtype}* k", f"const {dtype}* v", f"{dtype}* out", "f32* logs", *_SIZES,
            *_fields("q", "k", "v", "out"))  # fmt: skip


@cache
def forward_text(width: int, causal: bool) -> tuple[str, str]:
    """The name and the text of the forward kernel."""
    name = f"attention_f32_{width}_{'causal' if causal else 'full'}"
    rows = _QUERIES[width]
    body = _start(width, rows, _KEYS) + f"""
  __shared__ f32 qs[{rows}][D + 1], ks[{_KEYS}][D + 1], ps[{rows}][{_KEYS + 1}];
  const i64 first = (i64)blockIdx.x * {rows};
  const T* q = {_matrix("a.", "q")};
  const T* k = {_matrix("a.", "k")};
  const T* v = {_matrix("a.", "v")};
  T* out = {_matrix("a.", "out")};
  const f32 scale = (f32)a.scale, low = __int_as_float((i32)0xff800000u);
  tile<T, {rows}, D>(qs, q, a.q_t, first, a.queries);
  f32 top[R], total[R], sum[R][W];
  for (int i = 0; i < R; ++i) {{ top[i] = low; total[i] = 0.0f; for (int j = 0; j < W; ++j) sum[i][j] = 0.0f; }}
  const i64 seen = {f"first + {rows} < a.keys ? first + {rows} : a.keys" if causal else "a.keys"};
  for (i64 start = 0; start < seen; start += {_KEYS}) {{
    __syncthreads();
    tile<T, {_KEYS}, D>(ks, k, a.k_t, start, a.keys);
    __syncthreads();
    f32 s[R][C];
    for (int i = 0; i < R; ++i) for (int j = 0; j < C; ++j) s[i][j] = 0.0f;
    for (int d = 0; d < D; ++d) {{
      f32 own[R], other[C];
      #pragma unroll
      for (int i = 0; i < R; ++i) own[i] = qs[ty + {_SIDE} * i][d];
      #pragma unroll
      for (int j = 0; j < C; ++j) other[j] = ks[tx + {_SIDE} * j][d];
      #pragma unroll
      for (int i = 0; i < R; ++i)
        #pragma unroll
        for (int j = 0; j < C; ++j) s[i][j] = fmaf(own[i], other[j], s[i][j]);
    }}
    #pragma unroll
    for (int i = 0; i < R; ++i) {{
      const i64 query = first + ty + {_SIDE} * i;
      f32 largest = low;
      #pragma unroll
      for (int j = 0; j < C; ++j) {{
        const i64 key = start + tx + {_SIDE} * j;
        s[i][j] = key < a.keys{" && key <= query" if causal else ""} ? s[i][j] * scale : low;
        largest = maximum(largest, s[i][j]);
      }}
      const f32 now = maximum(top[i], row_max(largest)), base = now == low ? 0.0f : now;
      const f32 shrink = expf(top[i] - base);
      f32 part = 0.0f;
      #pragma unroll
      for (int j = 0; j < C; ++j) {{
        const f32 p = expf(s[i][j] - base);
        part += p;
        ps[ty + {_SIDE} * i][tx + {_SIDE} * j] = p;
      }}
      total[i] = total[i] * shrink + row_sum(part);
      top[i] = now;
      #pragma unroll
      for (int j = 0; j < W; ++j) sum[i][j] *= shrink;
    }}
    __syncthreads();
    tile<T, {_KEYS}, D>(ks, v, a.v_t, start, a.keys);
    __syncthreads();
    for (int c = 0; c < {_KEYS}; ++c) {{
      f32 weight[R], value[W];
      #pragma unroll
      for (int i = 0; i < R; ++i) weight[i] = ps[ty + {_SIDE} * i][c];
      #pragma unroll
      for (int j = 0; j < W; ++j) value[j] = ks[c][tx + {_SIDE} * j];
      #pragma unroll
      for (int i = 0; i < R; ++i)
        #pragma unroll
        for (int j = 0; j < W; ++j) sum[i][j] = fmaf(weight[i], value[j], sum[i][j]);
    }}
  }}
  for (int i = 0; i < R; ++i) {{
    const i64 query = first + ty + {_SIDE} * i;
    if (query >= a.queries) continue;
    const f32 share = total[i] == 0.0f ? 0.0f : 1.0f / total[i];
    for (int j = 0; j < W; ++j) out[query * a.out_t + tx + {_SIDE} * j] = sum[i][j] * share;
    // Infinity for a query that sees no key: its weights are exp(s - infinity) = 0.
    if (tx == 0) a.logs[(i64)blockIdx.y * a.queries + query] = total[i] == 0.0f ? -low : top[i] + logf(total[i]);
  }}
"""  # fmt: skip
    return name, kernel_text(name, forward_fields("f32"), body, _HELPERS)


def _weights(tile: int, causal: bool) -> str:
    """The statements that compute weights p[i][j] and gradients of scores ds[i][j] of a tile of queries and keys, from
    tiles qs, gs, ks, vs in shared memory."""
    return f"""    f32 p[R][C], ds[R][C];
    for (int i = 0; i < R; ++i) for (int j = 0; j < C; ++j) p[i][j] = ds[i][j] = 0.0f;
    for (int d = 0; d < D; ++d) {{
      f32 q_d[R], g_d[R], k_d[C], v_d[C];
      #pragma unroll
      for (int i = 0; i < R; ++i) {{ q_d[i] = qs[ty + {_SIDE} * i][d]; g_d[i] = gs[ty + {_SIDE} * i][d]; }}
      #pragma unroll
      for (int j = 0; j < C; ++j) {{ k_d[j] = ks[tx + {_SIDE} * j][d]; v_d[j] = vs[tx + {_SIDE} * j][d]; }}
      #pragma unroll
      for (int i = 0; i < R; ++i)
        #pragma unroll
        for (int j = 0; j < C; ++j) {{
          p[i][j] = fmaf(q_d[i], k_d[j], p[i][j]);
          ds[i][j] = fmaf(g_d[i], v_d[j], ds[i][j]);
        }}
    }}
    #pragma unroll
    for (int i = 0; i < R; ++i) {{
      const i64 query = first_query + ty + {_SIDE} * i;
      const bool there = query < a.queries;
      const i64 at = (i64)blockIdx.y * a.queries + (there ? query : 0);
      #pragma unroll
      for (int j = 0; j < C; ++j) {{
        const i64 key = first_key + tx + {_SIDE} * j;
        const bool seen = there && key < a.keys{" && key <= query" if causal else ""};
        p[i][j] = seen ? expf(p[i][j] * scale - a.logs[at]) : 0.0f;
        ds[i][j] = p[i][j] * (ds[i][j] - a.dots[at]) * scale;
      }}
    }}
"""


def backward_fields(dtype: str, made: str) -> tuple[str, ...]:
    """The fields of the kernels that make gradients."""
    given = [f"const {dtype}* {name}" for name in ("q", "k", "v", "g")]
    written = [f"{dtype}* {name}" for name in made.split()]
    arrays = [*given, *written, "const f32* logs", "const f32* dots"]
    return *arrays, *_SIZES, *_fields("q", "k", "v", "g", *made.split())


def _backward_start(width: int, made: str) -> str:
    tile = _BACKWARD[width]
    read = "".join(f"  const T* {n} = {_matrix('a.', n)};\n" for n in ("q", "k", "v", "g"))
    write = "".join(f"  T* {n} = {_matrix('a.', n)};\n" for n in made.split())
    shared = ", ".join(f"{n}[{tile}][{width + 1}]" for n in ("qs", "gs", "ks", "vs"))
    return (_start(width, tile, tile) + read + write + f"  __shared__ f32 {shared};\n"
            "  const f32 scale = (f32)a.scale;\n")  # fmt: skip


@cache
def queries_text(width: int, causal: bool) -> tuple[str, str]:
    """The name and the text of the kernel that makes dq."""
    name, tile = f"attention_dq_f32_{width}_{'causal' if causal else 'full'}", _BACKWARD[width]
    seen = f"first_query + {tile} < a.keys ? first_query + {tile} : a.keys" if causal else "a.keys"
    body = _backward_start(width, "dq") + f"""  __shared__ f32 dss[{tile}][{tile + 1}];
  const i64 first_query = (i64)blockIdx.x * {tile}, seen = {seen};
  tile<T, {tile}, D>(qs, q, a.q_t, first_query, a.queries);
  tile<T, {tile}, D>(gs, g, a.g_t, first_query, a.queries);
  f32 sum[R][W];
  for (int i = 0; i < R; ++i) for (int j = 0; j < W; ++j) sum[i][j] = 0.0f;
  for (i64 first_key = 0; first_key < seen; first_key += {tile}) {{
    __syncthreads();
    tile<T, {tile}, D>(ks, k, a.k_t, first_key, a.keys);
    tile<T, {tile}, D>(vs, v, a.v_t, first_key, a.keys);
    __syncthreads();
{_weights(tile, causal)}    for (int i = 0; i < R; ++i)
      for (int j = 0; j < C; ++j) dss[ty + {_SIDE} * i][tx + {_SIDE} * j] = ds[i][j];
    __syncthreads();
    for (int c = 0; c < {tile}; ++c)
      #pragma unroll
      for (int i = 0; i < R; ++i)
        #pragma unroll
        for (int j = 0; j < W; ++j) sum[i][j] = fmaf(dss[ty + {_SIDE} * i][c], ks[c][tx + {_SIDE} * j], sum[i][j]);
  }}
  for (int i = 0; i < R; ++i) {{
    const i64 query = first_query + ty + {_SIDE} * i;
    if (query < a.queries)
      for (int j = 0; j < W; ++j) dq[query * a.dq_t + tx + {_SIDE} * j] = sum[i][j];
  }}
"""  # fmt: skip
    return name, kernel_text(name, backward_fields("f32", "dq"), body, _HELPERS)


@cache
def keys_text(width: int, causal: bool) -> tuple[str, str]:
    """The name and the text of the kernel that makes dk and dv."""
    name, tile = f"attention_dk_f32_{width}_{'causal' if causal else 'full'}", _BACKWARD[width]
    body = _backward_start(width, "dk dv") + f"""  __shared__ f32 pss[{tile}][{tile + 1}];
  __shared__ f32 dss[{tile}][{tile + 1}];
  const i64 first_key = (i64)blockIdx.x * {tile};
  tile<T, {tile}, D>(ks, k, a.k_t, first_key, a.keys);
  tile<T, {tile}, D>(vs, v, a.v_t, first_key, a.keys);
  f32 sum_k[C][W], sum_v[C][W];
  for (int i = 0; i < C; ++i) for (int j = 0; j < W; ++j) sum_k[i][j] = sum_v[i][j] = 0.0f;
  for (i64 first_query = {"first_key" if causal else "0"}; first_query < a.queries; first_query += {tile}) {{
    __syncthreads();
    tile<T, {tile}, D>(qs, q, a.q_t, first_query, a.queries);
    tile<T, {tile}, D>(gs, g, a.g_t, first_query, a.queries);
    __syncthreads();
{_weights(tile, causal)}    for (int i = 0; i < R; ++i) for (int j = 0; j < C; ++j) {{
      pss[ty + {_SIDE} * i][tx + {_SIDE} * j] = p[i][j];
      dss[ty + {_SIDE} * i][tx + {_SIDE} * j] = ds[i][j];
    }}
    __syncthreads();
    for (int r = 0; r < {tile}; ++r)
      #pragma unroll
      for (int i = 0; i < C; ++i)
        #pragma unroll
        for (int j = 0; j < W; ++j) {{
          sum_k[i][j] = fmaf(dss[r][ty + {_SIDE} * i], qs[r][tx + {_SIDE} * j], sum_k[i][j]);
          sum_v[i][j] = fmaf(pss[r][ty + {_SIDE} * i], gs[r][tx + {_SIDE} * j], sum_v[i][j]);
        }}
  }}
  for (int i = 0; i < C; ++i) {{
    const i64 key = first_key + ty + {_SIDE} * i;
    if (key >= a.keys) continue;
    for (int j = 0; j < W; ++j) {{
      dk[key * a.dk_t + tx + {_SIDE} * j] = sum_k[i][j];
      dv[key * a.dv_t + tx + {_SIDE} * j] = sum_v[i][j];
    }}
  }}
"""  # fmt: skip
    return name, kernel_text(name, backward_fields("f32", "dk dv"), body, _HELPERS)


@cache
def dots_text(dtype: str, width: int) -> tuple[str, str]:
    """The name and the text of the kernel that multiplies each row of the result by its gradient: 16 threads a row."""
    name, each = f"attention_dots_{dtype}_{width}", min(4, width // _SIDE)
    body = f"""  const i64 head = blockIdx.y % a.heads, batch = blockIdx.y / a.heads;
  const i64 row = ((i64)blockIdx.x * blockDim.x + threadIdx.x) / {_SIDE}, query = row < a.queries ? row : a.queries - 1;
  const {dtype}* out = {_matrix("a.", "out")} + query * a.out_t;
  const {dtype}* g = {_matrix("a.", "g")} + query * a.g_t;
  typedef Vec<{dtype}, {each}> Group;
  f32 sum = 0.0f;
  for (int d = threadIdx.x % {_SIDE} * {each}; d < {width}; d += {_SIDE * each}) {{
    const Group x = *(const Group*)(out + d), y = *(const Group*)(g + d);
    for (int j = 0; j < {each}; ++j) sum = fmaf(to_f32(x.v[j]), to_f32(y.v[j]), sum);
  }}
  sum = row_sum(sum);
  if (row < a.queries && threadIdx.x % {_SIDE} == 0) a.dots[(i64)blockIdx.y * a.queries + row] = sum;
"""
    fields = [f"const {dtype}* out", f"const {dtype}* g", "f32* dots", "i64 heads", "i64 queries", *_fields("out", "g")]
    return name, kernel_text(name, fields, body, _HELPERS)


def _strides(*arrays: Any) -> list[int]:
    return [stride // a.itemsize for a in arrays for stride in a.strides[:3]]


def _checked(launcher: Launcher, *arrays: Any) -> tuple[str, int]:
    """The dtype and the width of a row."""
    dtype, width = OF_NUMPY.get(arrays[0].dtype), arrays[0].shape[3]
    if dtype is None or not (dtype == "f32" or TYPES[dtype].stored) or width not in WIDTHS:
        raise LoopError(f"attention kernels take float32 or less in rows of {', '.join(map(str, WIDTHS))}, not "
                        f"{arrays[0].dtype} in rows of {width}")  # fmt: skip
    if any(a.dtype != arrays[0].dtype or not in_rows(launcher, a) for a in arrays):
        raise LoopError("attention kernels take arrays of one dtype with contiguous rows that are aligned")
    return dtype, width


def in_rows(launcher: Launcher, a: Any) -> bool:
    """Are the rows of an array contiguous, and do they begin at multiples of what is loaded at once?"""
    return a.strides[-1] == a.itemsize and not any(n % _ALIGNED for n in (launcher.pointer(a), *a.strides[:-1]))


def forward(
    launcher: Launcher, q: Any, k: Any, v: Any, out: Any, logs: Any, scale: float, causal: bool
) -> None:  # fmt: skip
    """out = softmax(q kᵀ · scale) v, and the logarithms of the rows' sums."""
    dtype, width = _checked(launcher, q, k, v, out)
    if not scale > 0:
        raise LoopError(f"attention kernels take a positive scale, not {scale}")
    batch, heads, queries, _ = q.shape
    words = [*pointers(launcher, q, k, v, out, logs), heads, queries, k.shape[2], float(scale),
             *_strides(q, k, v, out)]  # fmt: skip
    if not batch * heads * queries:
        return
    if dtype == "f32":
        each, threads, (name, text) = _QUERIES[width], THREADS, forward_text(width, causal)
    else:
        each, threads = half.queries_of(width), half.THREADS
        name, text = half.forward_text(dtype, width, causal, forward_fields(dtype))
    run(launcher, text, name, (-(-queries // each), batch * heads), (threads,), words)


def backward(
    launcher: Launcher, q: Any, k: Any, v: Any, out: Any, logs: Any, g: Any, dq: Any, dk: Any, dv: Any, scale: float,
    causal: bool,
) -> None:  # fmt: skip
    """The gradients dq, dk, dv, from g, that of `out`."""
    dtype, width = _checked(launcher, q, k, v, out, g, dq, dk, dv)
    batch, heads, queries, _ = q.shape
    keys = k.shape[2]
    if not batch * heads * queries * keys:
        raise LoopError("attention kernels take no empty arrays")
    dots = launcher.empty((batch, heads, queries), logs.dtype)
    name, text = dots_text(dtype, width)
    words: list[int | float] = [*pointers(launcher, out, g, dots), heads, queries, *_strides(out, g)]
    run(launcher, text, name, (-(-queries // _SIDE), batch * heads), (THREADS,), words)
    sizes = [*pointers(launcher, logs, dots), heads, queries, keys, float(scale)]
    for of_queries, made in ((True, [dq]), (False, [dk, dv])):
        if dtype == "f32":
            name, text = (queries_text if of_queries else keys_text)(width, causal)
            each, threads = _BACKWARD[width], THREADS
        else:
            make = half.queries_text if of_queries else half.keys_text
            name, text = make(dtype, width, causal, backward_fields(dtype, "dq" if of_queries else "dk dv"))
            each, threads = half.queries_of(width) if of_queries else half.KEYS, half.THREADS
        words = [*pointers(launcher, q, k, v, g, *made), *sizes, *_strides(q, k, v, g, *made)]
        blocks = -(-(queries if of_queries else keys) // each)
        run(launcher, text, name, (blocks, batch * heads), (threads,), words)
