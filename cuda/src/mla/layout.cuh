// What the warpgroups of mla_attention_kernel share: variants, arguments, shared memory, barriers.
// Knows who waits for whom; computes and copies nothing.
#pragma once

#include <cuda.h>
#include <cuda_bf16.h>

#include "rope_delta.cuh"
#include "sm90.cuh"

namespace irminsul::mla {

// LATE: P V of a tile begins when much of the next tile's S has been issued, the right half after
// the left one, so that the tensor cores have work during the softmax.
template <bool LATE_>
struct Config {
  static constexpr bool LATE = LATE_;
  static constexpr int PAIRS = 10;  // ring slots: two and a half tiles
  static constexpr int ROPES = 2;
  static constexpr int PS = LATE ? 2 : 1;       // buffers of P
  static constexpr int Q_SLABS = LATE ? 5 : 4;  // of Q in registers of the scores warpgroup
  static constexpr int Q_SHARED_SLABS = HEAD_DIM / SLAB_DIM - Q_SLABS;
  static constexpr int Q_PAIRS = (Q_SLABS + PAIR_SLABS - 1) / PAIR_SLABS;
  static constexpr int HANDED_AT = 22;  // products of the next S issued before P is handed over
  static_assert((HANDED_AT >= 8 && HANDED_AT < 16) || (HANDED_AT >= 20 && HANDED_AT < 36),
                "a product with a pair, after P has been stored");
  static constexpr int THREADS = 512;
  static constexpr int SCORES_REGISTERS = 152;
  static constexpr int OUTPUT_REGISTERS = 160;
  static constexpr int HELPER_REGISTERS = 40;
};
using Streaming = Config<false>;  // one block of rows to a sequence: memory bound
using Shared = Config<true>;      // several: tensor bound

struct Args {
  CUtensorMap keys;     // [pages][slabs][64 rows][64 columns], box of a pair of slabs
  CUtensorMap ropes;    // the same tensor, box of a k_r slab
  CUtensorMap turned;   // [tiles][64 rows][64 columns], box of a slab: k_r of tiles that turn
  CUtensorMap queries;  // [slabs][total_q * heads][64 columns], box of one slab
  const Boundary* boundaries;  // [num_workers + 1]
  const Unit* units;           // [num_units]
  const Tile* tiles;           // [num_tiles]
  const float* cos_sin;        // [max_pos, 64]
  __nv_bfloat16* out;          // [total_q * heads, 512]
  float* lse;                  // [total_q * heads]
  float* partial_out;          // [2 * num_workers, blocks, BLOCK_M, 512]
  float* partial_lse;          // [2 * num_workers, blocks, BLOCK_M], base 2
  uint64_t key_policy;
  float scale_log2;
  int blocks;  // CTAs that take a unit's rows, 64 each, and read its keys at the same time
  int num_heads;
  int num_positions;
  int interleaved;
  int has_turned;  // tiles that turn have a slab in `turned`; nothing is left to turn here
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

// What goes with one key tile; written by the warp that loads its k_r.
struct TileInfo {
  int bounds;
  int delta;  // still to be applied: to k_r, or to the queries' rotary slab
  int pos0;
  int flags;
};

constexpr int FIRST_TILE = 1;       // of its unit: query slabs stand before it in the ring
constexpr int TURN_QUERIES = 2;     // delta is the queries', from how they came
constexpr int RESTORE_QUERIES = 4;  // as they came; delta is k_r's
constexpr int QUERY_PHASE = 8;      // parity of q_full that tells of the unit's queries
// Tiles of one delta from which the queries are turned back for all of them, instead of each k_r.
constexpr int MIN_RUN = 5;

constexpr uint32_t FULL_PAGE = PAGE_SIZE << 16;
constexpr float LN_2 = 0.693147180559945309f;
// The running maximum follows only when it grows by more than this (in powers of two): the output
// then hardly ever has to be rescaled, and the sums stay far from overflow.
constexpr float RESCALE_THRESHOLD = 4.0f;
constexpr float LARGEST_SUM = 256.0f;  // of 16 numbers of P, each at most 2^RESCALE_THRESHOLD

template <class C>
struct Storage {
  alignas(1024) uint8_t q[C::Q_SHARED_SLABS][SLAB_BYTES];
  alignas(1024) uint8_t p[C::PS][SLAB_BYTES];
  alignas(1024) uint8_t pairs[C::PAIRS][PAIR_BYTES];
  alignas(1024) uint8_t ropes[C::ROPES][SLAB_BYTES];
  alignas(16) float angles[C::ROPES][ROPE_DIM];
  TileInfo tiles[2 * C::ROPES];  // see tile_info
  float p_scale[C::PS][BLOCK_M];
  float inverse_sum[BLOCK_M];
  int positions[BLOCK_M];  // of the rows' tokens
  Item item;
  uint64_t pair_full[C::PAIRS], pair_empty[C::PAIRS];
  uint64_t rope_full[C::ROPES], rope_ready[C::ROPES], rope_empty[C::ROPES];
  uint64_t tile_full[C::ROPES];   // the scores warpgroup has seen all pairs of the tile arrive
  // Of a tile's P; with LATE the transform warps hand it over too, when foreign rows are zero.
  uint64_t p_full[C::PS], p_empty[C::PS], left_begun[C::PS];
  uint64_t q_full, q_empty, q_again, epilogue_full, epilogue_empty;
};

// What goes with the k_r slab in a slot. The slot's next tile is told beside it, not over it: an arrival
// that gives the slot back does not wait for loads of the scores warps that are still under way.
template <class C>
__device__ __forceinline__ TileInfo& tile_info(Storage<C>& sm, const Ring<C::ROPES>& ring) {
  return sm.tiles[ring.phase * C::ROPES + ring.slot];
}

template <class C>
__device__ __forceinline__ void init_barriers(Storage<C>& sm) {
  using cutlass::arch::ClusterBarrier;
  for (int i = 0; i < C::PAIRS; ++i) {
    ClusterBarrier::init(&sm.pair_full[i], 1);
    init_for_warps(&sm.pair_empty[i], 4);
  }
  for (int i = 0; i < C::ROPES; ++i) {
    ClusterBarrier::init(&sm.rope_full[i], 1);
    init_for_warps(&sm.rope_ready[i], TRANSFORM_THREADS / 32);
    init_for_warps(&sm.rope_empty[i], 4);
    init_for_warps(&sm.tile_full[i], 4);
  }
  for (int i = 0; i < C::PS; ++i) {
    init_for_warps(&sm.p_full[i], C::LATE ? 4 + TRANSFORM_THREADS / 32 : 4);
    init_for_warps(&sm.p_empty[i], 8);
    init_for_warps(&sm.left_begun[i], 4);
  }
  ClusterBarrier::init(&sm.q_full, 1);
  ClusterBarrier::init(&sm.q_again, 1);
  init_for_warps(&sm.q_empty, 12);
  init_for_warps(&sm.epilogue_full, 4);
  init_for_warps(&sm.epilogue_empty, 8);
  cutlass::arch::fence_barrier_init();
}

template <class C>
__device__ __forceinline__ Item read_item(const Storage<C>& sm) {
  Item item = sm.item;
  item.num_tiles = uniform(item.num_tiles);
  item.partial_slot = uniform(item.partial_slot);
  item.last = uniform(item.last);
  return item;
}

// The units of one worker and the tiles of each that are its own.
struct Work {
  Boundary begin, end;
  int last_unit;

  // at: the worker's boundary, the next one's behind it.
  __device__ __forceinline__ explicit Work(const Boundary* at) {
    begin = at[0];
    end = at[1];
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
