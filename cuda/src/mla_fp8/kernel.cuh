// Queries, a paged e4m3 cache and a tile table -> attention output, partial output, LSE.
// Knows nothing of how work was divided: it follows the boundaries that the plan wrote.
//
// Four warpgroups, joined by mbarriers only:
//   scores (one, or two that take tiles in turn)
//                  e4m3 -> bf16 (registers, and shared memory for P V), S^T = K Q^T, softmax, P
//   output (two, or one)  O^T += V^T P^T for 256 or all columns
//   helpers        warp 0: TMA of keys; warps 2, 3: rotation of k_r
#pragma once

#include "common/launch.cuh"
#include "mla_fp8/loads.cuh"
#include "mla_fp8/output.cuh"
#include "mla_fp8/scores.cuh"

namespace irminsul::mla::fp8 {

template <class C>
__global__ void __launch_bounds__(THREADS, 1)
    mla_fp8_attention_kernel(const __grid_constant__ Args args) {
  extern __shared__ __align__(1024) uint8_t smem[];
  auto& sm = *reinterpret_cast<Storage<C>*>(smem);
  const int worker = blockIdx.x;
  const int warpgroup = __shfl_sync(~0u, threadIdx.x / 128, 0);
  const int thread = threadIdx.x % 128;
  if (threadIdx.x == 0) {
    init_barriers(sm);
    let_next_kernel_start();  // the combination waits for this kernel's end by itself
  }
  __syncthreads();
  if (warpgroup < C::STREAMS) {
    cutlass::arch::warpgroup_reg_alloc<C::SCORES_REGISTERS>();
    scores_warpgroup<C>(args, sm, worker, warpgroup, thread);
  } else if (warpgroup == 3) {
    cutlass::arch::warpgroup_reg_dealloc<C::HELPER_REGISTERS>();
    const int warp = __shfl_sync(~0u, thread / 32, 0);
    if (warp == 0) key_warp<C>(args, sm, worker, thread);
    else if (warp >= 2) rotating_warps<C>(args, sm, worker, thread - 64);
  } else {
    if constexpr (C::OUTPUT_REGISTERS > 128) {
      cutlass::arch::warpgroup_reg_alloc<C::OUTPUT_REGISTERS>();
    } else {
      cutlass::arch::warpgroup_reg_dealloc<C::OUTPUT_REGISTERS>();
    }
    output_warpgroup<C>(args, sm, worker, warpgroup - C::STREAMS, thread);
  }
}

}  // namespace irminsul::mla::fp8
