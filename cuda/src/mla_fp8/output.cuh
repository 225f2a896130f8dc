// The output warpgroups: values and P in shared memory -> complete or partial output.
// Knows which columns of a row stand where in a slab (see scores.cuh); nothing of number formats.
#pragma once

#include "mla_fp8/layout.cuh"
#include "mla_fp8/products.cuh"

namespace irminsul::mla::fp8 {

// O^T of a stream, a slab of 64 columns at a time: registers 4 i + 2 r + e of slab k are column
// first_column(...) + 8 r, query row 8 i + 2 c + e.
template <class C>
using Output = float[C::OUT_PAIRS * PAIR_SLABS][C::N / 2];

// Slot of a tile, counted from its first, that an output warpgroup's i-th pair of slabs is in.
template <class C>
__device__ __forceinline__ constexpr int slot_of(int half, int i) {
  return C::OUTPUTS == 2 ? half + 2 * i : i;
}

template <class C>
__device__ __forceinline__ int first_column(int half, int slab, int warp, int g) {
  return group_of(slot_of<C>(half, slab / PAIR_SLABS)) * SCALE_GROUP + 32 * warp +
         slab % PAIR_SLABS * 16 + g;
}

template <class C>
__device__ __forceinline__ void rescale(const Storage<C>& sm, int slot, Output<C>& o, int c) {
#pragma unroll
  for (int i = 0; i < C::N / 8; ++i) {
    const float2 f = *reinterpret_cast<const float2*>(&sm.p_scale[slot][8 * i + 2 * c]);
#pragma unroll
    for (int k = 0; k < C::OUT_PAIRS * PAIR_SLABS; ++k) {
      o[k][4 * i] *= f.x, o[k][4 * i + 1] *= f.y, o[k][4 * i + 2] *= f.x, o[k][4 * i + 3] *= f.y;
    }
  }
}

// O^T += V^T P^T of one tile; half of its pairs of slabs go back to the ring as soon as they are
// multiplied. `pairs` is the tile's first slot.
template <class C>
__device__ __forceinline__ void add_tile(Storage<C>& sm, Output<C>& o, Ring<C::PAIRS>& pairs,
                                         Ring<C::PS>& ps, int stream, int half, int lane,
                                         bool first) {
  const int p_slot = stream * C::PS + ps.slot;
  barrier_wait(&sm.p_full[p_slot], ps.phase);
  if (!first && __any_sync(~0u, sm.rescale[p_slot] != 0)) rescale<C>(sm, p_slot, o, lane % 4);
  const uint32_t p =
      opaque(k_major_descriptor(smem_address(sm.p[0]))) + p_slot * (C::Q_SLAB_BYTES >> 4);
  const uint32_t v = opaque(mn_major_descriptor(smem_address(sm.pairs)));
  int slots[C::OUT_PAIRS];
#pragma unroll
  for (int i = 0; i < C::OUT_PAIRS; ++i) {
    Ring<C::PAIRS> at = pairs;
    at.advance(slot_of<C>(half, i));
    slots[i] = at.slot;
  }
#pragma unroll
  for (int k = 0; k < C::OUT_PAIRS * PAIR_SLABS; ++k) fence_registers(o[k]);
  cute::warpgroup_arrive();
#pragma unroll
  for (int k = 0; k < C::OUT_PAIRS * PAIR_SLABS; ++k) {
    const uint32_t slab = v + slots[k / PAIR_SLABS] * (PAIR_BYTES >> 4) + k % PAIR_SLABS * SLAB_STEP;
#pragma unroll
    for (int step = 0; step < 4; ++step) {
      multiply_transposed<C::N>(o[k], slab + step * MN_STEP, p + step * K_STEP,
                                first && step == 0);
    }
    if (k % PAIR_SLABS == PAIR_SLABS - 1) cute::warpgroup_commit_batch();
  }
  cute::warpgroup_wait<C::OUT_PAIRS / 2>();
#pragma unroll
  for (int i = 0; i < C::OUT_PAIRS; ++i) {
    if (i == C::OUT_PAIRS / 2) {
      cute::warpgroup_wait<0>();
#pragma unroll
      for (int k = 0; k < C::OUT_PAIRS * PAIR_SLABS; ++k) fence_registers(o[k]);
    }
    warp_arrive(&sm.pair_empty[slots[i]], lane);
  }
  warp_arrive(&sm.p_empty[p_slot], lane);
  pairs.advance(TILE_PAIRS);
  ps.advance();
}

// Output of query rows 8 i + 2 c + e; 0 where there was no key.
template <class C>
__device__ __forceinline__ float2 weighed(const Storage<C>& sm, const Output<C> (&o)[C::STREAMS],
                                          int slab, int i, int r, int c) {
  float2 sum{0, 0};
#pragma unroll
  for (int s = 0; s < C::STREAMS; ++s) {
    const float2 f = *reinterpret_cast<const float2*>(&sm.weight[s][8 * i + 2 * c]);
    if (f.x != 0.0f) sum.x += o[s][slab][4 * i + 2 * r] * f.x;
    if (f.y != 0.0f) sum.y += o[s][slab][4 * i + 2 * r + 1] * f.y;
  }
  return sum;
}

// Neighbouring lanes of a column pair exchange, so that each stores two columns of one row.
template <class C>
__device__ __forceinline__ void store_complete(const Args& args, const Storage<C>& sm,
                                               const Part& part, const Output<C> (&o)[C::STREAMS],
                                               int half, int warp, int lane) {
  const int g = lane / 4, c = lane % 4, odd = g % 2;
#pragma unroll
  for (int i = 0; i < C::N / 8; ++i) {
    const int row = 8 * i + 2 * c + odd;
    __nv_bfloat16* out = args.out + (int64_t{part.flat_row} + row) * LATENT_DIM;
#pragma unroll
    for (int k = 0; k < C::OUT_PAIRS * PAIR_SLABS; ++k) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const float2 x = weighed<C>(sm, o, k, i, r, c);
        const float other = __shfl_xor_sync(~0u, odd ? x.x : x.y, 4);
        const uint32_t pair = odd ? pack_bf16(other, x.y) : pack_bf16(x.x, other);
        const int column = first_column<C>(half, k, warp, g - odd) + 8 * r;
        if (row < part.num_rows) *reinterpret_cast<uint32_t*>(out + column) = pair;
      }
    }
  }
}

template <class C>
__device__ __forceinline__ void store_partial(const Args& args, const Storage<C>& sm,
                                              const Part& part, const Output<C> (&o)[C::STREAMS],
                                              int half, int warp, int lane) {
  const int g = lane / 4, c = lane % 4;
#pragma unroll
  for (int i = 0; i < C::N / 8; ++i) {
    const int row = 8 * i + 2 * c;
    float* out = args.partial_out + (int64_t{part.partial_row} + row) * LATENT_DIM;
#pragma unroll
    for (int k = 0; k < C::OUT_PAIRS * PAIR_SLABS; ++k) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const float2 x = weighed<C>(sm, o, k, i, r, c);
        const int column = first_column<C>(half, k, warp, g) + 8 * r;
        if (row < part.num_rows) out[column] = x.x;
        if (row + 1 < part.num_rows) out[LATENT_DIM + column] = x.y;
      }
    }
  }
}

// The output of all columns, or with two output warpgroups of 256 of the 512.
template <class C>
__device__ __forceinline__ void output_warpgroup(const Args& args, Storage<C>& sm, int worker,
                                                 int half, int thread) {
  const int warp = thread / 32, lane = thread % 32;
  Ring<C::PAIRS> pairs;
  Ring<C::PS> ps[C::STREAMS];
  uint32_t phase = 0;
  Output<C> o[C::STREAMS];
#pragma unroll 1
  for (Place at = first_place(args, worker); at.valid();
       at = next_place<C::N>(args, worker, at)) {
    const int num_tiles = read_part<C::N>(args, worker, at).num_tiles;
#pragma unroll 1
    for (int t = 0; t < num_tiles; t += C::STREAMS) {
#pragma unroll
      for (int s = 0; s < C::STREAMS; ++s) {
        if (t + s < num_tiles) add_tile<C>(sm, o[s], pairs, ps[s], s, half, lane, t == 0);
      }
    }
    barrier_wait(&sm.epilogue_full, phase);
    phase ^= 1;
    const Part part = read_part<C::N>(args, worker, at);
    if (part.partial_row < 0) store_complete<C>(args, sm, part, o, half, warp, lane);
    else store_partial<C>(args, sm, part, o, half, warp, lane);
    __syncwarp();
    warp_arrive(&sm.epilogue_empty, lane);
  }
}

}  // namespace irminsul::mla::fp8
