// Thin names over the matrix products that the fp8 kernel needs, by number of query rows, and over
// its number conversion. Knows nothing of attention.
#pragma once

#include "mla/sm90.cuh"

namespace irminsul::mla::fp8 {

// Both operands K-major, or the first one transposed; M is 64, K is 16.
template <int N>
struct Atoms;
template <>
struct Atoms<16> {
  template <cute::SM90::GMMA::Major A>
  using Shared =
      cute::SM90::GMMA::MMA_64x16x16_F32BF16BF16_SS<A, cute::SM90::GMMA::Major::K>;
  using Registers = cute::SM90::GMMA::MMA_64x16x16_F32BF16BF16_RS<cute::SM90::GMMA::Major::K,
                                                                  cute::SM90::GMMA::Major::K>;
};
template <>
struct Atoms<32> {
  template <cute::SM90::GMMA::Major A>
  using Shared =
      cute::SM90::GMMA::MMA_64x32x16_F32BF16BF16_SS<A, cute::SM90::GMMA::Major::K>;
  using Registers = cute::SM90::GMMA::MMA_64x32x16_F32BF16BF16_RS<cute::SM90::GMMA::Major::K,
                                                                  cute::SM90::GMMA::Major::K>;
};
template <>
struct Atoms<64> {
  template <cute::SM90::GMMA::Major A>
  using Shared =
      cute::SM90::GMMA::MMA_64x64x16_F32BF16BF16_SS<A, cute::SM90::GMMA::Major::K>;
  using Registers = cute::SM90::GMMA::MMA_64x64x16_F32BF16BF16_RS<cute::SM90::GMMA::Major::K,
                                                                  cute::SM90::GMMA::Major::K>;
};

template <class Atom, size_t N, size_t... I>
__device__ __forceinline__ void multiply(const uint32_t (&a)[4], uint64_t b, float (&d)[N],
                                         bool zero, std::index_sequence<I...>) {
  using cute::SM90::GMMA::ScaleOut;
  Atom::fma(a[0], a[1], a[2], a[3], b, d[I]..., zero ? ScaleOut::Zero : ScaleOut::One);
}

template <class Atom, size_t N, size_t... I>
__device__ __forceinline__ void multiply(uint64_t a, uint64_t b, float (&d)[N], bool zero,
                                         std::index_sequence<I...>) {
  using cute::SM90::GMMA::ScaleOut;
  Atom::fma(a, b, d[I]..., zero ? ScaleOut::Zero : ScaleOut::One);
}

// d[64 x N] += a[64 x 16] b[N x 16]^T, a in registers; `zero` starts the sum afresh.
template <int N>
__device__ __forceinline__ void multiply_registers(float (&d)[N / 2], const uint32_t (&a)[4],
                                                   uint32_t b, bool zero) {
  multiply<typename Atoms<N>::Registers>(a, descriptor(b), d, zero,
                                         std::make_index_sequence<N / 2>{});
}

// The same with both in shared memory.
template <int N>
__device__ __forceinline__ void multiply_shared(float (&d)[N / 2], uint32_t a, uint32_t b) {
  using Atom = typename Atoms<N>::template Shared<cute::SM90::GMMA::Major::K>;
  multiply<Atom>(descriptor(a), descriptor(b), d, false, std::make_index_sequence<N / 2>{});
}

// d[64 x N] += a[16 x 64]^T b[N x 16]^T, both in shared memory.
template <int N>
__device__ __forceinline__ void multiply_transposed(float (&d)[N / 2], uint32_t a, uint32_t b,
                                                    bool zero) {
  using Atom = typename Atoms<N>::template Shared<cute::SM90::GMMA::Major::MN>;
  multiply<Atom>(descriptor(a), descriptor(b), d, zero, std::make_index_sequence<N / 2>{});
}

// Two e4m3 numbers times a factor, rounded once, as bf16x2. Every e4m3 number is an fp16 number.
__device__ __forceinline__ uint32_t scale_two(uint16_t two, float scale) {
  uint32_t halves;
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(halves) : "h"(two));
  const float2 x = __half22float2(reinterpret_cast<const __half2&>(halves));
  return pack_bf16(x.x * scale, x.y * scale);
}

// Stores four 8 x 8 matrices transposed.
__device__ __forceinline__ void store_transposed(uint32_t address, uint32_t r0, uint32_t r1,
                                                 uint32_t r2, uint32_t r3) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(
                   address),
               "r"(r0), "r"(r1), "r"(r2), "r"(r3)
               : "memory");
}

// Barrier of one scores warpgroup, and of all of them.
__device__ __forceinline__ void sync_stream(int stream) {
  asm volatile("bar.sync %0, 128;" ::"r"(stream + 1) : "memory");
}
template <int STREAMS>
__device__ __forceinline__ void sync_streams() {
  asm volatile("bar.sync 3, %0;" ::"n"(STREAMS * 128) : "memory");
}

// The barrier of one; tells every thread whether any of them said so.
__device__ __forceinline__ bool any_in_stream(int stream, bool value) {
  uint32_t result;
  asm volatile(
      "{\n"
      ".reg .pred mine, any;\n"
      "setp.ne.u32 mine, %1, 0;\n"
      "bar.red.or.pred any, %2, 128, mine;\n"
      "selp.u32 %0, 1, 0, any;\n"
      "}\n"
      : "=r"(result)
      : "r"(uint32_t{value}), "r"(stream + 1)
      : "memory");
  return result != 0;
}

}  // namespace irminsul::mla::fp8
