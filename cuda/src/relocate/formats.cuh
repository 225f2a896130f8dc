// 16 bytes of a stored row <-> the fp32 numbers in them, and their rotation.
// Knows number formats and the two pairings of RoPE; no slots and no layers.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp8.h>

#include <cstdint>

#include "relocate/params.h"

namespace irminsul::relocate {

struct Bf16 {
  using Storage = uint16_t;
  static constexpr int PER_CHUNK = 8;  // numbers in 16 bytes

  static __device__ __forceinline__ float widen(Storage bits) {
    return __uint_as_float(static_cast<uint32_t>(bits) << 16);
  }
  static __device__ __forceinline__ Storage narrow(float value) {
    return __bfloat16_as_ushort(__float2bfloat16_rn(value));
  }
};

struct E4m3 {
  using Storage = uint8_t;
  static constexpr int PER_CHUNK = 16;

  static __device__ __forceinline__ float widen(Storage bits) {
    return __half2float(__half(__nv_cvt_fp8_to_halfraw(bits, __NV_E4M3)));
  }
  static __device__ __forceinline__ Storage narrow(float value) {
    return __nv_cvt_float_to_fp8(value, __NV_SATFINITE, __NV_E4M3);
  }
};

template <class Format>
constexpr int ROW_BYTES = ROW_NUMBERS * static_cast<int>(sizeof(typename Format::Storage));
template <class Format>
constexpr int LATENT_CHUNKS = LATENT_NUMBERS / Format::PER_CHUNK;
template <class Format>
constexpr int ROPE_CHUNKS = ROPE_NUMBERS / Format::PER_CHUNK;

/// One row of 16 bytes, as bytes of any width.
template <class Format>
union Chunk {
  uint4 bits;
  typename Format::Storage numbers[Format::PER_CHUNK];
};

/// Products and sums are rounded one by one, never fused: the result is the torch reference's, bit
/// for bit, and the copy is bound by memory anyway.
__device__ __forceinline__ float turned(float own, float cosine, float partner, float sine) {
  return __fadd_rn(__fmul_rn(own, cosine), __fmul_rn(partner, sine));
}

/// Cosines and signed sines of the numbers of one k_r chunk, kept for all layers.
template <class Format, bool INTERLEAVED>
struct Turn {
  static constexpr int ANGLES = INTERLEAVED ? Format::PER_CHUNK / 2 : Format::PER_CHUNK;
  float cosine[ANGLES];
  float sine[ANGLES];

  /// `chunk` counts from the start of k_r.
  __device__ __forceinline__ void load(const float* cos_sin, int64_t delta, int chunk) {
    const float* row = cos_sin + (delta < 0 ? -delta : delta) * ROPE_NUMBERS;
    const int first = (chunk * ANGLES) % ROPE_PAIRS;
    // Half-split, first half: own cos - partner sin. Second half: own cos + partner sin.
    const bool minus = !INTERLEAVED && chunk * ANGLES < ROPE_PAIRS;
    const float sign = (delta < 0) != minus ? -1.0f : 1.0f;
#pragma unroll
    for (int i = 0; i < ANGLES; i += 4) {
      const float4 c = *reinterpret_cast<const float4*>(row + first + i);
      const float4 s = *reinterpret_cast<const float4*>(row + ROPE_PAIRS + first + i);
      cosine[i] = c.x, cosine[i + 1] = c.y, cosine[i + 2] = c.z, cosine[i + 3] = c.w;
      sine[i] = sign * s.x, sine[i + 1] = sign * s.y;
      sine[i + 2] = sign * s.z, sine[i + 3] = sign * s.w;
    }
  }

  /// `partner` is the chunk at the same place of the other half; unused when interleaved.
  __device__ __forceinline__ uint4 apply(uint4 own_bits, uint4 partner_bits) const {
    const Chunk<Format> own{own_bits};
    Chunk<Format> out;
    if constexpr (INTERLEAVED) {
#pragma unroll
      for (int i = 0; i < ANGLES; ++i) {
        const float first = Format::widen(own.numbers[2 * i]);
        const float second = Format::widen(own.numbers[2 * i + 1]);
        out.numbers[2 * i] = Format::narrow(turned(first, cosine[i], second, -sine[i]));
        out.numbers[2 * i + 1] = Format::narrow(turned(second, cosine[i], first, sine[i]));
      }
    } else {
      const Chunk<Format> partner{partner_bits};
#pragma unroll
      for (int i = 0; i < ANGLES; ++i) {
        out.numbers[i] = Format::narrow(turned(Format::widen(own.numbers[i]), cosine[i],
                                               Format::widen(partner.numbers[i]), sine[i]));
      }
    }
    return out.bits;
  }
};

}  // namespace irminsul::relocate
