"""The CUDA C that every kernel begins with: dtypes, conversions, integer arithmetic, reductions of a row's team.

The text is C++ that NVRTC compiles. Outside CUDA (`__CUDACC__` is not defined) something else provides what CUDA has
built in; the tests do that to run kernels on a CPU.
"""

from __future__ import annotations

# The most threads of a team in the "column" form, and the rows of one block of it.
COLUMN_THREADS, COLUMN_ROWS = 8, 32

_TYPES = """
typedef unsigned char u8; typedef signed char i8; typedef short i16; typedef int i32; typedef long long i64;
typedef unsigned short u16; typedef unsigned int u32; typedef unsigned long long u64;
typedef float f32; typedef double f64;
// Floats that are only loaded and stored: they are computed in f32.
struct f16 { u16 bits; };
struct bf16 { u16 bits; };

#ifdef __CUDACC__
__device__ __forceinline__ f32 to_f32(f16 x) { f32 y; asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x.bits)); return y; }
__device__ __forceinline__ f16 to_f16(f32 x) { f16 y; asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y.bits) : "f"(x)); return y; }
#else
__device__ __forceinline__ f32 to_f32(f16 x) { return half_bits_to_float(x.bits); }
__device__ __forceinline__ f16 to_f16(f32 x) { return f16{float_to_half_bits(x)}; }
#endif
__device__ __forceinline__ f32 to_f32(bf16 x) { return __int_as_float((i32)((u32)x.bits << 16)); }
__device__ __forceinline__ f32 to_f32(f32 x) { return x; }
__device__ __forceinline__ bf16 to_bf16(f32 x) {
  const u32 bits = (u32)__float_as_int(x);
  if (x != x) return bf16{(u16)((bits >> 16) | 0x40)};
  return bf16{(u16)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16)};
}
// f64 to f32 with rounding to odd: a second rounding to a shorter float then gives the nearest one.
__device__ __forceinline__ f32 to_odd(f64 x) {
  const f32 near = (f32)x;
  const f64 back = (f64)near;
  const i32 bits = __float_as_int(near);
  if (back == x || x != x || (bits & 1)) return near;
  return __int_as_float(bits + (fabs(back) > fabs(x) ? -1 : 1));
}
__device__ __forceinline__ f16 to_f16(f64 x) { return to_f16(to_odd(x)); }
__device__ __forceinline__ bf16 to_bf16(f64 x) { return to_bf16(to_odd(x)); }

// V values that are loaded and stored at once.
template <class T, int V> struct alignas(sizeof(T) * V) Vec { T v[V]; };
template <class T> __device__ __forceinline__ T at(const char* p) { return *(const T*)p; }
"""

_ARITHMETIC = """
// Integers wrap around, as in NumPy.
template <class T> __device__ __forceinline__ T wrap_add(T a, T b) { return (T)(a + b); }
template <class T> __device__ __forceinline__ T wrap_sub(T a, T b) { return (T)(a - b); }
template <class T> __device__ __forceinline__ T wrap_mul(T a, T b) { return (T)(a * b); }
#ifdef __CUDACC__
// In 32 bits, and hidden from the compiler: what it makes of `(i16)-a`, neg.s16, does not wrap at -32768 on the device.
__device__ __forceinline__ i16 wrap_sub(i16 a, i16 b) {
  i32 y; asm("sub.s32 %0, %1, %2;" : "=r"(y) : "r"((i32)a), "r"((i32)b)); return (i16)y;
}
#endif
__device__ __forceinline__ i32 wrap_add(i32 a, i32 b) { return (i32)((u32)a + (u32)b); }
__device__ __forceinline__ i64 wrap_add(i64 a, i64 b) { return (i64)((u64)a + (u64)b); }
__device__ __forceinline__ i32 wrap_sub(i32 a, i32 b) { return (i32)((u32)a - (u32)b); }
__device__ __forceinline__ i64 wrap_sub(i64 a, i64 b) { return (i64)((u64)a - (u64)b); }
__device__ __forceinline__ i32 wrap_mul(i32 a, i32 b) { return (i32)((u32)a * (u32)b); }
__device__ __forceinline__ i64 wrap_mul(i64 a, i64 b) { return (i64)((u64)a * (u64)b); }
// NaN propagates.
template <class T> __device__ __forceinline__ T maximum(T a, T b) { return a > b || a != a ? a : b; }
template <class T> __device__ __forceinline__ T minimum(T a, T b) { return a < b || a != a ? a : b; }
// A distance that is negative or at least the width shifts all bits out.
template <class T> __device__ __forceinline__ T shift_left(T x, T by) {
  return (u64)(i64)by < 8 * sizeof(T) ? (T)((u64)(i64)x << (u64)by) : (T)0;
}
template <class T> __device__ __forceinline__ T shift_right(T x, T by) {
  return (u64)(i64)by < 8 * sizeof(T) ? (T)(x >> by) : (T)(x < (T)0 ? -1 : 0);
}
// Rounds towards zero; division by zero gives 0.
template <class T> __device__ __forceinline__ T quotient(T a, T b) {
  if (b == (T)0) return (T)0;
  if ((T)-1 < (T)0 && b == (T)-1) return (T)(0 - (u64)(i64)a);
  return (T)(a / b);
}
"""

# A reduction has a type whose `take` combines elements into it, and a smaller type, its total, which teams and tables
# of partial results combine with `merge`. Neither has a constructor: shared memory cannot hold types that have one.
_REDUCTIONS = """
template <class T> struct PlainSum {
  T value;
  typedef PlainSum Total;
  static __device__ __forceinline__ PlainSum empty() { return PlainSum{(T)0}; }
  __device__ __forceinline__ void take(T x, i64) { value = (T)((u64)(i64)value + (u64)(i64)x); }
  __device__ __forceinline__ void merge(const PlainSum& o) { take(o.value, 0); }
  __device__ __forceinline__ Total total() const { return *this; }
  __device__ __forceinline__ T result() const { return value; }
};
struct WideSum {
  f64 value;
  __device__ __forceinline__ void merge(const WideSum& o) { value += o.value; }
  __device__ __forceinline__ f32 result() const { return (f32)value; }
};
// Blocks of 32 elements are added in f32, and the blocks in f64.
struct BlockSum {
  f64 sum; f32 block; i32 count;
  typedef WideSum Total;
  static __device__ __forceinline__ BlockSum empty() { return BlockSum{0.0, 0.0f, 0}; }
  __device__ __forceinline__ void take(f32 x, i64) {
    block += x;
    if (++count == 32) { sum += (f64)block; block = 0.0f; count = 0; }
  }
  __device__ __forceinline__ Total total() const { return WideSum{sum + (f64)block}; }
};
// A sum of two numbers: what each addition loses is added up.
struct ExactSum {
  f64 value, lost;
  typedef ExactSum Total;
  static __device__ __forceinline__ ExactSum empty() { return ExactSum{0.0, 0.0}; }
  __device__ __forceinline__ void take(f64 x, i64) { merge(ExactSum{x, 0.0}); }
  __device__ __forceinline__ void merge(const ExactSum& o) {
    const f64 sum = value + o.value, of_b = sum - value, of_a = sum - of_b;
    lost = (lost + o.lost) + ((value - of_a) + (o.value - of_b));
    value = sum;
  }
  __device__ __forceinline__ Total total() const { return *this; }
  // The error of an infinite sum is NaN.
  __device__ __forceinline__ f64 result() const { return lost == lost ? value + lost : value; }
};
template <class T> struct SumOf { typedef PlainSum<T> Type; };
template <> struct SumOf<f32> { typedef BlockSum Type; };
template <> struct SumOf<f64> { typedef ExactSum Type; };

// A product: of floats in f64, of integers modulo 2 to their width.
template <class T, class W> struct Product {
  W value;
  typedef Product Total;
  static __device__ __forceinline__ Product empty() { return Product{(W)1}; }
  __device__ __forceinline__ void take(T x, i64) { value *= (W)x; }
  __device__ __forceinline__ void merge(const Product& o) { value *= o.value; }
  __device__ __forceinline__ Total total() const { return *this; }
  __device__ __forceinline__ T result() const { return (T)value; }
};
template <class T> struct ProdOf { typedef Product<T, u64> Type; };
template <> struct ProdOf<f32> { typedef Product<f32, f64> Type; };
template <> struct ProdOf<f64> { typedef Product<f64, f64> Type; };

template <class T> struct Limits;
#define WAYFARE_LIMITS(T, LOW, HIGH) template <> struct Limits<T> { \\
  static __device__ __forceinline__ T low() { return LOW; } \\
  static __device__ __forceinline__ T high() { return HIGH; } };
WAYFARE_LIMITS(u8, 0, 255) WAYFARE_LIMITS(i8, -128, 127) WAYFARE_LIMITS(i16, -32768, 32767)
WAYFARE_LIMITS(i32, -2147483647 - 1, 2147483647) WAYFARE_LIMITS(i64, -9223372036854775807LL - 1, 9223372036854775807LL)
WAYFARE_LIMITS(f32, __int_as_float((i32)0xff800000u), __int_as_float(0x7f800000))
WAYFARE_LIMITS(f64, __longlong_as_double((i64)0xfff0000000000000ull), __longlong_as_double(0x7ff0000000000000ll))

template <class T, bool MAX> struct Extreme {
  T value;
  typedef Extreme Total;
  static __device__ __forceinline__ Extreme empty() { return Extreme{MAX ? Limits<T>::low() : Limits<T>::high()}; }
  __device__ __forceinline__ void take(T x, i64) { value = MAX ? maximum(value, x) : minimum(value, x); }
  __device__ __forceinline__ void merge(const Extreme& o) { take(o.value, 0); }
  __device__ __forceinline__ Total total() const { return *this; }
  __device__ __forceinline__ T result() const { return value; }
};
// The place of the first largest or smallest value; NaN beats every number.
template <class T, bool MAX> struct Place {
  T value; i64 index;
  typedef Place Total;
  static __device__ __forceinline__ Place empty() { return Place{MAX ? Limits<T>::low() : Limits<T>::high(), 0}; }
  static __device__ __forceinline__ bool better(T a, T b) { return (MAX ? a > b : a < b) || (a != a && b == b); }
  __device__ __forceinline__ void take(T x, i64 at) { if (better(x, value)) { value = x; index = at; } }
  __device__ __forceinline__ void merge(const Place& o) {
    if (better(o.value, value) || (!better(value, o.value) && o.index < index)) *this = o;
  }
  __device__ __forceinline__ Total total() const { return *this; }
  __device__ __forceinline__ i64 result() const { return index; }
};
template <bool ALL> struct Truth {
  bool value;
  typedef Truth Total;
  static __device__ __forceinline__ Truth empty() { return Truth{ALL}; }
  __device__ __forceinline__ void take(bool x, i64) { value = ALL ? value && x : value || x; }
  __device__ __forceinline__ void merge(const Truth& o) { take(o.value, 0); }
  __device__ __forceinline__ Total total() const { return *this; }
  __device__ __forceinline__ bool result() const { return value; }
};
"""

# Every thread of a team gets the same total. The order of additions is fixed.
_TEAMS = """
template <class A> __device__ __forceinline__ A from_lane(const A& mine, int distance) {
  union Words { A value; u32 words[(sizeof(A) + 3) / 4]; };
  Words w;
  w.value = mine;
  #pragma unroll
  for (int k = 0; k < (int)((sizeof(A) + 3) / 4); ++k) w.words[k] = __shfl_xor_sync(0xffffffffu, w.words[k], distance);
  return w.value;
}
// Neighbouring lanes of a warp; `width` is a power of two.
template <class A> __device__ __forceinline__ A lanes_total(A mine, int width) {
  for (int distance = width / 2; distance > 0; distance /= 2) mine.merge(from_lane(mine, distance));
  return mine;
}
// All threads of a block.
template <class A> __device__ __forceinline__ A block_total(A mine) {
  __shared__ A parts[32];
  mine = lanes_total(mine, 32);
  __syncthreads();
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = mine;
  __syncthreads();
  A all = parts[0];
  for (int k = 1; k < (int)(blockDim.x + 31) / 32; ++k) all.merge(parts[k]);
  return all;
}
// The threads of a block with the same threadIdx.x.
template <class A> __device__ __forceinline__ A column_total(A mine) {
  __shared__ A parts[COLUMN_THREADS][COLUMN_ROWS];
  __syncthreads();
  parts[threadIdx.y][threadIdx.x] = mine;
  __syncthreads();
  A all = parts[0][threadIdx.x];
  for (int k = 1; k < (int)blockDim.y; ++k) all.merge(parts[k][threadIdx.x]);
  return all;
}
"""


def prelude() -> str:
    """The text, with a guard: texts that begin with it can be joined into one."""
    teams = _TEAMS.replace("COLUMN_THREADS", str(COLUMN_THREADS)).replace("COLUMN_ROWS", str(COLUMN_ROWS))
    parts = (_TYPES, _ARITHMETIC, _REDUCTIONS, teams)
    return "#ifndef WAYFARE_PRELUDE\n#define WAYFARE_PRELUDE\n" + "".join(parts) + "#endif\n"
