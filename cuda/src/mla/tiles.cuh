// Token slots or page tables of a batch -> its tile table, on the device.
// The fast form of python/irminsul/attention/tiles.py; knows nothing of attention itself.
#pragma once

#include <cuda_runtime.h>

#include "config.h"

namespace irminsul::mla {

constexpr int TILES_THREADS = 256;

struct TilesArgs {
  const int32_t* indices;   // [num_rows, row_stride]: pages, or token slots when by_slot
  const int32_t* deltas;    // [num_rows, row_stride] by token, or null: no rotation
  const int32_t* key_lens;  // [num_rows]
  int64_t row_stride;
  Tile* tiles;          // [num_rows, capacity]
  int32_t* tile_start;  // [num_rows]
  int32_t* tile_count;  // [num_rows]
  int32_t capacity;     // tiles of a row at most
  int32_t by_slot;
};

__device__ __forceinline__ void build_from_pages(const TilesArgs& a, int row, int keys) {
  const int count = min((keys + PAGE_SIZE - 1) / PAGE_SIZE, a.capacity);
  for (int t = threadIdx.x; t < count; t += TILES_THREADS) {
    const int hi = min(keys - t * PAGE_SIZE, PAGE_SIZE);
    a.tiles[int64_t{row} * a.capacity + t] =
        Tile{a.indices[row * a.row_stride + t], hi << 16, 0, t * PAGE_SIZE};
  }
  if (threadIdx.x == 0) a.tile_count[row] = count;
}

// Token i begins a tile unless it stands right after token i - 1 in the same page, turned alike.
__device__ __forceinline__ bool begins_tile(const TilesArgs& a, const int32_t* slots,
                                            const int32_t* deltas, int i) {
  if (i == 0 || slots[i] % PAGE_SIZE == 0 || slots[i] != slots[i - 1] + 1) return true;
  return deltas != nullptr && deltas[i] != deltas[i - 1];
}

__device__ __forceinline__ int tile_end(const TilesArgs& a, const int32_t* slots,
                                        const int32_t* deltas, int i, int keys) {
  int end = i + 1;
  while (end < keys && !begins_tile(a, slots, deltas, end)) ++end;
  return end;
}

__device__ __forceinline__ void build_from_slots(const TilesArgs& a, int row, int keys) {
  __shared__ int warp_sums[TILES_THREADS / 32];
  const int32_t* slots = a.indices + row * a.row_stride;
  const int32_t* deltas = a.deltas == nullptr ? nullptr : a.deltas + row * a.row_stride;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  int before = 0;
  for (int first = 0; first < keys; first += TILES_THREADS) {
    const int i = first + threadIdx.x;
    const bool begins = i < keys && begins_tile(a, slots, deltas, i);
    const unsigned votes = __ballot_sync(~0u, begins);
    if (lane == 0) warp_sums[warp] = __popc(votes);
    __syncthreads();
    int index = before + __popc(votes & ((1u << lane) - 1));
    for (int w = 0; w < TILES_THREADS / 32; ++w) {
      if (w < warp) index += warp_sums[w];
      before += warp_sums[w];
    }
    if (begins && index < a.capacity) {
      const int lo = slots[i] % PAGE_SIZE;
      const int hi = lo + tile_end(a, slots, deltas, i, keys) - i;
      a.tiles[int64_t{row} * a.capacity + index] =
          Tile{slots[i] / PAGE_SIZE, lo | hi << 16, deltas == nullptr ? 0 : deltas[i], i};
    }
    __syncthreads();
  }
  if (threadIdx.x == 0) a.tile_count[row] = min(before, a.capacity);
}

// One block per row. Token i of a row has position i.
__global__ void __launch_bounds__(TILES_THREADS) mla_tiles_kernel(const TilesArgs a) {
  const int row = blockIdx.x;
  const int keys = max(a.key_lens[row], 0);
  if (threadIdx.x == 0) a.tile_start[row] = row * a.capacity;
  if (a.by_slot) build_from_slots(a, row, keys);
  else build_from_pages(a, row, keys);
}

}  // namespace irminsul::mla
