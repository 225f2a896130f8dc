// What the warpgroups of mla_attention_kernel share: variants, arguments, shared memory, barriers.
// Knows who waits for whom; computes and copies nothing.
#pragma once

#include <cuda.h>
#include <cuda_bf16.h>

#include "rope_delta.cuh"
#include "sm90.cuh"

namespace irminsul::mla {


// CLUSTER CTAs share every key tile by TMA multicast, each with its own 64 rows.
// Q_SLABS: slabs of Q that live in registers of the scores warpgroup, the rest in shared memory.
template <int CLUSTER_, int PAIRS_, int ROPES_, int Q_SLABS_>
struct Config {
  static constexpr int CLUSTER = CLUSTER_;
  static constexpr int PAIRS = PAIRS_;
  static constexpr int ROPES = ROPES_;
  static constexpr int Q_SLABS = Q_SLABS_;
  static constexpr int Q_SHARED_SLABS = HEAD_DIM / SLAB_DIM - Q_SLABS;
  static constexpr int Q_PAIRS = Q_SLABS / PAIR_SLABS;
  static constexpr int THREADS = 512;
  static constexpr int SCORES_REGISTERS = 152;
  static constexpr int OUTPUT_REGISTERS = 160;
  static constexpr int HELPER_REGISTERS = 40;
  // Five slabs fit the registers, but a ring slot half full of Q gave wrong rows (docs/kernel.md).
  static_assert(Q_SLABS % PAIR_SLABS == 0, "Q takes whole slots of the ring");
};
using Streaming = Config<1, 10, 2, 4>;  // one block of rows to a sequence: memory bound
using Shared2 = Config<2, 10, 2, 4>;    // several: tensor bound, two CTAs share the keys

struct Args {
  CUtensorMap keys;     // [pages][slabs][64 rows][64 columns], box of a pair of slabs or one of it
  CUtensorMap ropes;    // the same tensor, box of a k_r slab or half of one
  CUtensorMap queries;  // [slabs][total_q * heads][64 columns], box of one slab
  const Boundary* boundaries;  // [num_workers + 1]
  const Unit* units;           // [num_units]
  const Tile* tiles;           // [num_tiles]
  const float* cos_sin;        // [max_pos, 64]
  __nv_bfloat16* out;          // [total_q * heads, 512]
  float* lse;                  // [total_q * heads]
  float* partial_out;          // [2 * num_workers, BLOCK_M * cluster, 512]
  float* partial_lse;          // [2 * num_workers, BLOCK_M * cluster], base 2
  uint64_t key_policy;
  float scale_log2;
  int num_heads;
  int num_positions;
  int interleaved;
};

// What the scores and output warpgroups must know of one unit; written by the query warp.
struct Item {
  int flat_row;
  int num_rows;
  int head0;
  int first_pos;
  int num_tiles;
  int partial_slot;  // -1: the result is complete
  int last;
};

// What goes with one key tile; written by the key warp.
struct TileInfo {
  int bounds;
  int delta;
  int pos0;
  int first;  // first tile of its unit: query slabs stand before it in the ring
};

constexpr uint32_t FULL_PAGE = PAGE_SIZE << 16;
constexpr float LN_2 = 0.693147180559945309f;
// The running maximum follows only when it grows by more than this (in powers of two): the output
// then hardly ever has to be rescaled, and the sums stay far from overflow.
constexpr float RESCALE_THRESHOLD = 8.0f;

template <class C>
struct Storage {
  alignas(1024) uint8_t q[C::Q_SHARED_SLABS][SLAB_BYTES];
  alignas(1024) uint8_t p[SLAB_BYTES];
  alignas(1024) uint8_t pairs[C::PAIRS][PAIR_BYTES];
  alignas(1024) uint8_t ropes[C::ROPES][SLAB_BYTES];
  alignas(16) float angles[C::ROPES][ROPE_DIM];
  TileInfo tiles[C::ROPES];
  float p_scale[BLOCK_M];
  float inverse_sum[BLOCK_M];
  Item item;
  uint64_t pair_full[C::PAIRS], pair_empty[C::PAIRS];
  uint64_t rope_full[C::ROPES], rope_ready[C::ROPES], rope_empty[C::ROPES];
  uint64_t tile_full[C::ROPES];  // the scores warpgroup has seen all pairs of the tile arrive
  uint64_t p_full, p_empty;
  uint64_t q_full, q_empty, epilogue_full, epilogue_empty;
};

template <class C>
__device__ __forceinline__ void init_barriers(Storage<C>& sm) {
  using cutlass::arch::ClusterBarrier;
  for (int i = 0; i < C::PAIRS; ++i) {
    ClusterBarrier::init(&sm.pair_full[i], 1);
    ClusterBarrier::init(&sm.pair_empty[i], 4 * C::CLUSTER);
  }
  for (int i = 0; i < C::ROPES; ++i) {
    ClusterBarrier::init(&sm.rope_full[i], 1);
    ClusterBarrier::init(&sm.rope_ready[i], TRANSFORM_THREADS / 32);
    ClusterBarrier::init(&sm.rope_empty[i], 4 * C::CLUSTER);
    ClusterBarrier::init(&sm.tile_full[i], 4);
  }
  ClusterBarrier::init(&sm.p_full, 4);
  ClusterBarrier::init(&sm.p_empty, 8);
  ClusterBarrier::init(&sm.q_full, 1);
  ClusterBarrier::init(&sm.q_empty, 12);
  ClusterBarrier::init(&sm.epilogue_full, 4);
  ClusterBarrier::init(&sm.epilogue_empty, 8);
  cutlass::arch::fence_barrier_init();
}

// The units of one worker and the tiles of each that are its own.
struct Work {
  Boundary begin, end;
  int last_unit;

  __device__ __forceinline__ explicit Work(const Boundary* boundaries, int worker) {
    begin = boundaries[worker];
    end = boundaries[worker + 1];
    last_unit = end.tile > 0 ? end.unit : end.unit - 1;
  }
  __device__ __forceinline__ bool empty() const {
    return begin.unit == end.unit && begin.tile == end.tile;
  }
  __device__ __forceinline__ int first_tile(int unit) const {
    return unit == begin.unit ? begin.tile : 0;
  }
  __device__ __forceinline__ int end_tile(int unit, int num_tiles) const {
    return unit == end.unit ? end.tile : num_tiles;
  }
};

}  // namespace irminsul::mla
