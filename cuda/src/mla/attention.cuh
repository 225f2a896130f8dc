// Queries, a paged latent cache and a tile table -> attention output, partial output, LSE.
// Knows nothing of how work was divided: it follows the boundaries that the plan wrote.
//
// Four warpgroups, joined by mbarriers only:
//   scores  (0)    S = Q K^T, online softmax, P -> shared memory
//   output  (1, 2) O += P V for columns 0..255 and 256..511
//   helpers (3)    warp 0: TMA of keys; warp 1: TMA of queries; warps 2, 3: rotation and cut rows
// A tile is loaded as its k_r slab and four pairs of c_KV slabs; the pairs serve first as K, then
// as V: the first two for the output's left half, the others for its right one. The scores
// warpgroup keeps the first slabs of Q in registers; they come through the same ring as the keys.
#pragma once

#include "common/launch.cuh"
#include "helpers.cuh"
#include "layout.cuh"

namespace irminsul::mla {

// ----------------------------------------------------------------------------------------- scores

// Registers of one thread of the scores warpgroup: rows r = warp * 16 + lane / 4 and r + 8.
template <class C>
struct Scores {
  uint32_t q[C::Q_SLABS * 4][4];
  float max[2], sum[2];
  int pos[2];  // positions of the two rows' tokens
  int first_pos;
  Ring<C::PAIRS> pairs;
  Ring<C::ROPES> ropes;
  uint32_t p_phase = 0;
  uint32_t fragment;  // byte of a slab where this lane's fragment row starts
  int warp, lane;
};

// Byte of the 16-byte chunk a lane addresses in ldmatrix and stmatrix of a 16-column step.
__device__ __forceinline__ uint32_t fragment_offset(uint32_t fragment, int step, int lane) {
  return fragment + (((2 * step + lane / 16) ^ (lane & 7)) << 4);
}

// The first slabs of Q from the ring into registers.
template <class C>
__device__ __forceinline__ void load_query_registers(Storage<C>& sm, Scores<C>& st) {
#pragma unroll
  for (int slab = 0; slab < C::Q_SLABS; ++slab) {
    if (slab % PAIR_SLABS == 0) barrier_wait(&sm.pair_full[st.pairs.slot], st.pairs.phase);
    const uint32_t at = smem_address(sm.pairs[st.pairs.slot]) + slab % PAIR_SLABS * SLAB_BYTES;
#pragma unroll
    for (int step = 0; step < 4; ++step) {
      load_matrices(st.q[4 * slab + step], at + fragment_offset(st.fragment, step, st.lane));
      fence_registers(st.q[4 * slab + step]);
    }
    if (slab % PAIR_SLABS == PAIR_SLABS - 1) st.pairs.advance();
  }
}

// Gives the ring slots of Q back. To be called when the products of a unit's first tile have been
// issued: an arrival does not wait for loads that are still under way, and the copy that comes next
// may be faster; a product waits for the registers that it reads.
template <class C>
__device__ __forceinline__ void release_queries(Storage<C>& sm, const Scores<C>& st) {
  fence_async_proxy();
  __syncwarp();
#pragma unroll
  for (int pair = 0; pair < C::Q_PAIRS; ++pair) {
    const int slot = st.pairs.slot + pair - TILE_PAIRS - C::Q_PAIRS;
    uint64_t* empty = &sm.pair_empty[slot < 0 ? slot + C::PAIRS : slot];
    if (st.lane == 0) barrier_arrive_all<C::CLUSTER>(empty);
  }
}

struct TileMask {
  int bounds, pos0;
};

// Starts S = Q K^T of the next tile; the caller waits for it.
template <class C>
__device__ __forceinline__ TileMask issue_scores(Storage<C>& sm, Scores<C>& st, float (&s)[32]) {
  const uint32_t q = opaque(k_major_descriptor(smem_address(sm.q)));
  const uint32_t pairs = opaque(k_major_descriptor(smem_address(sm.pairs)));
  fence_registers(s);
#pragma unroll
  for (int pair = 0; pair < TILE_PAIRS; ++pair) {
    barrier_wait(&sm.pair_full[st.pairs.slot], st.pairs.phase);
    if (pair == 0) cute::warpgroup_arrive();
    const uint32_t k = pairs + st.pairs.slot * (PAIR_BYTES >> 4);
#pragma unroll
    for (int i = 0; i < PAIR_SLABS * 4; ++i) {
      const int slab = pair * PAIR_SLABS + i / 4;
      const uint32_t at = k + (i / 4) * SLAB_STEP + (i % 4) * K_STEP;
      if (slab < C::Q_SLABS) {
        mma_scores(s, st.q[4 * slab + i % 4], at, pair == 0 && i == 0);
      } else {
        mma_scores(s, q + (slab - C::Q_SLABS) * SLAB_STEP + (i % 4) * K_STEP, at);
      }
    }
    st.pairs.advance();
  }
  if (st.lane == 0) barrier_arrive(&sm.tile_full[st.ropes.slot]);
  barrier_wait(&sm.rope_ready[st.ropes.slot], st.ropes.phase);
  const uint32_t k = k_major_descriptor(smem_address(sm.ropes[st.ropes.slot]));
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    mma_scores(s, q + (C::Q_SHARED_SLABS - 1) * SLAB_STEP + i * K_STEP, k + i * K_STEP);
  }
  cute::warpgroup_commit_batch();
  const TileInfo& tile = sm.tiles[st.ropes.slot];
  return {tile.bounds, tile.pos0};
}

template <class C>
__device__ __forceinline__ void wait_scores(Storage<C>& sm, Scores<C>& st, float (&s)[32]) {
  cute::warpgroup_wait<0>();
  fence_registers(s);
  if (st.lane == 0) barrier_arrive_all<C::CLUSTER>(&sm.rope_empty[st.ropes.slot]);
  st.ropes.advance();
}

// -inf where the key is outside the tile's bounds or after the row's token.
template <class C>
__device__ __forceinline__ void mask_scores(const Scores<C>& st, float (&s)[32], TileMask tile) {
  const int lo = tile.bounds & 0xFFFF, hi = tile.bounds >> 16;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int end = min(hi, lo + st.pos[r] - tile.pos0 + 1);
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      const int key = 8 * (i / 2) + 2 * (st.lane % 4) + i % 2;
      float& x = s[4 * (i / 2) + 2 * r + i % 2];
      x = key >= lo && key < end ? x : -INFINITY;
    }
  }
}

// New running maximum of one row (of two), and the factor on everything summed so far.
template <class C>
__device__ __forceinline__ float update_maximum(Scores<C>& st, const float (&s)[32], int r,
                                                float scale_log2) {
  float top = fmaxf(s[2 * r], s[2 * r + 1]);
#pragma unroll
  for (int i = 1; i < 8; ++i) top = fmaxf(top, fmaxf(s[4 * i + 2 * r], s[4 * i + 2 * r + 1]));
  top = fmaxf(top, __shfl_xor_sync(~0u, top, 1));
  top = fmaxf(top, __shfl_xor_sync(~0u, top, 2));
  top *= scale_log2;
  if (!(top > st.max[r] + RESCALE_THRESHOLD)) return 1.0f;
  const float factor = exp2_approx(st.max[r] - top);
  st.max[r] = top;
  st.sum[r] *= factor;
  return factor;
}

// S of one tile -> P in shared memory.
template <class C>
__device__ __forceinline__ void softmax_tile(const Args& args, Storage<C>& sm, Scores<C>& st,
                                             float (&s)[32], TileMask tile) {
  if (tile.bounds != FULL_PAGE || tile.pos0 + PAGE_SIZE - 1 > st.first_pos) {
    mask_scores(st, s, tile);
  }
  const float factor0 = update_maximum(st, s, 0, args.scale_log2);
  const float factor1 = update_maximum(st, s, 1, args.scale_log2);
  const float max0 = st.max[0] == -INFINITY ? 0.0f : st.max[0];
  const float max1 = st.max[1] == -INFINITY ? 0.0f : st.max[1];
#pragma unroll
  for (int i = 0; i < 32; ++i) {
    s[i] = exp2_approx(fmaf(s[i], args.scale_log2, i & 2 ? -max1 : -max0));
    st.sum[(i & 2) / 2] += s[i];
  }
  barrier_wait(&sm.p_empty, st.p_phase ^ 1);
  const uint32_t p = smem_address(sm.p);
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    store_matrices(p + fragment_offset(st.fragment, k, st.lane),
                   pack_bf16(s[8 * k], s[8 * k + 1]), pack_bf16(s[8 * k + 2], s[8 * k + 3]),
                   pack_bf16(s[8 * k + 4], s[8 * k + 5]), pack_bf16(s[8 * k + 6], s[8 * k + 7]));
  }
  if (st.lane % 4 == 0) {
    sm.p_scale[st.warp * 16 + st.lane / 4] = factor0;
    sm.p_scale[st.warp * 16 + st.lane / 4 + 8] = factor1;
  }
  fence_async_proxy();
  __syncwarp();
  if (st.lane == 0) barrier_arrive(&sm.p_full);
  st.p_phase ^= 1;
}

template <class C>
__device__ __forceinline__ void run_tiles(const Args& args, Storage<C>& sm, Scores<C>& st,
                                          int count) {
  if (count == 0) return;
  float s[32];
  TileMask tile = issue_scores(sm, st, s);
  release_queries(sm, st);
  wait_scores(sm, st, s);
  softmax_tile(args, sm, st, s, tile);
#pragma unroll 1
  for (int t = 1; t < count; ++t) {
    tile = issue_scores(sm, st, s);
    wait_scores(sm, st, s);
    softmax_tile(args, sm, st, s, tile);
  }
}

// Sums of the two rows -> LSE in global memory, inverse sums for the output warpgroups.
template <class C>
__device__ __forceinline__ void finish_unit(const Args& args, Storage<C>& sm, Scores<C>& st,
                                            const Item& item, uint32_t phase, int rank) {
  barrier_wait(&sm.epilogue_empty, phase ^ 1);
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    float sum = st.sum[r];
    sum += __shfl_xor_sync(~0u, sum, 1);
    sum += __shfl_xor_sync(~0u, sum, 2);
    const int row = st.warp * 16 + st.lane / 4 + 8 * r;
    if (st.lane % 4 != 0) continue;
    sm.inverse_sum[row] = sum == 0.0f ? 0.0f : 1.0f / sum;  // NaN stays NaN
    const float base = st.max[r] == -INFINITY ? 0.0f : st.max[r];
    const float lse = sum == 0.0f ? -INFINITY : base + log2f(sum);
    if (row >= item.num_rows) continue;
    if (item.partial_slot < 0) {
      args.lse[item.flat_row + row] = lse * LN_2;
    } else {
      const int64_t first = (int64_t{item.partial_slot} * C::CLUSTER + rank) * BLOCK_M;
      args.partial_lse[first + row] = lse;
    }
  }
  __syncwarp();
  if (st.lane == 0) barrier_arrive(&sm.epilogue_full);
}

template <class C>
__device__ __forceinline__ Item read_item(const Storage<C>& sm) {
  Item item = sm.item;
  item.num_tiles = uniform(item.num_tiles);
  item.partial_slot = uniform(item.partial_slot);
  item.last = uniform(item.last);
  return item;
}

template <class C>
__device__ __forceinline__ void scores_warpgroup(const Args& args, Storage<C>& sm, int rank,
                                                 int thread) {
  Scores<C> st;
  st.warp = thread / 32;
  st.lane = thread % 32;
  st.fragment = (st.warp * 16 + (st.lane / 8 % 2) * 8 + st.lane % 8) * 128;
  for (uint32_t phase = 0;; phase ^= 1) {
    barrier_wait(&sm.q_full, phase);
    const int num_tiles = uniform(sm.item.num_tiles);
    if (num_tiles > 0) load_query_registers(sm, st);
    st.max[0] = st.max[1] = -INFINITY;
    st.sum[0] = st.sum[1] = 0.0f;
    st.first_pos = sm.item.first_pos;
    const int row = sm.item.head0 + st.warp * 16 + st.lane / 4;
    st.pos[0] = st.first_pos + row / args.num_heads;
    st.pos[1] = st.first_pos + (row + 8) / args.num_heads;
    run_tiles(args, sm, st, num_tiles);
    const Item item = read_item(sm);  // read again: kept, it would cost registers in the loop
    __syncwarp();
    if (st.lane == 0) barrier_arrive(&sm.q_empty);
    finish_unit(args, sm, st, item, phase, rank);
    if (item.last) return;
  }
}

// ----------------------------------------------------------------------------------------- output

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
  const int64_t first = (int64_t{item.partial_slot} * C::CLUSTER + rank) * BLOCK_M;
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
                                         uint32_t p_phase, int row, int lane, bool first) {
  const uint32_t p = opaque(k_major_descriptor(smem_address(sm.p)));
  const uint32_t v = opaque(mn_major_descriptor(smem_address(sm.pairs)));
  barrier_wait(&sm.p_full, p_phase);
  if (!first) {
    const float factor0 = sm.p_scale[row], factor1 = sm.p_scale[row + 8];
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
  cute::warpgroup_wait<1>();
  if (lane == 0) barrier_arrive_all<C::CLUSTER>(&sm.pair_empty[pairs.slot]);
  cute::warpgroup_wait<0>();
  fence_registers(o[0]);
  fence_registers(o[1]);
  if (lane == 0) barrier_arrive_all<C::CLUSTER>(&sm.pair_empty[second.slot]);
  pairs.advance(TILE_PAIRS);
}

// The output of 256 of the 512 columns: `half` 0 takes every tile's first two pairs of slabs.
template <class C>
__device__ __forceinline__ void output_warpgroup(const Args& args, Storage<C>& sm, int half,
                                                 int rank, int thread) {
  const int lane = thread % 32;
  const int row = thread / 32 * 16 + lane / 4;
  Ring<C::PAIRS> pairs;
  uint32_t p_phase = 0;
  float o[2][64];  // columns 0..127 and 128..255 of this half
  pairs.advance(half * TILE_PAIRS / 2);
#pragma unroll 1
  for (uint32_t phase = 0;; phase ^= 1) {
    barrier_wait(&sm.q_full, phase);
    const Item item = read_item(sm);
    __syncwarp();
    if (lane == 0) barrier_arrive(&sm.q_empty);
    if (item.num_tiles > 0) pairs.advance(C::Q_PAIRS);
#pragma unroll 1
    for (int t = 0; t < item.num_tiles; ++t) {
      add_tile(sm, o, pairs, p_phase, row, lane, t == 0);
      __syncwarp();
      if (lane == 0) barrier_arrive(&sm.p_empty);
      p_phase ^= 1;
    }
    barrier_wait(&sm.epilogue_full, phase);
    const float inverse[2] = {sm.inverse_sum[row], sm.inverse_sum[row + 8]};
    __syncwarp();
    if (lane == 0) barrier_arrive(&sm.epilogue_empty);
    if (item.partial_slot < 0) {
      store_complete<C>(args, item, o, inverse, row, half * 256, lane);
    } else {
      store_partial<C>(args, item, o, inverse, row, half * 256, lane, rank);
    }
    if (item.last) return;
  }
}

// ----------------------------------------------------------------------------------------- kernel

template <class C>
__device__ __forceinline__ void helper_warpgroup(const Args& args, Storage<C>& sm, int worker,
                                                 int rank, int thread) {
  const Work work(args.boundaries, worker);
  const int warp = __shfl_sync(~0u, thread / 32, 0);
  if (warp == 0) {
    key_warp<C>(args, sm, work, rank, thread % 32);
  } else if (warp == 1) {
    if (thread % 32 == 0) query_warp<C>(args, sm, work, worker, rank);
    __syncwarp();
  } else {
    transform_warps<C>(args, sm, work, thread - 64);
  }
}

template <class C>
__device__ __forceinline__ void sync_cluster() {
  if constexpr (C::CLUSTER == 1) {
    __syncthreads();
  } else {
    cute::cluster_arrive();
    cute::cluster_wait();
  }
}

template <class C>
__global__ void __launch_bounds__(C::THREADS, 1)
    mla_attention_kernel(const __grid_constant__ Args args) {
  extern __shared__ __align__(1024) uint8_t smem[];
  auto& sm = *reinterpret_cast<Storage<C>*>(smem);
  const int rank = C::CLUSTER == 1 ? 0 : static_cast<int>(cute::block_rank_in_cluster());
  const int worker = blockIdx.x / C::CLUSTER;
  // The CTAs of a cluster share a worker; rank tells their rows apart.
  const int warpgroup = __shfl_sync(~0u, threadIdx.x / 128, 0);
  const int thread = threadIdx.x % 128;
  if (threadIdx.x == 0) init_barriers(sm);
  sync_cluster<C>();
  wait_for_previous_kernel();
  // Only now: the combination reads the plan before it waits for this kernel's end.
  if (threadIdx.x == 0) let_next_kernel_start();
  if (warpgroup == 0) {
    cutlass::arch::warpgroup_reg_alloc<C::SCORES_REGISTERS>();
    scores_warpgroup<C>(args, sm, rank, thread);
  } else if (warpgroup == 3) {
    cutlass::arch::warpgroup_reg_dealloc<C::HELPER_REGISTERS>();
    helper_warpgroup<C>(args, sm, worker, rank, thread);
  } else {
    cutlass::arch::warpgroup_reg_alloc<C::OUTPUT_REGISTERS>();
    output_warpgroup<C>(args, sm, warpgroup - 1, rank, thread);
  }
  // A CTA must outlive the copies and arrivals its neighbours still send to it.
  if constexpr (C::CLUSTER > 1) sync_cluster<C>();
}

}  // namespace irminsul::mla
