// C parameter structs -> checked launches of the plan, attention and combination kernels.
// Host code; the only file here that launches, and that chooses a variant.
#include "mla/mla.h"

#include <cuda_runtime.h>

#include "attention.cuh"
#include "combine.cuh"
#include "common/status.h"
#include "plan.cuh"
#include "tensor_map.h"
#include "tiles.cuh"

namespace irminsul::mla {
namespace {

constexpr float LOG2_E = 1.44269504088896341f;
constexpr int COMBINE_BLOCKS_PER_SM = 2;  // as many as run at a time

IrmStatus count_sms(int& sms) {
  int device = 0;
  IRM_TRY(cudaGetDevice(&device));
  IRM_TRY(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, device));
  return IRM_OK;
}

// One block of 64 rows is memory bound: one CTA per key tile. More rows of the same sequence share
// their keys, two CTAs at a time.
int choose_cluster(int cluster, int64_t num_heads, int64_t max_q_len) {
  if (cluster != 0) return cluster;
  return num_heads * max_q_len > BLOCK_M ? 2 : 1;
}

IrmStatus check_shape(int num_rows, int total_q, int num_heads, int max_q_len, int cluster) {
  IRM_REQUIRE(num_rows >= 0, "num_rows is %d; it must not be negative", num_rows);
  IRM_REQUIRE(total_q >= 0, "total_q is %d; it must not be negative", total_q);
  IRM_REQUIRE(num_heads >= 1 && num_heads <= 128, "num_heads is %d; it must be in 1..128",
              num_heads);
  IRM_REQUIRE(int64_t{total_q} * num_heads < (int64_t{1} << 31),
              "total_q * num_heads is %lld; it must be below 2**31",
              static_cast<long long>(total_q) * num_heads);
  IRM_REQUIRE(max_q_len >= 0, "max_q_len is %d; it must not be negative", max_q_len);
  IRM_REQUIRE(cluster >= 0 && cluster <= 2, "cluster is %d; it must be 0, 1 or 2", cluster);
  return IRM_OK;
}

IrmStatus find_plan(const void* plan, uint64_t bytes, int num_rows, int total_q, int num_heads,
                    int cluster, int workers, PlanLayout& at) {
  const int64_t units = max_units(total_q, num_rows, num_heads, cluster);
  at = plan_layout(num_rows, units, workers);
  if (plan == nullptr || bytes < at.bytes) {
    return fail(IRM_ERROR_WORKSPACE, "plan_bytes is %llu; %llu are needed",
                static_cast<unsigned long long>(bytes), static_cast<unsigned long long>(at.bytes));
  }
  return IRM_OK;
}

template <class C>
IrmStatus encode_maps(const IrmMlaAttentionParams& p, Args& args) {
  const auto pages = static_cast<cuuint64_t>(p.num_pages);
  const auto page_stride = static_cast<cuuint64_t>(p.page_stride);
  const auto rows = static_cast<cuuint64_t>(p.total_q) * p.num_heads;
  constexpr cuuint64_t ROW = HEAD_DIM * 2;
  constexpr cuuint64_t SLABS = HEAD_DIM / SLAB_DIM;
  IrmStatus status = encode_map<4>(args.keys, p.cache, {SLAB_DIM, PAGE_SIZE, SLABS, pages},
                                   {ROW, SLAB_DIM * 2, page_stride},
                                   {SLAB_DIM, PAGE_SIZE, PAIR_SLABS / C::CLUSTER, 1});
  if (status != IRM_OK) return status;
  status = encode_map<4>(args.ropes, p.cache, {SLAB_DIM, PAGE_SIZE, SLABS, pages},
                         {ROW, SLAB_DIM * 2, page_stride},
                         {SLAB_DIM, PAGE_SIZE / C::CLUSTER, 1, 1});
  if (status != IRM_OK) return status;
  return encode_map<3>(args.queries, p.q, {SLAB_DIM, rows, SLABS}, {ROW, SLAB_DIM * 2},
                       {SLAB_DIM, BLOCK_M, 1});
}

template <class C>
IrmStatus launch_main(const IrmMlaAttentionParams& p, Args& args, int workers) {
  const IrmStatus status = encode_maps<C>(p, args);
  if (status != IRM_OK) return status;
  constexpr int BYTES = sizeof(Storage<C>);
  static_assert(BYTES <= 232448, "more shared memory than a block can have");
  IRM_TRY(cudaFuncSetAttribute(mla_attention_kernel<C>,
                               cudaFuncAttributeMaxDynamicSharedMemorySize, BYTES));
  cudaLaunchAttribute attributes[2]{};
  attributes[0].id = cudaLaunchAttributeClusterDimension;
  attributes[0].val.clusterDim = {C::CLUSTER, 1, 1};
  attributes[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[1].val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(workers * C::CLUSTER);
  config.blockDim = dim3(C::THREADS);
  config.dynamicSmemBytes = BYTES;
  config.stream = static_cast<cudaStream_t>(p.stream);
  config.attrs = attributes;
  config.numAttrs = 2;
  IRM_TRY(cudaLaunchKernelEx(&config, mla_attention_kernel<C>, args));
  return IRM_OK;
}

IrmStatus launch_combine(const IrmMlaAttentionParams& p, const Args& args, const uint8_t* plan,
                         const PlanLayout& at, int sms, int cluster) {
  CombineArgs combine{};
  combine.header = reinterpret_cast<const PlanHeader*>(plan);
  combine.splits = reinterpret_cast<const Split*>(plan + at.splits);
  combine.block = BLOCK_M * cluster;
  combine.partial_out = args.partial_out;
  combine.partial_lse = args.partial_lse;
  combine.out = args.out;
  combine.lse = args.lse;
  cudaLaunchAttribute early{};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(sms * COMBINE_BLOCKS_PER_SM);
  config.blockDim = dim3(COMBINE_WARPS * 32);
  config.stream = static_cast<cudaStream_t>(p.stream);
  config.attrs = &early;
  config.numAttrs = 1;
  IRM_TRY(cudaLaunchKernelEx(&config, mla_combine_kernel, combine));
  return IRM_OK;
}

IrmStatus check_attention(const IrmMlaAttentionParams& p) {
  const IrmStatus status =
      check_shape(p.num_rows, p.total_q, p.num_heads, p.max_q_len, p.cluster);
  if (status != IRM_OK) return status;
  IRM_REQUIRE(p.num_pages >= 1 && p.num_pages < (int64_t{1} << 31),
              "num_pages is %lld; it must be in 1..2**31 - 1", static_cast<long long>(p.num_pages));
  IRM_REQUIRE(p.page_stride >= PAGE_SIZE * HEAD_DIM * 2 && p.page_stride % 16 == 0,
              "page_stride is %lld bytes; it must be a multiple of 16 and at least %d",
              static_cast<long long>(p.page_stride), PAGE_SIZE * HEAD_DIM * 2);
  IRM_REQUIRE(p.num_positions >= 0, "num_positions is %d; it must not be negative",
              p.num_positions);
  if (p.workspace == nullptr || p.workspace_bytes < workspace_bytes()) {
    return fail(IRM_ERROR_WORKSPACE, "workspace_bytes is %llu; %llu are needed",
                static_cast<unsigned long long>(p.workspace_bytes),
                static_cast<unsigned long long>(workspace_bytes()));
  }
  return IRM_OK;
}

Args make_args(const IrmMlaAttentionParams& p, const uint8_t* plan, const PlanLayout& at,
               int sms) {
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

}  // namespace

uint64_t plan_bytes(int64_t num_rows, int64_t total_q, int64_t num_heads) noexcept {
  int sms = 0;
  if (count_sms(sms) != IRM_OK) return 0;
  return plan_layout(num_rows, max_units(total_q, num_rows, num_heads, 1), sms).bytes;
}

uint64_t workspace_bytes() noexcept {
  int sms = 0;
  if (count_sms(sms) != IRM_OK) return 0;
  return uint64_t{2} * sms * BLOCK_M * (LATENT_DIM + 1) * sizeof(float);
}

IrmStatus launch_tiles(const IrmMlaTilesParams& p) noexcept {
  IRM_REQUIRE(p.num_rows >= 0, "num_rows is %d; it must not be negative", p.num_rows);
  IRM_REQUIRE(p.capacity >= 1, "capacity is %d; it must be at least 1", p.capacity);
  IRM_REQUIRE(int64_t{p.num_rows} * p.capacity < (int64_t{1} << 31),
              "num_rows * capacity is %lld; it must be below 2**31",
              static_cast<long long>(p.num_rows) * p.capacity);
  if (p.num_rows == 0) return IRM_OK;
  const TilesArgs args{p.indices,    p.deltas,     p.key_lens, p.row_stride,
                       reinterpret_cast<Tile*>(p.tiles), p.tile_start, p.tile_count,
                       p.capacity,   p.by_slot};
  mla_tiles_kernel<<<p.num_rows, TILES_THREADS, 0, static_cast<cudaStream_t>(p.stream)>>>(args);
  IRM_TRY(cudaGetLastError());
  return IRM_OK;
}

IrmStatus launch_plan(const IrmMlaPlanParams& p) noexcept {
  IrmStatus status = check_shape(p.num_rows, p.total_q, p.num_heads, p.max_q_len, p.cluster);
  if (status != IRM_OK) return status;
  int sms = 0;
  if ((status = count_sms(sms)) != IRM_OK) return status;
  PlanArgs args{};
  args.cluster = choose_cluster(p.cluster, p.num_heads, p.max_q_len);
  args.num_workers = sms / args.cluster;
  status = find_plan(p.plan, p.plan_bytes, p.num_rows, p.total_q, p.num_heads, args.cluster,
                     args.num_workers, args.at);
  if (status != IRM_OK) return status;
  args.q_indptr = p.q_indptr;
  args.q_pos = p.q_pos;
  args.tile_start = p.tile_start;
  args.tile_count = p.tile_count;
  args.tiles = reinterpret_cast<const Tile*>(p.tiles);
  args.plan = static_cast<uint8_t*>(p.plan);
  args.max_units = max_units(p.total_q, p.num_rows, p.num_heads, args.cluster);
  args.num_rows = p.num_rows;
  args.num_heads = p.num_heads;
  args.total_q = p.total_q;
  mla_plan_kernel<<<1, PLAN_THREADS, 0, static_cast<cudaStream_t>(p.stream)>>>(args);
  IRM_TRY(cudaGetLastError());
  return IRM_OK;
}

IrmStatus launch_attention(const IrmMlaAttentionParams& p) noexcept {
  IrmStatus status = check_attention(p);
  if (status != IRM_OK || p.total_q == 0) return status;
  int sms = 0;
  if ((status = count_sms(sms)) != IRM_OK) return status;
  const int cluster = choose_cluster(p.cluster, p.num_heads, p.max_q_len);
  const int workers = sms / cluster;
  PlanLayout at;
  status = find_plan(p.plan, p.plan_bytes, p.num_rows, p.total_q, p.num_heads, cluster, workers, at);
  if (status != IRM_OK) return status;
  const auto* plan = static_cast<const uint8_t*>(p.plan);
  Args args = make_args(p, plan, at, sms);
  // Keys that one unit alone reads need not stay in L2; those of several units do.
  const bool shared = int64_t{p.num_heads} * p.max_q_len > BLOCK_M * cluster;
  args.key_policy = static_cast<uint64_t>(shared ? cute::TMA::CacheHintSm90::EVICT_NORMAL
                                                 : cute::TMA::CacheHintSm90::EVICT_FIRST);
  status = cluster == 1 ? launch_main<Streaming>(p, args, workers)
                        : launch_main<Shared2>(p, args, workers);
  return status == IRM_OK ? launch_combine(p, args, plan, at, sms, cluster) : status;
}

}  // namespace irminsul::mla
