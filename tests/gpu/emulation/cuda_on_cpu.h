// What CUDA C has built in, for g++: a kernel becomes a function that runs on one thread of the CPU.
//
// Blocks run one after the other. The threads of a block are fibers, if they wait for each other: a thread runs until it
// meets a barrier or a shuffle, then the next one runs. Threads that wait for different things for ever are an error.
// Every second block runs its threads in reverse order, so that a barrier that is missing is noticed.
#include <math.h>
#include <setjmp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __shared__ static
#define __launch_bounds__(...)
#define __grid_constant__

struct uint3_ { unsigned x, y, z; };
static uint3_ threadIdx, blockIdx, blockDim, gridDim;

// -- threads

enum { READY, AT_BLOCK, AT_WARP, DONE };
static const unsigned MOST_THREADS = 1024, STACK = 1 << 17, WARP = 32;
struct Fiber { ucontext_t start; jmp_buf at; bool started; int state; uint3_ index; };
static Fiber fibers[MOST_THREADS];
static jmp_buf scheduler;
static ucontext_t scheduler_start;
static unsigned current;
static void (*running)(const void*);
static const void* running_words;

static void back_to_scheduler(int state) {
  fibers[current].state = state;
  if (_setjmp(fibers[current].at) == 0) _longjmp(scheduler, 1);
}
static void fiber_main() {
  for (;;) { running(running_words); back_to_scheduler(DONE); }
}
static void resume(unsigned t) {
  Fiber& f = fibers[t];
  current = t;
  threadIdx = f.index;
  if (_setjmp(scheduler) != 0) return;
  if (f.started) _longjmp(f.at, 1);
  f.started = true;
  getcontext(&f.start);
  f.start.uc_stack.ss_sp = mmap(0, STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  f.start.uc_stack.ss_size = STACK;
  f.start.uc_link = 0;
  makecontext(&f.start, fiber_main, 0);
  setcontext(&f.start);
}
static bool all_at(unsigned begin, unsigned end, int state) {
  bool some = false;
  for (unsigned t = begin; t < end; ++t) {
    if (fibers[t].state != state && fibers[t].state != DONE) return false;
    some |= fibers[t].state == state;
  }
  return some;
}
static void release(unsigned begin, unsigned end, int state) {
  for (unsigned t = begin; t < end; ++t) if (fibers[t].state == state) fibers[t].state = READY;
}
static int run_block(unsigned threads, bool reverse) {
  for (unsigned t = 0; t < threads; ++t) {
    fibers[t].state = READY;
    fibers[t].index = uint3_{t % blockDim.x, t / blockDim.x % blockDim.y, t / blockDim.x / blockDim.y};
  }
  for (;;) {
    bool ran = false;
    for (unsigned k = 0; k < threads; ++k) {
      const unsigned t = reverse ? threads - 1 - k : k;
      if (fibers[t].state == READY) { resume(t); ran = true; }
    }
    for (unsigned w = 0; w < threads; w += WARP) {
      const unsigned end = w + WARP < threads ? w + WARP : threads;
      if (all_at(w, end, AT_WARP)) release(w, end, AT_WARP);
    }
    if (all_at(0, threads, AT_BLOCK)) release(0, threads, AT_BLOCK);
    if (!ran) {
      for (unsigned t = 0; t < threads; ++t) if (fibers[t].state != DONE) return 1;
      return 0;
    }
  }
}
// 0: done; 1: threads wait for each other for ever; 2: the block is too large.
static int emulate(const unsigned* grid, const unsigned* block, int waits, void (*kernel)(const void*), const void* words) {
  gridDim = uint3_{grid[0], grid[1], grid[2]};
  blockDim = uint3_{block[0], block[1], block[2]};
  const unsigned threads = block[0] * block[1] * block[2];
  if (threads == 0 || threads > MOST_THREADS) return 2;
  running = kernel;
  running_words = words;
  unsigned number = 0;
  for (unsigned z = 0; z < grid[2]; ++z) for (unsigned y = 0; y < grid[1]; ++y) for (unsigned x = 0; x < grid[0]; ++x) {
    blockIdx = uint3_{x, y, z};
    if (waits) {
      if (run_block(threads, number++ % 2)) {
        // These fibers hang in the middle of a kernel: they are begun anew next time.
        for (unsigned t = 0; t < threads; ++t) if (fibers[t].state != DONE) fibers[t].started = false;
        return 1;
      }
    } else {
      for (unsigned t = 0; t < threads; ++t) {
        threadIdx = uint3_{t % block[0], t / block[0] % block[1], t / block[0] / block[1]};
        kernel(words);
      }
    }
  }
  return 0;
}

static inline void __syncthreads() { back_to_scheduler(AT_BLOCK); }
static inline void __syncwarp(unsigned = 0xffffffffu) { back_to_scheduler(AT_WARP); }
static unsigned lanes[2][MOST_THREADS];
static unsigned shuffles[MOST_THREADS];
static inline unsigned exchange(unsigned value, unsigned from) {
  // Two tables in turn: a fast lane may be one shuffle ahead of a slow one.
  const unsigned table = shuffles[current]++ % 2;
  lanes[table][current] = value;
  back_to_scheduler(AT_WARP);
  return lanes[table][from];
}
static inline unsigned __shfl_xor_sync(unsigned, unsigned value, int distance) {
  return exchange(value, current ^ (unsigned)distance);
}
static inline int __float_as_int(float x) { int y; memcpy(&y, &x, 4); return y; }
static inline float __int_as_float(int x) { float y; memcpy(&y, &x, 4); return y; }
static inline long long __double_as_longlong(double x) { long long y; memcpy(&y, &x, 8); return y; }
static inline double __longlong_as_double(long long x) { double y; memcpy(&y, &x, 8); return y; }
static inline float __shfl_xor_sync(unsigned mask, float value, int distance) {
  return __int_as_float((int)__shfl_xor_sync(mask, (unsigned)__float_as_int(value), distance));
}
static inline unsigned __umulhi(unsigned a, unsigned b) { return (unsigned)(((unsigned long long)a * b) >> 32); }
static inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
  return (unsigned long long)(((unsigned __int128)a * b) >> 64);
}

// -- half precision

static inline float half_bits_to_float(unsigned short h) {
  const unsigned sign = (h & 0x8000u) << 16, exponent = (h >> 10) & 31, fraction = h & 1023;
  if (exponent == 31) return __int_as_float((int)(sign | 0x7f800000u | fraction << 13));
  if (exponent == 0) return (sign ? -1.0f : 1.0f) * (float)fraction * 0x1p-24f;
  return __int_as_float((int)(sign | (exponent + 112) << 23 | fraction << 13));
}
static inline unsigned short float_to_half_bits(float x) {
  const unsigned bits = (unsigned)__float_as_int(x), sign = bits >> 16 & 0x8000u;
  const float size = fabsf(x);
  if (x != x) return (unsigned short)(sign | 0x7e00);
  if (size >= 65520.0f) return (unsigned short)(sign | 0x7c00);
  // Below the smallest normal number the nearest multiple of 2 to the -24.
  if (size < 0x1p-14f) return (unsigned short)(sign | (unsigned)rintf(size * 0x1p24f));
  const unsigned low = bits & 0x7fffffffu;
  return (unsigned short)(sign | ((low + 0xfffu + (low >> 13 & 1)) >> 13) - (112u << 10));
}

// -- tensor cores: what the lanes of a warp have is put into a table that all of them read

template <class W> static const W* shared_by_warp(const W& mine) {
  // Two tables in turn, as for shuffles.
  static W tables[2][MOST_THREADS];
  static unsigned turns[MOST_THREADS];
  W* const table = tables[turns[current]++ % 2];
  table[current] = mine;
  back_to_scheduler(AT_WARP);
  return table + current / WARP * WARP;
}
template <bool TRANSPOSED> static void load_matrices(unsigned* r, const void* row) {
  const unsigned line = current % WARP / 4, pair = current % 4;
  const unsigned short* const* rows = (const unsigned short* const*)shared_by_warp(row);
  for (int k = 0; k < 4; ++k) {
    const unsigned short* const* own = rows + 8 * k;
    r[k] = TRANSPOSED ? own[2 * pair][line] | (unsigned)own[2 * pair + 1][line] << 16
                      : own[line][2 * pair] | (unsigned)own[line][2 * pair + 1] << 16;
  }
}
// The product of a, 16 × 16, and b, 16 × 8, in the registers where `mma` has them.
template <class F> static void emulated_mma(float* c, const unsigned* a, const unsigned* b, F value) {
  struct Part { unsigned a[4], b[2]; };
  const unsigned line = current % WARP / 4, pair = current % 4;
  const Part* parts = shared_by_warp(Part{{a[0], a[1], a[2], a[3]}, {b[0], b[1]}});
  for (unsigned e = 0; e < 4; ++e)
    for (unsigned k = 0; k < 16; ++k) {
      const unsigned left = parts[line * 4 + k % 8 / 2].a[k / 8 * 2 + e / 2];
      const unsigned right = parts[(2 * pair + e % 2) * 4 + k % 8 / 2].b[k / 8];
      c[e] += value((unsigned short)(left >> k % 2 * 16)) * value((unsigned short)(right >> k % 2 * 16));
    }
}
static inline void copy_16(void* to, const void* from, bool there) {
  if (there) memcpy(to, from, 16); else memset(to, 0, 16);
}
static inline void copy_4(void* to, const void* from, bool there) {
  if (there) memcpy(to, from, 4); else memset(to, 0, 4);
}
static inline void end_of_copies() {}
template <int LEFT> static void wait_for_copies() {}

// -- functions that CUDA has and the C library lacks

static inline double erfcinv_(double q) {
  // Newton's method for log(erfc(y)) = log(q), 0 < q <= 1; logarithms keep it convergent far out.
  double y = q > 0.5 ? (1 - q) * 0.8862269254527580 : sqrt(-log(q * sqrt(-log(q) + 0.5)));
  for (int k = 0; k < 60; ++k) {
    const double value = erfc(y), step = value * log(value / q) / (1.1283791670955126 * exp(-y * y));
    y += step;
    if (fabs(step) <= 1e-17 * fabs(y)) break;
  }
  return y;
}
static inline double erfinv(double x) {
  if (!(fabs(x) <= 1)) return NAN;
  if (fabs(x) == 1) return copysign(INFINITY, x);
  if (fabs(x) > 0.5) return copysign(erfcinv_(1 - fabs(x)), x);
  double y = x * 0.8862269254527580;
  for (int k = 0; k < 60; ++k) {
    const double step = (x - erf(y)) / (1.1283791670955126 * exp(-y * y));
    y += step;
    if (fabs(step) <= 1e-17 * fabs(y)) break;
  }
  return y;
}
static inline double normcdfinv(double p) {
  if (!(p >= 0 && p <= 1)) return NAN;
  if (p == 0 || p == 1) return p == 0 ? -INFINITY : INFINITY;
  if (p > 0.25 && p < 0.75) return 1.4142135623730951 * erfinv(2 * p - 1);
  return p < 0.5 ? -1.4142135623730951 * erfcinv_(2 * p) : 1.4142135623730951 * erfcinv_(2 * (1 - p));
}
