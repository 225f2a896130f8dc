// The output warpgroups: values and P in shared memory -> complete or partial output.
// Knows nothing of scores but their factors.
#pragma once

#include "layout.cuh"

namespace irminsul::mla {

// Turns a quad's 4 x 4 words: lane q ends with word q of lanes 0..3.
__device__ __forceinline__ void transpose_quad(uint32_t (&w)[4], int lane) {
#pragma unroll
  for (int bit = 1; bit <= 2; bit <<= 1) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (i & bit) continue;
      const bool upper = lane & bit;
      const uint32_t got = __shfl_xor_sync(~0u, upper ? w[i] : w[i | bit], bit);
      (upper ? w[i] : w[i | bit]) = got;
    }
  }
}

// o: rows r and r + 8, columns 8 i + 2 (lane % 4); a quad writes 64 contiguous bytes at a time.
template <class C>
__device__ __forceinline__ void store_complete(const Args& args, const Item& item,
                                               const float (&o)[2][64], const float (&inverse)[2],
                                               int row, int column0, int lane) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const bool valid = row + 8 * r < item.num_rows;
    const float f = inverse[r];
    __nv_bfloat16* out =
        args.out + (int64_t{item.flat_row} + row + 8 * r) * LATENT_DIM + column0 + 8 * (lane % 4);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      uint32_t w[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int at = 4 * (4 * (i % 4) + j) + 2 * r;
        w[j] = f == 0.0f ? 0u : pack_bf16(o[i / 4][at] * f, o[i / 4][at + 1] * f);
      }
      transpose_quad(w, lane);
      if (valid) *reinterpret_cast<uint4*>(out + 32 * i) = uint4{w[0], w[1], w[2], w[3]};
    }
  }
}

template <class C>
__device__ __forceinline__ void store_partial(const Args& args, const Item& item,
                                              const float (&o)[2][64], const float (&inverse)[2],
                                              int row, int column0, int lane, int rank) {
  const int64_t first = (int64_t{item.partial_slot} * args.blocks + rank) * BLOCK_M;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    if (row + 8 * r >= item.num_rows) continue;
    const float f = inverse[r];
    float* out = args.partial_out + (first + row + 8 * r) * LATENT_DIM + column0 + 2 * (lane % 4);
#pragma unroll
    for (int i = 0; i < 32; ++i) {
      const int at = 4 * (i % 16) + 2 * r;
      const float2 pair =
          f == 0.0f ? float2{0, 0} : float2{o[i / 16][at] * f, o[i / 16][at + 1] * f};
      *reinterpret_cast<float2*>(out + 8 * i) = pair;
    }
  }
}

__device__ __forceinline__ void rescale(float (&o)[2][64], float factor0, float factor1) {
#pragma unroll
  for (int i = 0; i < 128; ++i) o[i / 64][i % 64] *= i & 2 ? factor1 : factor0;
}

// O += P V of one tile; a pair of slabs goes back to the ring as soon as it is multiplied.
template <class C>
__device__ __forceinline__ void add_tile(Storage<C>& sm, float (&o)[2][64], Ring<C::PAIRS>& pairs,
                                         const Ring<C::PS>& ps, int half, int row, int lane,
                                         bool first) {
  const uint32_t p = opaque(k_major_descriptor(smem_address(sm.p[0]))) + ps.slot * SLAB_STEP;
  const uint32_t v = opaque(mn_major_descriptor(smem_address(sm.pairs)));
  barrier_wait(&sm.p_full[ps.slot], ps.phase);
  if (C::LATE && half == 1) barrier_wait(&sm.left_begun[ps.slot], ps.phase);
  if (!first) {
    const float factor0 = sm.p_scale[ps.slot][row], factor1 = sm.p_scale[ps.slot][row + 8];
    if (__any_sync(~0u, factor0 != 1.0f || factor1 != 1.0f)) rescale(o, factor0, factor1);
  }
  Ring<C::PAIRS> second = pairs;
  second.advance();
  barrier_wait(&sm.pair_full[pairs.slot], pairs.phase);
  barrier_wait(&sm.pair_full[second.slot], second.phase);
  fence_registers(o[0]);
  fence_registers(o[1]);
  cute::warpgroup_arrive();
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    mma_output(o[0], p + k * K_STEP, v + pairs.slot * (PAIR_BYTES >> 4) + k * MN_STEP,
               first && k == 0);
  }
  cute::warpgroup_commit_batch();
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    mma_output(o[1], p + k * K_STEP, v + second.slot * (PAIR_BYTES >> 4) + k * MN_STEP,
               first && k == 0);
  }
  cute::warpgroup_commit_batch();
  if (C::LATE && half == 0) warp_arrive(&sm.left_begun[ps.slot], lane);
  cute::warpgroup_wait<1>();
  warp_arrive(&sm.pair_empty[pairs.slot], lane);
  cute::warpgroup_wait<0>();
  fence_registers(o[0]);
  fence_registers(o[1]);
  warp_arrive(&sm.pair_empty[second.slot], lane);
  pairs.advance(TILE_PAIRS);
}

// The output of 256 of the 512 columns: `half` 0 takes every tile's first two pairs of slabs.
template <class C>
__device__ __forceinline__ void output_warpgroup(const Args& args, Storage<C>& sm, int half,
                                                 int rank, int thread) {
  const int lane = thread % 32;
  const int row = thread / 32 * 16 + lane / 4;
  Ring<C::PAIRS> pairs;
  Ring<C::PS> ps;
  float o[2][64];  // columns 0..127 and 128..255 of this half
  pairs.advance(half * TILE_PAIRS / 2);
#pragma unroll 1
  for (uint32_t phase = 0;; phase ^= 1) {
    barrier_wait(&sm.q_full, phase);
    const Item item = read_item(sm);
    __syncwarp();
    warp_arrive(&sm.q_empty, lane);
    if (item.num_tiles > 0) pairs.advance(C::Q_PAIRS);
#pragma unroll 1
    for (int t = 0; t < item.num_tiles; ++t) {
      add_tile(sm, o, pairs, ps, half, row, lane, t == 0);
      __syncwarp();
      warp_arrive(&sm.p_empty[ps.slot], lane);
      ps.advance();
    }
    barrier_wait(&sm.epilogue_full, phase);
    const float inverse[2] = {sm.inverse_sum[row], sm.inverse_sum[row + 8]};
    __syncwarp();
    warp_arrive(&sm.epilogue_empty, lane);
    if (item.partial_slot < 0) {
      store_complete<C>(args, item, o, inverse, row, half * 256, lane);
    } else {
      store_partial<C>(args, item, o, inverse, row, half * 256, lane, rank);
    }
    if (item.last) return;
  }
}

}  // namespace irminsul::mla
