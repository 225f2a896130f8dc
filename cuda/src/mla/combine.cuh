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

// The plan is read before the wait for the kernel before, hence not through L1: there a line of the
// same address may still be an earlier plan's.
__device__ __forceinline__ Split read_split(const CombineArgs& a, int index) {
  const int4 words = __ldcg(reinterpret_cast<const int4*>(a.splits + index));
  return {words.x, words.y, words.z, words.w};
}

// Partial i of a split: the first worker's last unit, then each next worker's first one.
__device__ __forceinline__ int64_t partial_slot(const Split& split, int i) {
  return i == 0 ? 2 * split.worker + 1 : 2 * (split.worker + i);
}

// Weighted sum of some partials of four columns, with weights 2^(lse - max).
struct Sum {
  float4 value;
  float weight, max;
};

__device__ __forceinline__ Sum no_sum() { return {{0, 0, 0, 0}, 0, -INFINITY}; }

// Adds `value` of weight `weight` at the scale of `lse`. NaN stays NaN.
__device__ __forceinline__ void add(Sum& sum, const float4& value, float weight, float lse) {
  const float max = fmaxf(sum.max, lse);
  const float before = sum.max == -INFINITY ? 0.0f : exp2f(sum.max - max);
  const float by = exp2f(lse - max);
  sum.weight = sum.weight * before + weight * by;
  sum.value.x = sum.value.x * before + value.x * by;
  sum.value.y = sum.value.y * before + value.y * by;
  sum.value.z = sum.value.z * before + value.z * by;
  sum.value.w = sum.value.w * before + value.w * by;
  sum.max = max;
}

// Partials first, first + step, ... of one row and four columns. All loads of a batch are under way
// before the first is used.
__device__ __forceinline__ Sum sum_partials(const CombineArgs& a, const Split& split, int row,
                                            int column, int first, int step) {
  Sum sum = no_sum();
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
      if (lse[j] != -INFINITY) add(sum, x[j], 1.0f, lse[j]);
    }
  }
  return sum;
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

// Sum over `team` neighbouring warps, in its first one. Called by the whole block.
__device__ __forceinline__ Sum sum_team(const Sum& mine, int team, int warp, int lane) {
  __shared__ Sum parts[COMBINE_WARPS][32];
  __syncthreads();
  parts[warp][lane] = mine;
  __syncthreads();
  Sum sum = mine;
  for (int w = 1; w < team && warp % team == 0; ++w) {
    const Sum& other = parts[warp + w][lane];
    if (other.weight != 0.0f) add(sum, other.value, other.weight, other.max);
  }
  return sum;
}

// One task is one row of a split unit and 128 columns; a team of warps takes it, the more the fewer
// tasks there are (long contexts, small batches: many partials each).
// Internal linkage: each .cu that launches it has its own.
static __global__ void __launch_bounds__(COMBINE_WARPS * 32)
    mla_combine_kernel(const CombineArgs a) {
  constexpr int QUARTERS = LATENT_DIM / COMBINE_COLUMNS;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  let_next_kernel_start();
  // The plan is complete: the kernel before this one lets it start only after it read the plan.
  const int num_splits = __ldcg(&a.header->num_splits);
  const int tasks = num_splits * __ldcg(&a.header->split_rows) * QUARTERS;
  const int warps = gridDim.x * COMBINE_WARPS;
  int team = 1;
  while (team < COMBINE_WARPS && tasks * team * 2 <= warps) team *= 2;
  const int step = warps / team;
  int task = blockIdx.x * (COMBINE_WARPS / team) + warp / team;
  Split split = task < tasks ? read_split(a, task / QUARTERS % num_splits) : Split{};
  wait_for_previous_kernel();
  for (int first = blockIdx.x * (COMBINE_WARPS / team); first < tasks; first += step) {
    const int column = task % QUARTERS * COMBINE_COLUMNS + 4 * lane;
    const int row = task / QUARTERS / max(num_splits, 1);
    const bool valid = task < tasks && row < split.num_rows;
    Sum sum = no_sum();
    if (valid) sum = sum_partials(a, split, row, column, warp % team, team);
    if (team > 1) sum = sum_team(sum, team, warp, lane);
    if (valid && warp % team == 0) store_sum(a, sum, int64_t{split.flat_row} + row, column);
    task += step;
    if (task < tasks) split = read_split(a, task / QUARTERS % num_splits);
  }
}

}  // namespace irminsul::mla
