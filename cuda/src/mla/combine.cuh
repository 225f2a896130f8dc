// Partial outputs of split units -> their complete output and LSE.
// Knows nothing of keys; reads the list of splits that the plan wrote.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include "common/launch.cuh"
#include "config.h"

namespace irminsul::mla {

constexpr int COMBINE_WARPS = 16;
constexpr int COMBINE_COLUMNS = 128;  // of one warp: four to a lane
constexpr int COMBINE_AHEAD = 8;       // partials a warp loads before it adds them up

struct CombineArgs {
  const PlanHeader* header;
  const Split* splits;
  const float* partial_out;  // [2 * num_workers, block, 512]
  const float* partial_lse;  // [2 * num_workers, block], base 2
  __nv_bfloat16* out;        // [total_q * heads, 512]
  float* lse;                // [total_q * heads]
  int32_t block;             // rows of a partial: BLOCK_M * cluster
};

// Partial i of a split: the first worker's last unit, then each next worker's first one.
__device__ __forceinline__ int64_t partial_slot(const Split& split, int i) {
  return i == 0 ? 2 * split.worker + 1 : 2 * (split.worker + i);
}

struct Sum {
  float4 value;
  float weight, max;
};

// Partials first, first + step, ... of one row and four columns, by weights 2^(lse - max). All
// loads of a batch are under way before the first is used.
__device__ __forceinline__ Sum sum_partials(const CombineArgs& a, const Split& split, int row,
                                            int column, int first, int step, float max) {
  Sum sum{{0, 0, 0, 0}, 0, max};
  for (int i0 = first; i0 < split.count; i0 += step * COMBINE_AHEAD) {
    float4 x[COMBINE_AHEAD];
    float lse[COMBINE_AHEAD];
#pragma unroll
    for (int j = 0; j < COMBINE_AHEAD; ++j) {
      const int i = i0 + j * step;
      lse[j] = -INFINITY;
      if (i >= split.count) continue;
      const int64_t at = partial_slot(split, i) * a.block + row;
      lse[j] = a.partial_lse[at];
      x[j] = *reinterpret_cast<const float4*>(a.partial_out + at * LATENT_DIM + column);
    }
#pragma unroll
    for (int j = 0; j < COMBINE_AHEAD; ++j) {
      if (lse[j] == -INFINITY) continue;
      const float weight = exp2f(lse[j] - max);
      sum.weight += weight;
      sum.value.x += weight * x[j].x, sum.value.y += weight * x[j].y;
      sum.value.z += weight * x[j].z, sum.value.w += weight * x[j].w;
    }
  }
  return sum;
}

__device__ __forceinline__ float max_lse(const CombineArgs& a, const Split& split, int row,
                                         int lane) {
  float max = -INFINITY;
  for (int i = lane; i < split.count; i += 32) {
    max = fmaxf(max, a.partial_lse[partial_slot(split, i) * a.block + row]);
  }
  for (int by = 16; by > 0; by /= 2) max = fmaxf(max, __shfl_xor_sync(~0u, max, by));
  return max;
}

__device__ __forceinline__ void store_sum(const CombineArgs& a, const Sum& sum, int64_t flat_row,
                                          int column) {
  const float f = sum.weight == 0.0f ? 0.0f : 1.0f / sum.weight;  // NaN stays NaN
  const __nv_bfloat162 low = __floats2bfloat162_rn(sum.value.x * f, sum.value.y * f);
  const __nv_bfloat162 high = __floats2bfloat162_rn(sum.value.z * f, sum.value.w * f);
  uint2 words;
  words.x = reinterpret_cast<const uint32_t&>(low);
  words.y = reinterpret_cast<const uint32_t&>(high);
  *reinterpret_cast<uint2*>(a.out + flat_row * LATENT_DIM + column) = words;
  if (column == 0) {
    a.lse[flat_row] =
        sum.weight == 0.0f ? -INFINITY : (sum.max + log2f(sum.weight)) * 0.693147180559945309f;
  }
}

// Adds up the warps' sums of one task in shared memory; warp 0 stores.
__device__ __forceinline__ void reduce_warps(const CombineArgs& a, Sum sum, int64_t flat_row,
                                             int column, int warp, int lane) {
  __shared__ Sum parts[COMBINE_WARPS][32];
  parts[warp][lane] = sum;
  __syncthreads();
  if (warp == 0) {
    for (int w = 1; w < COMBINE_WARPS; ++w) {
      const Sum& other = parts[w][lane];
      sum.weight += other.weight;
      sum.value.x += other.value.x, sum.value.y += other.value.y;
      sum.value.z += other.value.z, sum.value.w += other.value.w;
    }
    store_sum(a, sum, flat_row, column);
  }
  __syncthreads();
}

// One task is one row and 128 columns. Few tasks (long contexts, small batches: many partials
// each) take a block apiece, many take a warp apiece.
// Internal linkage: each .cu that launches it has its own.
static __global__ void __launch_bounds__(COMBINE_WARPS * 32)
    mla_combine_kernel(const CombineArgs a) {
  wait_for_previous_kernel();
  constexpr int QUARTERS = LATENT_DIM / COMBINE_COLUMNS;
  const int tasks = a.header->num_splits * a.block * QUARTERS;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const bool together = tasks <= static_cast<int>(gridDim.x);
  const int step = together ? gridDim.x : gridDim.x * COMBINE_WARPS;
  const int start = together ? blockIdx.x : blockIdx.x * COMBINE_WARPS + warp;
  for (int task = start; task < tasks; task += step) {
    const int column = task % QUARTERS * COMBINE_COLUMNS + 4 * lane;
    const int row = task / QUARTERS % a.block;
    const Split split = a.splits[task / QUARTERS / a.block];
    if (row >= split.num_rows) continue;
    const int64_t flat_row = int64_t{split.flat_row} + row;
    const float max = max_lse(a, split, row, lane);
    const Sum sum = sum_partials(a, split, row, column, together ? warp : 0,
                                 together ? COMBINE_WARPS : 1, max);
    if (together) reduce_warps(a, sum, flat_row, column, warp, lane);
    else store_sum(a, sum, flat_row, column);
  }
}

}  // namespace irminsul::mla
