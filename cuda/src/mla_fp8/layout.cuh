// What the warpgroups of the fp8 attention kernel share: variants, arguments, shared memory, work.
// Knows who waits for whom; computes and copies nothing.
#pragma once

#include <cuda.h>
#include <cuda_bf16.h>

#include "mla/config.h"
#include "mla/rope_delta.cuh"
#include "mla/sm90.cuh"

namespace irminsul::mla::fp8 {

// A row of the cache: 512 e4m3 numbers of c_KV, four fp32 factors (one for 128 numbers), 64 bf16
// numbers of k_r.
constexpr int SCALE_GROUP = 128;
constexpr int NUM_GROUPS = LATENT_DIM / SCALE_GROUP;
constexpr int SCALES_AT = LATENT_DIM;
constexpr int ROPE_AT = SCALES_AT + NUM_GROUPS * 4;
constexpr int ROW_BYTES = ROPE_AT + ROPE_DIM * 2;
static_assert(ROW_BYTES == 656, "the row that the C ABI documents");
static_assert(SCALE_GROUP == PAIR_SLABS * SLAB_DIM && NUM_GROUPS == TILE_PAIRS,
              "a pair of slabs has one factor a row");

constexpr int RAW_BYTES = PAGE_SIZE * SCALE_GROUP;  // a page's e4m3 numbers of one group
constexpr int SCALES_BYTES = PAGE_SIZE * NUM_GROUPS * 4;
constexpr int THREADS = 512;

// Group of the i-th slot that a tile takes in a ring: the output's halves take turns, so that both
// give slots back from the start.
__host__ __device__ constexpr int group_of(int i) { return i % 2 * 2 + i / 2; }

// N: query rows (token x head) of a block. STREAMS: scores warpgroups, which take the tiles of a
// part in turn; two leave one warpgroup for the output, and each has maxima, sums and an output of
// its own, added up at the end of a part. RAW, PAIRS, ROPES, PS: slots of the rings of e4m3 groups,
// of bf16 slab pairs, of k_r slabs and (for each stream) of P.
template <int N_, int STREAMS_, int RAW_, int PAIRS_, int ROPES_, int PS_, int SCORES_REGISTERS_,
          int OUTPUT_REGISTERS_>
struct Config {
  static constexpr int N = N_;
  static constexpr int STREAMS = STREAMS_;
  static constexpr int OUTPUTS = 3 - STREAMS;  // output warpgroups
  static constexpr int RAW = RAW_;
  static constexpr int PAIRS = PAIRS_;
  static constexpr int ROPES = ROPES_;
  static constexpr int PS = PS_;
  static constexpr int SCORES_REGISTERS = SCORES_REGISTERS_;
  static constexpr int OUTPUT_REGISTERS = OUTPUT_REGISTERS_;
  static constexpr int HELPER_REGISTERS = 40;
  // A slot of factors is free once the last group of its tile has been read from the raw ring.
  static constexpr int SCALES = (RAW + 2 * TILE_PAIRS - 2) / TILE_PAIRS;
  static constexpr int Q_SLAB_BYTES = N * SLAB_DIM * 2;
  static constexpr int COLUMNS = N / 4;  // columns of S^T that one thread holds
  static constexpr int OUT_PAIRS = TILE_PAIRS / OUTPUTS;  // slab pairs of one output warpgroup
};
using Narrow = Config<16, 2, 7, 8, 2, 1, 152, 160>;
using Middle = Config<32, 1, 8, 6, 2, 2, 168, 136>;
using Wide = Config<64, 1, 5, 5, 2, 1, 152, 160>;

struct Args {
  CUtensorMap rows;    // [pages][64 rows][656 bytes], box of 64 x 128 bytes
  CUtensorMap scales;  // the same tensor, box of 64 x 16 bytes
  const Boundary* boundaries;  // [num_workers + 1]
  const Unit* units;           // [num_units]
  const Tile* tiles;           // [num_tiles]
  const float* cos_sin;        // [max_pos, 64]
  const __nv_bfloat16* q;      // [total_q * heads, 576]
  __nv_bfloat16* out;          // [total_q * heads, 512]
  float* lse;                  // [total_q * heads]
  float* partial_out;          // [2 * num_workers, BLOCK_M, 512]
  float* partial_lse;          // [2 * num_workers, BLOCK_M], base 2
  uint64_t key_policy;
  float scale_log2;
  int num_heads;
  int num_positions;
  int interleaved;
};

struct TileInfo {
  int bounds, delta, pos0;
};

constexpr uint32_t FULL_PAGE = PAGE_SIZE << 16;
constexpr float LN_2 = 0.693147180559945309f;
// The running maximum follows only when it grows by more than this (in powers of two).
constexpr float RESCALE_THRESHOLD = 8.0f;

template <class C>
struct Storage {
  alignas(1024) uint8_t q[HEAD_DIM / SLAB_DIM][C::Q_SLAB_BYTES];
  alignas(1024) uint8_t p[C::STREAMS * C::PS][C::Q_SLAB_BYTES];
  alignas(1024) uint8_t pairs[C::PAIRS][PAIR_BYTES];
  alignas(1024) uint8_t ropes[C::ROPES][SLAB_BYTES];
  alignas(1024) uint8_t raw[C::RAW][RAW_BYTES];
  alignas(128) float scales[C::SCALES][PAGE_SIZE][NUM_GROUPS];
  alignas(16) float angles[C::ROPES][ROPE_DIM];
  int key_bounds[C::SCALES];       // of the tile whose factors are in the slot
  TileInfo rope_tiles[C::ROPES];   // of the tile whose k_r is in the slot
  alignas(8) int row_pos[C::N];    // position of each query row's token
  float of_warps[C::STREAMS][4][C::N];            // maxima, and at the end of a part sums
  alignas(8) float column_max[C::STREAMS][C::N];  // running maxima of S^T's columns
  alignas(8) float p_scale[C::STREAMS * C::PS][C::N];
  alignas(8) float weight[C::STREAMS][C::N];  // factor on a stream's output at the end of a part
  int rescale[C::STREAMS * C::PS];            // whether p_scale says anything but 1
  uint64_t raw_full[C::RAW], raw_empty[C::RAW];
  uint64_t rope_full[C::ROPES], rope_ready[C::ROPES], rope_empty[C::ROPES];
  uint64_t pair_empty[C::PAIRS];
  uint64_t p_full[C::STREAMS * C::PS], p_empty[C::STREAMS * C::PS];
  uint64_t epilogue_full, epilogue_empty;
};

template <int SLOTS>
__device__ __forceinline__ void init_ring(uint64_t (&barriers)[SLOTS], int warps) {
  for (uint64_t& barrier : barriers) init_for_warps(&barrier, warps);
}

template <class C>
__device__ __forceinline__ void init_barriers(Storage<C>& sm) {
  using cutlass::arch::ClusterBarrier;
  for (uint64_t& barrier : sm.raw_full) ClusterBarrier::init(&barrier, 1);
  for (uint64_t& barrier : sm.rope_full) ClusterBarrier::init(&barrier, 1);
  init_ring(sm.raw_empty, 4);
  init_ring(sm.rope_ready, TRANSFORM_THREADS / 32);
  init_ring(sm.rope_empty, 4);
  init_ring(sm.pair_empty, 4);
  init_ring(sm.p_full, 4);
  init_ring(sm.p_empty, 4 * C::OUTPUTS);
  init_for_warps(&sm.epilogue_full, 4);
  init_for_warps(&sm.epilogue_empty, 4 * C::OUTPUTS);
  cutlass::arch::fence_barrier_init();
}

// Up to N query rows and a run of the key tiles of their unit.
struct Part {
  int flat_row;      // first row in q viewed as [total_q * heads, 576]
  int num_rows;      // valid rows
  int head0;         // head of the first row
  int first_pos;     // position of the first row's token
  int tile_at;       // index of the first tile in the tile table
  int num_tiles;
  int partial_row;   // row of the partial results, -1 when the result is complete
};

// Which part of a worker's work comes next: unit and first row in it. All warpgroups keep the same
// order; a unit with more than N rows is gone through once for each N of them.
struct Place {
  int unit, row;
  __device__ __forceinline__ bool valid() const { return unit >= 0; }
};

__device__ __forceinline__ Place first_place(const Args& args, int worker) {
  const Boundary* at = args.boundaries + worker;
  const int unit = uniform(at[0].unit), end_unit = uniform(at[1].unit);
  const bool empty = uniform(at[1].tile) > 0 ? unit > end_unit : unit >= end_unit;
  return {empty ? -1 : unit, 0};
}

template <int N>
__device__ __forceinline__ Place next_place(const Args& args, int worker, Place place) {
  const Boundary& end = args.boundaries[worker + 1];
  if (place.row + N < uniform(args.units[place.unit].num_rows)) return {place.unit, place.row + N};
  const int last = uniform(end.tile) > 0 ? uniform(end.unit) : uniform(end.unit) - 1;
  return {place.unit < last ? place.unit + 1 : -1, 0};
}

// Read again where it is needed: kept over a loop of tiles, it would cost registers there.
template <int N>
__device__ __forceinline__ Part read_part(const Args& args, int worker, Place place) {
  const Boundary* at = args.boundaries + worker;
  const Unit unit = args.units[place.unit];
  const int first = place.unit == at[0].unit ? at[0].tile : 0;
  const int end = place.unit == at[1].unit ? at[1].tile : unit.num_tiles;
  const int slot = first > 0 ? 2 * worker : end < unit.num_tiles ? 2 * worker + 1 : -1;
  const int head = unit.head0 + place.row;
  Part part;
  part.flat_row = unit.flat_row + place.row;
  part.num_rows = min(unit.num_rows - place.row, N);
  part.head0 = head % args.num_heads;
  part.first_pos = unit.first_pos + head / args.num_heads;
  part.tile_at = unit.tile0 + first;
  part.num_tiles = uniform(end - first);
  part.partial_row = slot < 0 ? -1 : uniform(slot) * BLOCK_M + place.row;
  return part;
}

}  // namespace irminsul::mla::fp8
