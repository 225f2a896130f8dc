// The e4m3 pages that a batch's tiles name -> the same tiles in pages of bf16 rows of their own.
// Knows the 656-byte row; nothing of attention.
#pragma once

#include <cuda_bf16.h>

#include "mla_fp8/layout.cuh"
#include "mla_fp8/products.cuh"

namespace irminsul::mla::fp8 {

constexpr int WIDEN_THREADS = 256;

struct WidenArgs {
  const uint8_t* cache;       // pages of 64 rows of 656 bytes
  const Tile* tiles;          // [num_tiles]
  const int32_t* tile_start;  // [num_rows]
  const int32_t* tile_count;  // [num_rows]
  __nv_bfloat16* pages;       // [num_tiles][64, 576]: page i is for tile i
  Tile* wide;                 // [num_tiles]
  int64_t page_stride;
};

// 16 e4m3 numbers and their factor -> 16 bf16 numbers.
__device__ __forceinline__ void widen_chunk(const uint4& x, float scale, uint4* out) {
  const uint32_t words[4] = {x.x, x.y, x.z, x.w};
  uint32_t wide[8];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    wide[2 * i] = scale_two(static_cast<uint16_t>(words[i]), scale);
    wide[2 * i + 1] = scale_two(static_cast<uint16_t>(words[i] >> 16), scale);
  }
  out[0] = uint4{wide[0], wide[1], wide[2], wide[3]};
  out[1] = uint4{wide[4], wide[5], wide[6], wide[7]};
}

// One page. Rows outside the tile's bounds become zeros.
__device__ __forceinline__ void widen_page(const uint8_t* page, __nv_bfloat16* out, int lo, int hi,
                                           int thread) {
  constexpr int CHUNKS = LATENT_DIM / 16, ROPE_CHUNKS = ROPE_DIM * 2 / 16;
#pragma unroll 4
  for (int i = thread; i < PAGE_SIZE * CHUNKS; i += WIDEN_THREADS) {
    const int row = i / CHUNKS, chunk = i % CHUNKS;
    const uint8_t* from = page + row * ROW_BYTES;
    uint4* to = reinterpret_cast<uint4*>(out + row * HEAD_DIM + 16 * chunk);
    if (row < lo || row >= hi) {
      to[0] = to[1] = uint4{0, 0, 0, 0};
      continue;
    }
    const uint4 x = __ldcs(reinterpret_cast<const uint4*>(from) + chunk);
    const auto* scales = reinterpret_cast<const float*>(from + SCALES_AT);
    widen_chunk(x, __ldg(scales + 16 * chunk / SCALE_GROUP), to);
  }
#pragma unroll 2
  for (int i = thread; i < PAGE_SIZE * ROPE_CHUNKS; i += WIDEN_THREADS) {
    const int row = i / ROPE_CHUNKS, chunk = i % ROPE_CHUNKS;
    const auto* from = reinterpret_cast<const uint4*>(page + row * ROW_BYTES + ROPE_AT);
    auto* to = reinterpret_cast<uint4*>(out + row * HEAD_DIM + LATENT_DIM);
    to[chunk] = row < lo || row >= hi ? uint4{0, 0, 0, 0} : __ldcs(from + chunk);
  }
}

// Block (x, y) takes every gridDim.x-th tile of row y.
static __global__ void __launch_bounds__(WIDEN_THREADS) mla_fp8_widen_kernel(const WidenArgs a) {
  const int count = a.tile_count[blockIdx.y];
  for (int t = blockIdx.x; t < count; t += gridDim.x) {
    const int64_t at = int64_t{a.tile_start[blockIdx.y]} + t;
    Tile tile = a.tiles[at];
    widen_page(a.cache + tile.page * a.page_stride, a.pages + at * PAGE_SIZE * HEAD_DIM,
               tile.bounds & 0xFFFF, tile.bounds >> 16, threadIdx.x);
    if (threadIdx.x != 0) continue;
    tile.page = static_cast<int32_t>(at);
    a.wide[at] = tile;
  }
}

}  // namespace irminsul::mla::fp8
