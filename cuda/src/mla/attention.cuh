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
#include "output.cuh"
#include "scores.cuh"

namespace irminsul::mla {

template <class C>
__device__ __forceinline__ void helper_warpgroup(const Args& args, Storage<C>& sm, int worker,
                                                 int rank, int thread) {
  const int warp = __shfl_sync(~0u, thread / 32, 0);
  if (warp == 0) {
    key_warp<C>(args, sm, args.boundaries + worker, rank, thread % 32);
  } else if (warp == 1) {
    query_warp<C>(args, sm, args.boundaries + worker, worker, rank, thread % 32);
  } else {
    transform_warps<C>(args, sm, args.boundaries[worker].total_tiles, thread - 64);
  }
}

template <class C>
__global__ void __launch_bounds__(C::THREADS, 1)
    mla_attention_kernel(const __grid_constant__ Args args) {
  extern __shared__ __align__(1024) uint8_t smem[];
  auto& sm = *reinterpret_cast<Storage<C>*>(smem);
  const int worker = blockIdx.x / args.blocks, rank = blockIdx.x % args.blocks;
  const int warpgroup = __shfl_sync(~0u, threadIdx.x / 128, 0);
  const int thread = threadIdx.x % 128;
  if (threadIdx.x == 0) init_barriers(sm);
  __syncthreads();
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
}

}  // namespace irminsul::mla
