// The output warpgroups: values and P in shared memory -> complete or partial output.
// Knows which columns of a row stand where in a slab (see scores.cuh); nothing of number formats.
#pragma once

#include "mla_fp8/layout.cuh"
#include "mla_fp8/products.cuh"

namespace irminsul::mla::fp8 {

constexpr int HALF_SLABS = LATENT_DIM / SLAB_DIM / 2;

// O^T of 256 columns, a slab of 64 at a time: registers 4 i + 2 r + e of slab k are column
// 128 (k / 2) + 32 warp + 16 (k % 2) + g + 8 r of the half, query row 8 i + 2 c + e.
template <class C>
using Output = float[HALF_SLABS][C::N / 2];

__device__ __forceinline__ int first_column(int half, int slab, int warp, int g) {
  return half * LATENT_DIM / 2 + slab / 2 * SCALE_GROUP + 32 * warp + slab % 2 * 16 + g;
}

template <class C>
__device__ __forceinline__ void rescale(const Storage<C>& sm, int slot, Output<C>& o, int c) {
#pragma unroll
  for (int i = 0; i < C::N / 8; ++i) {
    const float2 f = *reinterpret_cast<const float2*>(&sm.p_scale[slot][8 * i + 2 * c]);
#pragma unroll
    for (int k = 0; k < HALF_SLABS; ++k) {
      o[k][4 * i] *= f.x, o[k][4 * i + 1] *= f.y, o[k][4 * i + 2] *= f.x, o[k][4 * i + 3] *= f.y;
    }
  }
}

// O^T += V^T P^T of one tile; a pair of slabs goes back to the ring as soon as it is multiplied.
template <class C>
__device__ __forceinline__ void add_tile(Storage<C>& sm, Output<C>& o, Ring<C::PAIRS>& pairs,
                                         Ring<C::PS>& ps, int lane, bool first) {
  barrier_wait(&sm.p_full[ps.slot], ps.phase);
  if (!first && __any_sync(~0u, sm.rescale[ps.slot] != 0)) {
    rescale<C>(sm, ps.slot, o, lane % 4);
  }
  const uint32_t p = opaque(k_major_descriptor(smem_address(sm.p[0]))) +
                     ps.slot * (C::Q_SLAB_BYTES >> 4);
  const uint32_t v = opaque(mn_major_descriptor(smem_address(sm.pairs)));
  Ring<C::PAIRS> second = pairs;
  second.advance(2);
#pragma unroll
  for (int k = 0; k < HALF_SLABS; ++k) fence_registers(o[k]);
  cute::warpgroup_arrive();
#pragma unroll
  for (int k = 0; k < HALF_SLABS; ++k) {
    const uint32_t slab = v + (k < PAIR_SLABS ? pairs.slot : second.slot) * (PAIR_BYTES >> 4) +
                          k % PAIR_SLABS * SLAB_STEP;
#pragma unroll
    for (int step = 0; step < 4; ++step) {
      multiply_transposed<C::N>(o[k], slab + step * MN_STEP, p + step * K_STEP,
                                first && step == 0);
    }
    if (k % PAIR_SLABS == PAIR_SLABS - 1) cute::warpgroup_commit_batch();
  }
  cute::warpgroup_wait<1>();
  if (lane == 0) barrier_arrive(&sm.pair_empty[pairs.slot]);
  cute::warpgroup_wait<0>();
#pragma unroll
  for (int k = 0; k < HALF_SLABS; ++k) fence_registers(o[k]);
  if (lane == 0) {
    barrier_arrive(&sm.pair_empty[second.slot]);
    barrier_arrive(&sm.p_empty[ps.slot]);
  }
  pairs.advance(TILE_PAIRS);
  ps.advance();
}

// One over the sums of query rows 8 i + 2 c and the next; 0 where there was no key.
template <class C>
__device__ __forceinline__ float2 read_factors(const Storage<C>& sm, int i, int c) {
  return *reinterpret_cast<const float2*>(&sm.inverse_sum[8 * i + 2 * c]);
}

// Neighbouring lanes of a column pair exchange, so that each stores two columns of one row.
template <class C>
__device__ __forceinline__ void store_complete(const Args& args, const Storage<C>& sm,
                                               const Part& part, const Output<C>& o, int half,
                                               int warp, int lane) {
  const int g = lane / 4, c = lane % 4, odd = g % 2;
#pragma unroll
  for (int i = 0; i < C::N / 8; ++i) {
    const int row = 8 * i + 2 * c + odd;
    const float2 f = read_factors(sm, i, c);
    __nv_bfloat16* out = args.out + (int64_t{part.flat_row} + row) * LATENT_DIM;
#pragma unroll
    for (int k = 0; k < HALF_SLABS; ++k) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const float x = f.x == 0.0f ? 0.0f : o[k][4 * i + 2 * r] * f.x;
        const float y = f.y == 0.0f ? 0.0f : o[k][4 * i + 2 * r + 1] * f.y;
        const float other = __shfl_xor_sync(~0u, odd ? x : y, 4);
        const uint32_t pair = odd ? pack_bf16(other, y) : pack_bf16(x, other);
        const int column = first_column(half, k, warp, g - odd) + 8 * r;
        if (row < part.num_rows) *reinterpret_cast<uint32_t*>(out + column) = pair;
      }
    }
  }
}

template <class C>
__device__ __forceinline__ void store_partial(const Args& args, const Storage<C>& sm,
                                              const Part& part, const Output<C>& o, int half,
                                              int warp, int lane) {
  const int g = lane / 4, c = lane % 4;
#pragma unroll
  for (int i = 0; i < C::N / 8; ++i) {
    const float2 f = read_factors(sm, i, c);
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const int row = 8 * i + 2 * c + e;
      const float factor = e ? f.y : f.x;
      float* out = args.partial_out + (int64_t{part.partial_row} + row) * LATENT_DIM;
      if (row >= part.num_rows) continue;
#pragma unroll
      for (int k = 0; k < HALF_SLABS; ++k) {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          out[first_column(half, k, warp, g) + 8 * r] =
              factor == 0.0f ? 0.0f : o[k][4 * i + 2 * r + e] * factor;
        }
      }
    }
  }
}

// The output of 256 of the 512 columns: `half` 0 takes the first two groups of every tile.
template <class C>
__device__ __forceinline__ void output_warpgroup(const Args& args, Storage<C>& sm, int worker,
                                                 int half, int thread) {
  const int warp = thread / 32, lane = thread % 32;
  Ring<C::PAIRS> pairs;
  Ring<C::PS> ps;
  uint32_t phase = 0;
  Output<C> o;
  pairs.advance(half);
#pragma unroll 1
  for (Place at = first_place(args, worker); at.valid();
       at = next_place<C::N>(args, worker, at)) {
    const int num_tiles = read_part<C::N>(args, worker, at).num_tiles;
#pragma unroll 1
    for (int t = 0; t < num_tiles; ++t) add_tile<C>(sm, o, pairs, ps, lane, t == 0);
    barrier_wait(&sm.epilogue_full, phase);
    phase ^= 1;
    const Part part = read_part<C::N>(args, worker, at);
    if (part.partial_row < 0) store_complete<C>(args, sm, part, o, half, warp, lane);
    else store_partial<C>(args, sm, part, o, half, warp, lane);
    __syncwarp();
    if (lane == 0) barrier_arrive(&sm.epilogue_empty);
  }
}

}  // namespace irminsul::mla::fp8
