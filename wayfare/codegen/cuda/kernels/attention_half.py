"""Attention of float16 and bfloat16 on tensor cores, without the matrix of scores in memory.

Products are `mma` of 16 × 8 results over 16 values, summed in float32. A warp has 16 rows of a matrix (or several times
16) in registers; the other matrix passes by in tiles in shared memory, the next one copied while one is used. What is
left of a product is in the registers of the lane that needs it for the next one, so weights never leave the registers:
where keys are the rows, transposed scores are computed.

A lane is at place `line` = lane / 4 and `pair` = lane % 4: of a result of 16 × 8 it has columns 2 pair and 2 pair + 1
of rows line and line + 8. Needs a GPU of compute capability 8.0.
"""

from __future__ import annotations

from functools import cache

from wayfare.codegen.cuda.kernels.routine import kernel_text

# Threads of a block: 4 warps.
THREADS = 128
_WARPS = THREADS // 32
# By width of a row: rows of a tile in shared memory (two tiles of two matrices are to fit 48 KB), and how many times 16
# queries a warp has.
_TILE = {32: 64, 64: 64, 128: 32}
_QUERIES = {32: 2, 64: 2, 128: 1}

_HELPERS = """#ifndef WAYFARE_MMA
#define WAYFARE_MMA
#ifdef __CUDACC__
__device__ __forceinline__ u32 shared_address(const void* p) { return (u32)__cvta_generic_to_shared(p); }
// Four matrices of 8 × 8 from shared memory: lane l gives the address of row l % 8 of matrix l / 8, and gets elements
// 2 pair and 2 pair + 1 of row `line` of each; of column `line` if they are transposed.
template <bool TRANSPOSED> __device__ __forceinline__ void load_matrices(u32* r, const void* row) {
  if (TRANSPOSED)
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(shared_address(row)) : "memory");
  else
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(shared_address(row)) : "memory");
}
#define WAYFARE_MULTIPLY_ADD(T) \\
__device__ __forceinline__ void multiply_add(f32* c, const u32* a, const u32* b, T) { \\
  asm("mma.sync.aligned.m16n8k16.row.col.f32." #T "." #T ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, " \\
      "{%0, %1, %2, %3};" : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) \\
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1])); \\
}
WAYFARE_MULTIPLY_ADD(f16) WAYFARE_MULTIPLY_ADD(bf16)
// 16 or 4 bytes to shared memory, zeros if they are not `there`; they have arrived after `wait_for_copies`.
__device__ __forceinline__ void copy_16(void* to, const void* from, bool there) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
               :: "r"(shared_address(to)), "l"(from), "r"(there ? 16 : 0) : "memory");
}
__device__ __forceinline__ void copy_4(void* to, const void* from, bool there) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;"
               :: "r"(shared_address(to)), "l"(from), "r"(there ? 4 : 0) : "memory");
}
__device__ __forceinline__ void end_of_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Wait for all groups of copies but the last `LEFT`.
template <int LEFT> __device__ __forceinline__ void wait_for_copies() {
  asm volatile("cp.async.wait_group %0;" :: "n"(LEFT) : "memory");
}
__device__ __forceinline__ u32 two(f32 low, f32 high, f16) {
  u32 d; asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(d) : "f"(high), "f"(low)); return d;
}
__device__ __forceinline__ u32 two(f32 low, f32 high, bf16) {
  u32 d; asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(d) : "f"(high), "f"(low)); return d;
}
__device__ __forceinline__ f32 power_of_2(f32 x) {
  f32 y; asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x)); return y;
}
#else
inline u32 two(f32 low, f32 high, f16) { return to_f16(low).bits | (u32)to_f16(high).bits << 16; }
inline u32 two(f32 low, f32 high, bf16) { return to_bf16(low).bits | (u32)to_bf16(high).bits << 16; }
__device__ __forceinline__ f32 power_of_2(f32 x) { return exp2f(x); }
__device__ __forceinline__ void multiply_add(f32* c, const u32* a, const u32* b, f16) {
  emulated_mma(c, a, b, [](u16 x) { return to_f32(f16{x}); });
}
__device__ __forceinline__ void multiply_add(f32* c, const u32* a, const u32* b, bf16) {
  emulated_mma(c, a, b, [](u16 x) { return to_f32(bf16{x}); });
}
#endif
// Begin to copy rows first … first + ROWS - 1 of a matrix to shared memory; rows beyond its end are zero.
template <int ROWS, int D, class T> __device__ __forceinline__ void copy_tile(u16 (*to)[D + 8], const T* from, i64 step,
                                                                              i64 first, i64 count) {
  const int each = BLOCK / (D / 8), row = threadIdx.x / (D / 8), at = threadIdx.x % (D / 8) * 8;
  const int left = count - first < ROWS ? (int)(count - first) : ROWS;
  const T* p = from + (first + row) * step + at;
  #pragma unroll
  for (int k = 0; k < ROWS; k += each, p += each * step) {
    const bool there = k + row < left;
    copy_16(&to[k + row][at], there ? p : from, there);
  }
}
// 16 rows of a matrix in registers, as the left side of products.
template <int D, class T> __device__ __forceinline__ void load_rows(u32 (*to)[4], const T* from, i64 step, i64 first,
                                                                    i64 count) {
  #pragma unroll
  for (int r = 0; r < 4; ++r) {
    const i64 row = first + threadIdx.x % 32 / 4 + r % 2 * 8;
    const T* const p = from + (row < count ? row : 0) * step + threadIdx.x % 4 * 2 + r / 2 * 8;
    #pragma unroll
    for (int d = 0; d < D / 16; ++d) to[d][r] = row < count ? *(const u32*)(p + d * 16) : 0;
  }
}
// Columns 8 at … 8 at + 15 of c, M times 16 rows, += the rows in `a` times 16 rows of a tile, transposed.
template <int D, int M, int S, class T>
__device__ __forceinline__ void times_rows(f32 (*c)[S][4], int at, const u32 (*a)[D / 16][4], u16 (*tile)[D + 8], T t) {
  const int lane = threadIdx.x % 32;
  #pragma unroll
  for (int d = 0; d < D / 16; ++d) {
    u32 b[4];
    load_matrices<false>(b, &tile[lane / 16 * 8 + lane % 8][d * 16 + lane / 8 % 2 * 8]);
    #pragma unroll
    for (int m = 0; m < M; ++m) {
      multiply_add(c[m][at], a[m][d], b, t);
      multiply_add(c[m][at + 1], a[m][d], b + 2, t);
    }
  }
}
// c, M times 16 rows of D, += `a`, M times 16 × 16, times 16 rows of a tile.
template <int D, int M, class T>
__device__ __forceinline__ void times_columns(f32 (*c)[D / 8][4], const u32 (*a)[4], u16 (*tile)[D + 8], T t) {
  const int lane = threadIdx.x % 32;
  #pragma unroll
  for (int d = 0; d < D / 16; ++d) {
    u32 b[4];
    load_matrices<true>(b, &tile[lane % 16][d * 16 + lane / 16 * 8]);
    #pragma unroll
    for (int m = 0; m < M; ++m) {
      multiply_add(c[m][2 * d], a[m], b, t);
      multiply_add(c[m][2 * d + 1], a[m], b + 2, t);
    }
  }
}
// A result of 16 × 16 as the left side of the next product.
template <class T> __device__ __forceinline__ void as_left(u32* a, const f32 (*c)[4], T t) {
  a[0] = two(c[0][0], c[0][1], t); a[1] = two(c[0][2], c[0][3], t);
  a[2] = two(c[1][0], c[1][1], t); a[3] = two(c[1][2], c[1][3], t);
}
// 16 rows of a result of 16 × D to memory.
template <int D, class T> __device__ __forceinline__ void store_rows(T* to, i64 step, const f32 (*c)[4], f32 factor,
                                                                     f32 other, i64 first, i64 count, T t) {
  #pragma unroll
  for (int h = 0; h < 2; ++h) {
    const i64 row = first + threadIdx.x % 32 / 4 + h * 8;
    const f32 by = h ? other : factor;
    if (row >= count) continue;
    #pragma unroll
    for (int d = 0; d < D / 8; ++d)
      *(u32*)(to + row * step + d * 8 + threadIdx.x % 4 * 2) = two(c[d][2 * h] * by, c[d][2 * h + 1] * by, t);
  }
}
__device__ __forceinline__ f32 of_four(f32 x) {
  x += __shfl_xor_sync(0xffffffffu, x, 1);
  return x + __shfl_xor_sync(0xffffffffu, x, 2);
}
#endif
"""

_LOG2_E = "1.44269504f"


def queries_of(width: int) -> int:
    """The queries of a block, in the kernels of the result and of dq."""
    return _WARPS * 16 * _QUERIES[width]


# The keys of a block, in the kernel of dk and dv.
KEYS = _WARPS * 16


def _matrix(field: str) -> str:
    return f"a.{field} + batch * a.{field}_b + head * a.{field}_h"


def _start(dtype: str, width: int, tiles: str, each: int, read: str, made: str) -> str:
    """Constants, the thread's place, the matrices, and two buffers for tiles of the matrices `tiles`."""
    lines = [f"typedef {dtype} T;", f"const int D = {width}, N = {_TILE[width]}, M = {each};",
             "const int warp = threadIdx.x / 32, line = threadIdx.x % 32 / 4, pair = threadIdx.x % 4;",
             "const i64 head = blockIdx.y % a.heads, batch = blockIdx.y / a.heads;",
             "const f32 low = __int_as_float((i32)0xff800000u);",
             "const f32 scale = (f32)(a.scale * 1.4426950408889634);"]  # fmt: skip
    lines += [f"const T* {name} = {_matrix(name)};" for name in read.split()]
    lines += [f"T* {name} = {_matrix(name)};" for name in made.split()]
    lines += [f"alignas(16) __shared__ u16 {name}s[2][N][D + 8];" for name in tiles.split()]
    return "".join(f"  {line}\n" for line in lines)


def _passing(tiles: str, count: str, begin: str, end: str, more: str, body: str) -> str:
    """A loop over tiles from row `begin` to row `end` of the matrices `tiles`, which have `count` rows: while one is
    used, the next one is copied. `more`: statements that copy the rest of tile `next` to the buffer `into`."""
    copies = " ".join(f"copy_tile<N, D>({name}s[into], {name}, a.{name}_t, next, {count});" for name in tiles.split())
    return f"""  if ({begin} < {end}) {{ const i64 next = {begin}; const int into = 0; {copies} {more} }}
  end_of_copies();
  int now = 0;
  for (i64 start = {begin}; start < {end}; start += N, now ^= 1) {{
    if (start + N < {end}) {{ const i64 next = start + N; const int into = now ^ 1; {copies} {more} }}
    end_of_copies();
    wait_for_copies<1>();
    __syncthreads();
{body}    __syncthreads();
  }}
"""


def _text(name: str, fields: list[str], body: str) -> tuple[str, str]:
    whole = kernel_text(name, fields, body, _HELPERS.replace("BLOCK", str(THREADS)))
    return name, whole.replace("__global__ void ", f"__global__ void __launch_bounds__({THREADS}) ")


@cache
def forward_text(dtype: str, width: int, causal: bool, fields: tuple[str, ...]) -> tuple[str, str]:
    """The name and the text of the forward kernel."""
    name = f"attention_{dtype}_{width}_{'causal' if causal else 'full'}"
    rows, each = queries_of(width), _QUERIES[width]
    used = f"""    if ({"start <= mine + 16 * M - 1" if causal else "true"}) {{
      f32 s[M][N / 8][4];
      #pragma unroll
      for (int m = 0; m < M; ++m)
        #pragma unroll
        for (int n = 0; n < N / 8; ++n)
          #pragma unroll
          for (int e = 0; e < 4; ++e) s[m][n][e] = 0.0f;
      #pragma unroll
      for (int n = 0; n < N / 16; ++n) times_rows<D, M>(s, 2 * n, qs, ks[now] + 16 * n, T());
      const bool edge = start + N > a.keys{" || start + N - 1 > mine" if causal else ""};
      #pragma unroll
      for (int m = 0; m < M; ++m) {{
        if (edge) {{
          const int left = (int)(a.keys - start){", reach = (int)(mine + m * 16 + line - start)" if causal else ""};
          #pragma unroll
          for (int n = 0; n < N / 8; ++n)
            #pragma unroll
            for (int e = 0; e < 4; ++e) {{
              const int key = n * 8 + pair * 2 + e % 2;
              if (key >= left{" || key > reach + e / 2 * 8" if causal else ""}) s[m][n][e] = low;
            }}
        }}
        #pragma unroll
        for (int h = 0; h < 2; ++h) {{
          f32 largest = top[m][h];
          #pragma unroll
          for (int n = 0; n < N / 8; ++n) largest = fmaxf(largest, fmaxf(s[m][n][2 * h], s[m][n][2 * h + 1]));
          largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, 1));
          largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, 2));
          const f32 base = largest == low ? 0.0f : largest * scale, shrink = power_of_2(fmaf(top[m][h], scale, -base));
          top[m][h] = largest;
          f32 part = 0.0f;
          #pragma unroll
          for (int n = 0; n < N / 8; ++n)
            #pragma unroll
            for (int e = 2 * h; e < 2 * h + 2; ++e) part += s[m][n][e] = power_of_2(fmaf(s[m][n][e], scale, -base));
          total[m][h] = fmaf(total[m][h], shrink, part);
          #pragma unroll
          for (int d = 0; d < D / 8; ++d) {{ sum[m][d][2 * h] *= shrink; sum[m][d][2 * h + 1] *= shrink; }}
        }}
      }}
      #pragma unroll
      for (int n = 0; n < N / 16; ++n) {{
        u32 weights[M][4];
        #pragma unroll
        for (int m = 0; m < M; ++m) as_left(weights[m], s[m] + 2 * n, T());
        times_columns<D, M>(sum, weights, vs[now] + 16 * n, T());
      }}
    }}
"""
    # Blocks with many keys to see begin first.
    body = _start(dtype, width, "k v", each, "q k v", "out") + f"""  u32 qs[M][D / 16][4];
  const i64 first = (i64)(gridDim.x - 1 - blockIdx.x) * {rows}, mine = first + warp * 16 * M;
  f32 top[M][2], total[M][2], sum[M][D / 8][4];
  #pragma unroll
  for (int m = 0; m < M; ++m) {{
    load_rows<D>(qs[m], q, a.q_t, mine + m * 16, a.queries);
    top[m][0] = top[m][1] = low; total[m][0] = total[m][1] = 0.0f;
    #pragma unroll
    for (int d = 0; d < D / 8; ++d) sum[m][d][0] = sum[m][d][1] = sum[m][d][2] = sum[m][d][3] = 0.0f;
  }}
  const i64 seen = {f"first + {rows} < a.keys ? first + {rows} : a.keys" if causal else "a.keys"};
{_passing("k v", "a.keys", "0", "seen", "", used)}  #pragma unroll
  for (int m = 0; m < M; ++m) {{
    f32 share[2];
    #pragma unroll
    for (int h = 0; h < 2; ++h) {{
      const f32 all = of_four(total[m][h]);
      const i64 query = mine + m * 16 + line + h * 8;
      share[h] = all == 0.0f ? 0.0f : 1.0f / all;
      // Infinity for a query that sees no key: its weights are exp(s - infinity) = 0.
      if (pair == 0 && query < a.queries)
        a.logs[(i64)blockIdx.y * a.queries + query] = all == 0.0f ? -low : fmaf(top[m][h], (f32)a.scale, logf(all));
    }}
    store_rows<D>(out, a.out_t, sum[m], share[0], share[1], mine + m * 16, a.queries, T());
  }}
"""  # fmt: skip
    return _text(name, list(fields), body)


@cache
def queries_text(dtype: str, width: int, causal: bool, fields: tuple[str, ...]) -> tuple[str, str]:
    """The name and the text of the kernel that makes dq."""
    name = f"attention_dq_{dtype}_{width}_{'causal' if causal else 'full'}"
    rows, each = queries_of(width), _QUERIES[width]
    used = f"""    #pragma unroll
    for (int n = 0; n < N / 16; ++n) {{
      const i64 key0 = start + n * 16;
      if ({"key0 > mine + 16 * M - 1 || " if causal else ""}key0 >= a.keys) continue;
      f32 s[M][2][4] = {{}}, ds[M][2][4] = {{}};
      times_rows<D, M>(s, 0, qs, ks[now] + 16 * n, T());
      times_rows<D, M>(ds, 0, gs, vs[now] + 16 * n, T());
      u32 left[M][4];
      #pragma unroll
      for (int m = 0; m < M; ++m) {{
        #pragma unroll
        for (int e = 0; e < 8; ++e) {{
          f32& weight = s[m][e / 4][e % 4];
          weight = power_of_2(fmaf(weight, scale, -logs[m][e / 2 % 2]));
        }}
        if (key0 + 16 > a.keys{" || key0 + 15 > mine + m * 16" if causal else ""}) {{
          const int seen = (int)(a.keys - key0){", reach = (int)(mine + m * 16 + line - key0)" if causal else ""};
          #pragma unroll
          for (int e = 0; e < 8; ++e) {{
            const int key = e / 4 * 8 + pair * 2 + e % 2;
            if (key >= seen{" || key > reach + e / 2 % 2 * 8" if causal else ""}) s[m][e / 4][e % 4] = 0.0f;
          }}
        }}
        #pragma unroll
        for (int e = 0; e < 8; ++e)
          ds[m][e / 4][e % 4] = s[m][e / 4][e % 4] * (ds[m][e / 4][e % 4] - dots[m][e / 2 % 2]);
        as_left(left[m], ds[m], T());
      }}
      times_columns<D, M>(sum, left, ks[now] + 16 * n, T());
    }}
"""
    body = _start(dtype, width, "k v", each, "q k v g", "dq") + f"""  u32 qs[M][D / 16][4], gs[M][D / 16][4];
  const i64 first = (i64)(gridDim.x - 1 - blockIdx.x) * {rows}, mine = first + warp * 16 * M;
  f32 sum[M][D / 8][4], logs[M][2], dots[M][2];
  #pragma unroll
  for (int m = 0; m < M; ++m) {{
    load_rows<D>(qs[m], q, a.q_t, mine + m * 16, a.queries);
    load_rows<D>(gs[m], g, a.g_t, mine + m * 16, a.queries);
    #pragma unroll
    for (int d = 0; d < D / 8; ++d) sum[m][d][0] = sum[m][d][1] = sum[m][d][2] = sum[m][d][3] = 0.0f;
    #pragma unroll
    for (int h = 0; h < 2; ++h) {{
      const i64 query = mine + m * 16 + line + h * 8, at = (i64)blockIdx.y * a.queries + query;
      logs[m][h] = query < a.queries ? a.logs[at] * {_LOG2_E} : -low;
      dots[m][h] = query < a.queries ? a.dots[at] : 0.0f;
    }}
  }}
  const i64 seen = {f"first + {rows} < a.keys ? first + {rows} : a.keys" if causal else "a.keys"};
{_passing("k v", "a.keys", "0", "seen", "", used)}  #pragma unroll
  for (int m = 0; m < M; ++m)
    store_rows<D>(dq, a.dq_t, sum[m], (f32)a.scale, (f32)a.scale, mine + m * 16, a.queries, T());
"""  # fmt: skip
    return _text(name, list(fields), body)


# Where keys are the rows: 0 for the weights of queries that do not see the key.
_UNSEEN_QUERIES = """      if (query0 < mine + 15) {
        const int reach = (int)(mine + line - query0);
        #pragma unroll
        for (int e = 0; e < 8; ++e)
          if (e / 4 * 8 + pair * 2 + e % 2 < reach + e / 2 % 2 * 8) p[e / 4][e % 4] = 0.0f;
      }
"""


@cache
def keys_text(dtype: str, width: int, causal: bool, fields: tuple[str, ...]) -> tuple[str, str]:
    """The name and the text of the kernel that makes dk and dv."""
    name = f"attention_dk_{dtype}_{width}_{'causal' if causal else 'full'}"
    used = f"""    #pragma unroll
    for (int n = 0; n < N / 16; ++n) {{
      const i64 query0 = start + n * 16;
      if ({"query0 + 15 < mine || " if causal else ""}query0 >= a.queries) continue;
      f32 p[2][4] = {{}}, ds[2][4] = {{}};
      times_rows<D, M>(&p, 0, &own_k, qs[now] + 16 * n, T());
      times_rows<D, M>(&ds, 0, &own_v, gs[now] + 16 * n, T());
      #pragma unroll
      for (int e = 0; e < 8; ++e) {{
        const f32 log = logs[now][n * 16 + e / 4 * 8 + pair * 2 + e % 2] * {_LOG2_E};
        p[e / 4][e % 4] = power_of_2(fmaf(p[e / 4][e % 4], scale, -log));
      }}
{_UNSEEN_QUERIES if causal else ""}      #pragma unroll
      for (int e = 0; e < 8; ++e)
        ds[e / 4][e % 4] = p[e / 4][e % 4] * (ds[e / 4][e % 4] - dots[now][n * 16 + e / 4 * 8 + pair * 2 + e % 2]);
      u32 left[4];
      as_left(left, p, T());
      times_columns<D, M>(&sum_v, &left, gs[now] + 16 * n, T());
      as_left(left, ds, T());
      times_columns<D, M>(&sum_k, &left, qs[now] + 16 * n, T());
    }}
"""
    more = """
      if (threadIdx.x < N) {
        const bool there = next + threadIdx.x < a.queries;
        const i64 at = (i64)blockIdx.y * a.queries + (there ? next + threadIdx.x : 0);
        copy_4(&logs[into][threadIdx.x], a.logs + at, there);
        copy_4(&dots[into][threadIdx.x], a.dots + at, there);
      }"""
    begin = f"{'first / N * N' if causal else '0'}"
    body = _start(dtype, width, "q g", 1, "q k v g", "dk dv") + f"""  __shared__ f32 logs[2][N], dots[2][N];
  const i64 first = (i64)blockIdx.x * {KEYS}, mine = first + warp * 16;
  u32 own_k[D / 16][4], own_v[D / 16][4];
  load_rows<D>(own_k, k, a.k_t, mine, a.keys);
  load_rows<D>(own_v, v, a.v_t, mine, a.keys);
  f32 sum_k[D / 8][4] = {{}}, sum_v[D / 8][4] = {{}};
{_passing("q g", "a.queries", begin, "a.queries", more, used)}
  store_rows<D>(dk, a.dk_t, sum_k, (f32)a.scale, (f32)a.scale, mine, a.keys, T());
  store_rows<D>(dv, a.dv_t, sum_v, 1.0f, 1.0f, mine, a.keys, T());
"""  # fmt: skip
    return _text(name, list(fields), body)
