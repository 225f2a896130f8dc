// One key tile in shared memory -> the same tile with its k_r rotated and its foreign rows zeroed.
// Knows the swizzled slab layout and nothing of barriers, schedules or global key storage.
#pragma once

#include <cuda_bf16.h>

#include "sm90.cuh"

namespace irminsul::mla {

constexpr int TRANSFORM_THREADS = 64;

// The angles one thread needs for one delta: four pairs of columns, the same in every row.
struct Rotation {
  float cos[4];
  float sin[4];
};

// Thread t turns pairs 4p .. 4p + 3 of rows t % 8 + 8 i, p = t / 8. Interleaved pairs fill 16-byte
// chunk p; half-split ones are an 8-byte half of chunk p / 2 and of chunk 4 + p / 2. Either way the
// 128-byte swizzle spreads eight neighbouring rows over all banks, so no access collides.
// angles: [64] in shared memory, cos(32) | sin(32) of |delta|.
__device__ __forceinline__ Rotation read_rotation(const float* angles, int delta, int thread) {
  const float4 c = *reinterpret_cast<const float4*>(angles + thread / 8 * 4);
  const float4 s = *reinterpret_cast<const float4*>(angles + ROPE_DIM / 2 + thread / 8 * 4);
  const float sign = delta < 0 ? -1.0f : 1.0f;
  return {{c.x, c.y, c.z, c.w}, {sign * s.x, sign * s.y, sign * s.z, sign * s.w}};
}

// Whether the table of angles has a row for `delta`.
__device__ __forceinline__ bool in_table(int delta, int num_positions) {
  const auto size = static_cast<uint32_t>(delta);  // of INT32_MIN, too
  return (delta < 0 ? 0u - size : size) < static_cast<uint32_t>(num_positions);
}

// A delta beyond the table of angles must not give what looks like an answer.
__device__ __forceinline__ Rotation no_rotation() {
  const float nan = __int_as_float(0x7FFFFFFF);
  return {{nan, nan, nan, nan}, {nan, nan, nan, nan}};
}

__device__ __forceinline__ float low_half(uint32_t pair) { return __uint_as_float(pair << 16); }
__device__ __forceinline__ float high_half(uint32_t pair) {
  return __uint_as_float(pair & 0xFFFF0000u);
}

// Interleaved: both numbers of a pair lie in one 32-bit word.
__device__ __forceinline__ uint32_t rotate_word(uint32_t pair, float cos, float sin) {
  const float x = low_half(pair), y = high_half(pair);
  return pack_bf16(x * cos - y * sin, y * cos + x * sin);
}

// Half-split: words hold two first and two second numbers of neighbouring pairs.
__device__ __forceinline__ void rotate_words(uint32_t& first, uint32_t& second, float cos0,
                                             float sin0, float cos1, float sin1) {
  const float x0 = low_half(first), x1 = high_half(first);
  const float y0 = low_half(second), y1 = high_half(second);
  first = pack_bf16(x0 * cos0 - y0 * sin0, x1 * cos1 - y1 * sin1);
  second = pack_bf16(y0 * cos0 + x0 * sin0, y1 * cos1 + x1 * sin1);
}

// A 16-byte chunk of interleaved pairs.
__device__ __forceinline__ void turn_pairs(uint4& x, const Rotation& r) {
  x.x = rotate_word(x.x, r.cos[0], r.sin[0]), x.y = rotate_word(x.y, r.cos[1], r.sin[1]);
  x.z = rotate_word(x.z, r.cos[2], r.sin[2]), x.w = rotate_word(x.w, r.cos[3], r.sin[3]);
}

// Four first (x0, x1) and four second numbers (y0, y1) of half-split pairs.
__device__ __forceinline__ void turn_halves(uint32_t& x0, uint32_t& x1, uint32_t& y0, uint32_t& y1,
                                            const Rotation& r) {
  rotate_words(x0, y0, r.cos[0], r.sin[0], r.cos[1], r.sin[1]);
  rotate_words(x1, y1, r.cos[2], r.sin[2], r.cos[3], r.sin[3]);
}

// slab: [64 keys or query rows][64] bf16, 128-byte swizzle. fp32 arithmetic, one rounding to bf16.
// Of the steps of eight rows, AT_ONCE are under way at a time.
template <int AT_ONCE = 4>
__device__ __forceinline__ void rotate_slab(uint8_t* slab, const Rotation& r, bool interleaved,
                                            int thread) {
  const int part = thread / 8, row0 = thread % 8;  // row % 8 == row0 in every step
  if (interleaved) {
    uint8_t* at = slab + row0 * 128 + ((part ^ row0) << 4);
#pragma unroll AT_ONCE
    for (int i = 0; i < PAGE_SIZE / 8; ++i) {
      uint4* words = reinterpret_cast<uint4*>(at + i * 1024);
      uint4 x = *words;
      turn_pairs(x, r);
      *words = x;
    }
  } else {
    uint8_t* row = slab + row0 * 128 + part % 2 * 8;
    const int first = (part / 2 ^ row0) << 4, second = ((part / 2 + 4) ^ row0) << 4;
#pragma unroll AT_ONCE
    for (int i = 0; i < PAGE_SIZE / 8; ++i) {
      uint2* a = reinterpret_cast<uint2*>(row + i * 1024 + first);
      uint2* b = reinterpret_cast<uint2*>(row + i * 1024 + second);
      uint2 x = *a, y = *b;
      turn_halves(x.x, x.y, y.x, y.y, r);
      *a = x, *b = y;
    }
  }
}

// Zeroes the rows outside [lo, hi) in all pairs of slabs of a tile. They may be other requests' rows
// or never written ones, and 0 x NaN in P V would be NaN: masking the scores is not enough.
__device__ __forceinline__ void zero_foreign_rows(uint8_t* const (&pairs)[TILE_PAIRS], int lo,
                                                  int hi, int thread) {
  constexpr int THREADS_A_ROW = 8 * PAIR_SLABS;
  const int column = (thread / 8 % PAIR_SLABS) * SLAB_BYTES + (thread % 8) * 16;
  const int owned = hi - lo;
  for (int i = thread / THREADS_A_ROW; i < PAGE_SIZE - owned;
       i += TRANSFORM_THREADS / THREADS_A_ROW) {
    const int at = column + (i < lo ? i : i + owned) * 128;
#pragma unroll
    for (int p = 0; p < TILE_PAIRS; ++p) {
      *reinterpret_cast<uint4*>(pairs[p] + at) = uint4{0, 0, 0, 0};
    }
  }
}

}  // namespace irminsul::mla
