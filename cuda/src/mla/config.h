// The numbers and plain structs that the host code and the kernels of mla_attention share.
// Knows nothing of CuTe, of scheduling policy or of the C ABI.
#pragma once

#include <cstdint>

namespace irminsul::mla {

constexpr int PAGE_SIZE = 64;     // token slots of a physical page; also the keys of one tile
constexpr int LATENT_DIM = 512;   // c_KV: first part of the key, and the value
constexpr int ROPE_DIM = 64;      // k_r: the part of the key that carries the position
constexpr int HEAD_DIM = LATENT_DIM + ROPE_DIM;
constexpr int BLOCK_M = 64;       // (query token x head) rows of one block
constexpr int SLAB_DIM = 64;      // columns of one 128-byte wide shared memory slab
constexpr int SLAB_BYTES = PAGE_SIZE * SLAB_DIM * 2;
constexpr int PAIR_SLABS = 2;     // what one ring slot holds and one wgmma of 128 columns reads
constexpr int PAIR_BYTES = PAIR_SLABS * SLAB_BYTES;
constexpr int TILE_PAIRS = LATENT_DIM / (PAIR_SLABS * SLAB_DIM);

// One entry of the tile table; the memory layout of IrmMlaTile.
struct Tile {
  int32_t page;
  int32_t bounds;  // lo | hi << 16: token slots [lo, hi) of the page
  int32_t delta;   // rotation still to be applied to k_r, in positions
  int32_t pos0;    // logical position of slot lo
};

// One block of query rows (BLOCK_M per CTA of a cluster) and the keys it sees.
struct Unit {
  int32_t flat_row;   // first row in q viewed as [total_q * heads, 576]
  int32_t num_rows;   // valid rows, at most BLOCK_M * cluster
  int32_t head0;      // head of the first row
  int32_t first_pos;  // position of the first row's token
  int32_t tile0;      // index of the first tile in the tile table
  int32_t num_tiles;  // tiles at or below the diagonal of the unit's last row
  int32_t unused[2];
};
static_assert(sizeof(Unit) == 32, "loaded as two 16-byte words");

// Where a worker (the CTAs of a cluster) starts: tile `tile` of unit `unit`. Worker w ends where w + 1
// starts, and takes its last unit first. The rest repeats what that unit says, so that the first
// loads need not wait for it.
struct Boundary {
  int32_t unit;
  int32_t tile;
  int32_t total_tiles;  // tiles of all of this worker's units together
  int32_t first_tiles;  // of its last unit: tiles that are its own
  int32_t tile_at;      // of its last unit: index of the first of them in the tile table
  int32_t flat_row;     // of its last unit
  int32_t unused[2];
};
static_assert(sizeof(Boundary) == 32, "loaded as two 16-byte words");

// A unit that more than one worker computes: partial results to be combined.
struct Split {
  int32_t flat_row;
  int32_t num_rows;
  int32_t worker;  // the first one; its partial is slot 2w + 1, the next ones' are 2(w + i)
  int32_t count;
};
static_assert(sizeof(Split) == 16, "loaded as one 16-byte word");

// Head of the plan buffer; the arrays follow, see plan_layout().
struct PlanHeader {
  int32_t num_units;
  int32_t num_splits;
  int32_t num_workers;
  int32_t cluster;
  int32_t split_rows;  // rows of the longest split unit
};

// Byte offsets of the arrays inside a plan buffer.
struct PlanLayout {
  uint64_t boundaries;  // [num_workers + 1] Boundary
  uint64_t splits;      // [num_workers] Split
  uint64_t row_units;   // [num_rows + 2] int32: units of the rows before
  uint64_t units;       // [max_units] Unit
  uint64_t costs;       // [max_units + 1] int64: cost of the units before
  uint64_t bytes;
};

inline uint64_t align_up(uint64_t bytes) { return (bytes + 127) & ~uint64_t{127}; }

inline int64_t max_units(int64_t total_q, int64_t num_rows, int64_t num_heads, int cluster) {
  return total_q * num_heads / (BLOCK_M * cluster) + num_rows + 2;
}

inline PlanLayout plan_layout(int64_t num_rows, int64_t units, int num_workers) {
  PlanLayout at{};
  at.boundaries = align_up(sizeof(PlanHeader));
  at.splits = at.boundaries + align_up((num_workers + 1) * sizeof(Boundary));
  at.row_units = at.splits + align_up(num_workers * sizeof(Split));
  at.units = at.row_units + align_up((num_rows + 2) * sizeof(int32_t));
  at.costs = at.units + align_up(units * sizeof(Unit));
  at.bytes = at.costs + align_up((units + 1) * sizeof(int64_t));
  return at;
}

}  // namespace irminsul::mla
