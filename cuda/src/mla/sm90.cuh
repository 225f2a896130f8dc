// Thin names over Hopper's instructions: barriers, matrix products, fragment loads and stores.
// Knows nothing of attention; every function is one instruction or a fixed short run of them.
#pragma once

#include <cute/arch/cluster_sm90.hpp>
#include <cute/arch/copy_sm90_tma.hpp>
#include <cute/arch/mma_sm90_gmma.hpp>
#include <cutlass/arch/barrier.h>
#include <cutlass/arch/reg_reconfig.h>

#include <utility>

#include "config.h"

namespace irminsul::mla {

__device__ __forceinline__ uint32_t smem_address(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

// Tells the compiler what holds anyway: all lanes have the same value. Branches on it are then no
// divergent paths, in which ptxas would serialise wgmma.
__device__ __forceinline__ int uniform(int value) { return __shfl_sync(~0u, value, 0); }

// ---- mbarriers: CUTLASS's wrappers carry no "memory" clobber, and data read here depends on it.

__device__ __forceinline__ void barrier_wait(const uint64_t* barrier, uint32_t phase) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "wait_again:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1, %2;\n"
      "@!done bra wait_again;\n"
      "}\n" ::"r"(smem_address(barrier)),
      "r"(phase), "r"(0x989680)
      : "memory");
}

__device__ __forceinline__ void barrier_arrive(const uint64_t* barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(smem_address(barrier)) : "memory");
}

// A warp arrives by one of its lanes. The sanitizer's race checker takes an arrival for its own lane's
// only: a build for it lets all of them arrive.
#ifdef IRM_EVERY_LANE_ARRIVES
constexpr int WARP_ARRIVALS = 32;
#else
constexpr int WARP_ARRIVALS = 1;
#endif

__device__ __forceinline__ void warp_arrive(const uint64_t* barrier, int lane) {
  if (lane < WARP_ARRIVALS) barrier_arrive(barrier);
}

__device__ __forceinline__ void init_for_warps(uint64_t* barrier, int warps) {
  cutlass::arch::ClusterBarrier::init(barrier, warps * WARP_ARRIVALS);
}

__device__ __forceinline__ void barrier_expect(const uint64_t* barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(
                   smem_address(barrier)),
               "r"(bytes)
               : "memory");
}

// Makes this thread's shared memory writes visible to wgmma and TMA.
__device__ __forceinline__ void fence_async_proxy() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// ---- Shared memory matrix descriptors, 128-byte swizzle.

// Only the low word moves (the address and, transposed, the distance of the slabs); the high word
// is the same for every operand here: groups of 8 rows are 1,024 bytes apart, 128-byte swizzle.
constexpr uint64_t DESCRIPTOR_HIGH = (uint64_t{1} << 62) | (uint64_t{1024 >> 4} << 32);

// K-major operand: slabs of [rows][64] bf16.
__device__ __forceinline__ uint32_t k_major_descriptor(uint32_t address) {
  return (1u << 16) | ((address & 0x3FFFF) >> 4);
}

// The same bytes read as the transposed operand: columns are the long dimension, slabs of 64 of
// them are SLAB_BYTES apart.
__device__ __forceinline__ uint32_t mn_major_descriptor(uint32_t address) {
  return (uint32_t{SLAB_BYTES >> 4} << 16) | ((address & 0x3FFFF) >> 4);
}

__device__ __forceinline__ uint64_t descriptor(uint32_t low) { return DESCRIPTOR_HIGH | low; }

// Keeps the compiler from computing every descriptor of an unrolled run ahead of the loop, which
// costs a register each.
__device__ __forceinline__ uint32_t opaque(uint32_t value) {
  asm volatile("" : "+r"(value));
  return value;
}

constexpr uint32_t K_STEP = 32 >> 4;           // 16 columns of a K-major slab
constexpr uint32_t MN_STEP = (16 * 128) >> 4;  // 16 keys of a slab read transposed
constexpr uint32_t SLAB_STEP = SLAB_BYTES >> 4;

// ---- wgmma

template <int N>
__device__ __forceinline__ void fence_registers(float (&r)[N]) {
#pragma unroll
  for (int i = 0; i < N; ++i) cute::warpgroup_fence_operand(r[i]);
}

template <int N>
__device__ __forceinline__ void fence_registers(uint32_t (&r)[N]) {
#pragma unroll
  for (int i = 0; i < N; ++i) cute::warpgroup_fence_operand(r[i]);
}

namespace detail {
using Scores = cute::SM90::GMMA::MMA_64x64x16_F32BF16BF16_SS<cute::SM90::GMMA::Major::K,
                                                             cute::SM90::GMMA::Major::K>;
using ScoresFromRegisters =
    cute::SM90::GMMA::MMA_64x64x16_F32BF16BF16_RS<cute::SM90::GMMA::Major::K,
                                                  cute::SM90::GMMA::Major::K>;
using Output = cute::SM90::GMMA::MMA_64x128x16_F32BF16BF16_SS<cute::SM90::GMMA::Major::K,
                                                              cute::SM90::GMMA::Major::MN>;
using ScaleOut = cute::SM90::GMMA::ScaleOut;

template <class Atom, size_t N, size_t... I>
__device__ __forceinline__ void fma(uint64_t a, uint64_t b, float (&d)[N], ScaleOut scale,
                                    std::index_sequence<I...>) {
  Atom::fma(a, b, d[I]..., scale);
}

template <class Atom, size_t N, size_t... I>
__device__ __forceinline__ void fma(const uint32_t* a, uint64_t b, float (&d)[N], ScaleOut scale,
                                    std::index_sequence<I...>) {
  Atom::fma(a[0], a[1], a[2], a[3], b, d[I]..., scale);
}
}  // namespace detail

// s[64 x 64] += a[64 x 16] b[64 x 16]^T, both in shared memory.
__device__ __forceinline__ void mma_scores(float (&s)[32], uint32_t a, uint32_t b) {
  detail::fma<detail::Scores>(descriptor(a), descriptor(b), s, detail::ScaleOut::One,
                              std::make_index_sequence<32>{});
}

// The same with a in registers; `zero` starts the sum afresh.
__device__ __forceinline__ void mma_scores(float (&s)[32], const uint32_t* a, uint32_t b,
                                           bool zero) {
  detail::fma<detail::ScoresFromRegisters>(
      a, descriptor(b), s, zero ? detail::ScaleOut::Zero : detail::ScaleOut::One,
      std::make_index_sequence<32>{});
}

// o[64 x 128] += p[64 x 16] v[16 x 128], both in shared memory. An instruction of 256 columns does
// not compile in a kernel of 512 threads: ptxas wants 154 registers at entry, there are 128.
__device__ __forceinline__ void mma_output(float (&o)[64], uint32_t p, uint32_t v, bool zero) {
  detail::fma<detail::Output>(descriptor(p), descriptor(v), o,
                              zero ? detail::ScaleOut::Zero : detail::ScaleOut::One,
                              std::make_index_sequence<64>{});
}

// ---- Fragments

__device__ __forceinline__ void load_matrices(uint32_t (&r)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}

__device__ __forceinline__ void store_matrices(uint32_t address, uint32_t r0, uint32_t r1,
                                               uint32_t r2, uint32_t r3) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address),
               "r"(r0), "r"(r1), "r"(r2), "r"(r3)
               : "memory");
}

// Two floats -> bf16x2, `low` in the low half.
__device__ __forceinline__ uint32_t pack_bf16(float low, float high) {
  uint32_t packed;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  return packed;
}

__device__ __forceinline__ float exp2_approx(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// A slot of a ring and the parity of the barrier phase that guards its next use.
template <int SLOTS>
struct Ring {
  int slot = 0;
  uint32_t phase = 0;

  __device__ __forceinline__ void advance(int by = 1) {
    slot += by;
    if (slot >= SLOTS) {
      slot -= SLOTS;
      phase ^= 1;
    }
  }
};

}  // namespace irminsul::mla
