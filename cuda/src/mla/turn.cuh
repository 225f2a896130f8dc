// The tiles of a batch -> their k_r, turned, in slabs of their own: once for many query rows.
// Knows pages and angles; nothing of attention.
#pragma once

#include <cuda_bf16.h>

#include "common/launch.cuh"
#include "rope_delta.cuh"

namespace irminsul::mla {

constexpr int TURN_THREADS = 128;
constexpr int TURN_BLOCKS_PER_SM = 8;

struct TurnArgs {
  const uint8_t* cache;       // pages of 64 rows of 576 bf16
  const Tile* tiles;          // [num_tiles]
  const int32_t* tile_start;  // [num_rows]
  const int32_t* tile_count;  // [num_rows]
  const float* cos_sin;       // [num_positions, 64]
  uint8_t* slabs;             // [num_tiles][64][64] bf16: slab i is for tile i
  int64_t page_stride;
  int32_t num_positions, interleaved;
};

// What one thread turns of a row: 16-byte chunks c and c + 4, so eight pairs of columns. They are
// 4c .. 4c + 3 and 16 + 4c .. when interleaved, 8c .. 8c + 7 when half-split.
struct TwoRotations {
  Rotation first, second;
};

__device__ __forceinline__ TwoRotations read_rotations(const TurnArgs& a, int delta, int chunk) {
  if (!in_table(delta, a.num_positions)) return {no_rotation(), no_rotation()};
  const float* angles = a.cos_sin + int64_t{delta < 0 ? -delta : delta} * ROPE_DIM;
  // read_rotation takes the four pairs 4 (thread / 8) ..
  const int part = a.interleaved ? chunk : 2 * chunk;
  const int next = a.interleaved ? chunk + 4 : part + 1;
  return {read_rotation(angles, delta, 8 * part), read_rotation(angles, delta, 8 * next)};
}

__device__ __forceinline__ void turn_tile(const TurnArgs& a, const Tile& tile, uint8_t* slab) {
  const int chunk = threadIdx.x % 4;
  const TwoRotations r = read_rotations(a, tile.delta, chunk);
  const uint8_t* page = a.cache + tile.page * a.page_stride + LATENT_DIM * 2;
#pragma unroll
  for (int row = threadIdx.x / 4; row < PAGE_SIZE; row += TURN_THREADS / 4) {
    const auto* from = reinterpret_cast<const uint4*>(page + row * HEAD_DIM * 2);
    auto* to = reinterpret_cast<uint4*>(slab + row * ROPE_DIM * 2);
    uint4 x = from[chunk], y = from[chunk + 4];
    if (a.interleaved) {
      turn_pairs(x, r.first), turn_pairs(y, r.second);
    } else {
      turn_halves(x.x, x.y, y.x, y.y, r.first), turn_halves(x.z, x.w, y.z, y.w, r.second);
    }
    to[chunk] = x, to[chunk + 4] = y;
  }
}

// Block (x, y) takes every gridDim.x-th tile of row y. Tiles that do not turn have no slab.
__global__ void __launch_bounds__(TURN_THREADS) mla_turn_kernel(const TurnArgs a) {
  wait_for_previous_kernel();
  let_next_kernel_start();
  const int count = a.tile_count[blockIdx.y];
  for (int t = blockIdx.x; t < count; t += gridDim.x) {
    const int64_t at = int64_t{a.tile_start[blockIdx.y]} + t;
    const Tile tile = a.tiles[at];
    if (tile.delta != 0) turn_tile(a, tile, a.slabs + at * SLAB_BYTES);
  }
}

}  // namespace irminsul::mla
