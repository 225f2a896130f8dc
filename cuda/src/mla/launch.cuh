// What the launchers of both attention kernels share: checks, arguments, the combination's launch.
// Host code; knows the C ABI's structs and the plan's layout, no attention kernel.
#pragma once

#include <cuda_runtime.h>

#include "combine.cuh"
#include "common/early_launch.h"
#include "config.h"
#include "mla.h"

namespace irminsul::mla {

constexpr float LOG2_E = 1.44269504088896341f;
constexpr int COMBINE_BLOCKS_PER_SM = 2;  // as many as run at a time

inline IrmStatus count_sms(int& sms) {
  int device = 0;
  IRM_TRY(cudaGetDevice(&device));
  IRM_TRY(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, device));
  return IRM_OK;
}

// Params: IrmMlaPlanParams or IrmMlaAttentionParams.
template <class Params>
IrmStatus check_shape(const Params& p) {
  IRM_REQUIRE(p.num_rows >= 0, "num_rows is %d; it must not be negative", p.num_rows);
  IRM_REQUIRE(p.total_q >= 0, "total_q is %d; it must not be negative", p.total_q);
  IRM_REQUIRE(p.num_heads >= 1 && p.num_heads <= 128, "num_heads is %d; it must be in 1..128",
              p.num_heads);
  IRM_REQUIRE(int64_t{p.total_q} * p.num_heads < (int64_t{1} << 31),
              "total_q * num_heads is %lld; it must be below 2**31",
              static_cast<long long>(p.total_q) * p.num_heads);
  IRM_REQUIRE(p.max_q_len >= 0, "max_q_len is %d; it must not be negative", p.max_q_len);
  return IRM_OK;
}

inline IrmStatus check_stride(int64_t page_stride, int row_bytes) {
  IRM_REQUIRE(page_stride >= PAGE_SIZE * row_bytes && page_stride % 16 == 0,
              "page_stride is %lld bytes; it must be a multiple of 16 and at least %d",
              static_cast<long long>(page_stride), PAGE_SIZE * row_bytes);
  return IRM_OK;
}

// Rows and table entries of a kernel whose grid has a row of blocks for each row.
inline IrmStatus check_tiles(int32_t num_rows, int64_t num_tiles) {
  IRM_REQUIRE(num_rows >= 0 && num_rows < 65536, "num_rows is %d; it must be in 0..65535",
              num_rows);
  IRM_REQUIRE(num_tiles >= 0 && num_tiles < (int64_t{1} << 31),
              "num_tiles is %lld; it must be in 0..2**31 - 1", static_cast<long long>(num_tiles));
  return IRM_OK;
}

inline IrmStatus check_cache(const IrmMlaAttentionParams& p, int row_bytes) {
  IRM_REQUIRE(p.num_pages >= 1 && p.num_pages < (int64_t{1} << 31),
              "num_pages is %lld; it must be in 1..2**31 - 1", static_cast<long long>(p.num_pages));
  const IrmStatus status = check_stride(p.page_stride, row_bytes);
  if (status != IRM_OK) return status;
  IRM_REQUIRE(p.num_positions >= 0, "num_positions is %d; it must not be negative",
              p.num_positions);
  if (p.workspace == nullptr || p.workspace_bytes < workspace_bytes()) {
    return fail(IRM_ERROR_WORKSPACE, "workspace_bytes is %llu; %llu are needed",
                static_cast<unsigned long long>(p.workspace_bytes),
                static_cast<unsigned long long>(workspace_bytes()));
  }
  return IRM_OK;
}

// Where the arrays of a plan lie, if its buffer is large enough.
template <class Params>
IrmStatus find_plan(const Params& p, int cluster, int workers, PlanLayout& at) {
  at = plan_layout(p.num_rows, max_units(p.total_q, p.num_rows, p.num_heads, cluster), workers);
  if (p.plan == nullptr || p.plan_bytes < at.bytes) {
    return fail(IRM_ERROR_WORKSPACE, "plan_bytes is %llu; %llu are needed",
                static_cast<unsigned long long>(p.plan_bytes),
                static_cast<unsigned long long>(at.bytes));
  }
  return IRM_OK;
}

// The arguments that both kernels have; tensor maps, queries and the policy of keys are their own.
template <class Args>
Args make_args(const IrmMlaAttentionParams& p, const PlanLayout& at, int sms) {
  const auto* plan = static_cast<const uint8_t*>(p.plan);
  Args args{};
  args.boundaries = reinterpret_cast<const Boundary*>(plan + at.boundaries);
  args.units = reinterpret_cast<const Unit*>(plan + at.units);
  args.tiles = reinterpret_cast<const Tile*>(p.tiles);
  args.cos_sin = p.cos_sin;
  args.out = static_cast<__nv_bfloat16*>(p.out);
  args.lse = p.lse;
  args.partial_out = static_cast<float*>(p.workspace);
  args.partial_lse = args.partial_out + int64_t{2} * sms * BLOCK_M * LATENT_DIM;
  args.scale_log2 = p.scale * LOG2_E;
  args.num_heads = p.num_heads;
  args.num_positions = p.cos_sin == nullptr ? 0 : p.num_positions;
  args.interleaved = p.interleaved;
  return args;
}

template <class Args>
IrmStatus launch_combine(const IrmMlaAttentionParams& p, const Args& args, const PlanLayout& at,
                         int sms, int cluster) {
  const auto* plan = static_cast<const uint8_t*>(p.plan);
  CombineArgs combine{};
  combine.header = reinterpret_cast<const PlanHeader*>(plan);
  combine.splits = reinterpret_cast<const Split*>(plan + at.splits);
  combine.block = BLOCK_M * cluster;
  combine.partial_out = args.partial_out;
  combine.partial_lse = args.partial_lse;
  combine.out = args.out;
  combine.lse = args.lse;
  return EarlyLaunch{dim3(sms * COMBINE_BLOCKS_PER_SM), COMBINE_WARPS * 32, p.stream}.run(
      mla_combine_kernel, combine);
}

}  // namespace irminsul::mla
