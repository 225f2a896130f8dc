// C parameter structs -> checked launches of the plan, attention and combination kernels.
// Host code; the only file here that launches, and that chooses a variant.
#include "mla/mla.h"

#include <cuda_runtime.h>

#include <algorithm>

#include "attention.cuh"
#include "common/status.h"
#include "launch.cuh"
#include "plan.cuh"
#include "tensor_map.h"
#include "tiles.cuh"
#include "turn.cuh"

namespace irminsul::mla {
namespace {

// CTAs that share a unit's keys. One block of 64 rows is memory bound. Where a sequence has more,
// those that take the same keys at the same time read them from memory once; four do so where that
// leaves hardly more of them without rows than two.
int choose_cluster(int cluster, int64_t num_heads, int64_t max_q_len) {
  if (cluster != 0) return cluster;
  const int64_t blocks = (num_heads * max_q_len + BLOCK_M - 1) / BLOCK_M;
  if (blocks <= 2) return blocks <= 1 ? 1 : 2;
  return (blocks + 3) / 4 * 4 <= (blocks + 1) / 2 * 2 + blocks / 16 ? 4 : 2;
}

IrmStatus check_cluster(int cluster) {
  IRM_REQUIRE(cluster == 0 || cluster == 1 || cluster == 2 || cluster == 4,
              "cluster is %d; it must be 0, 1, 2 or 4", cluster);
  return IRM_OK;
}

IrmStatus encode_maps(const IrmMlaAttentionParams& p, Args& args) {
  const auto pages = static_cast<cuuint64_t>(p.num_pages);
  const auto page_stride = static_cast<cuuint64_t>(p.page_stride);
  const auto rows = static_cast<cuuint64_t>(p.total_q) * p.num_heads;
  constexpr cuuint64_t ROW = HEAD_DIM * 2;
  constexpr cuuint64_t SLABS = HEAD_DIM / SLAB_DIM;
  IrmStatus status = encode_map<4>(args.keys, p.cache, {SLAB_DIM, PAGE_SIZE, SLABS, pages},
                                   {ROW, SLAB_DIM * 2, page_stride},
                                   {SLAB_DIM, PAGE_SIZE, PAIR_SLABS, 1});
  if (status != IRM_OK) return status;
  status = encode_map<4>(args.ropes, p.cache, {SLAB_DIM, PAGE_SIZE, SLABS, pages},
                         {ROW, SLAB_DIM * 2, page_stride},
                         {SLAB_DIM, PAGE_SIZE, 1, 1});
  if (status != IRM_OK) return status;
  if (p.turned != nullptr) {
    const auto tiles = static_cast<cuuint64_t>(p.num_tiles);
    status = encode_map<3>(args.turned, p.turned, {ROPE_DIM, PAGE_SIZE, tiles},
                           {ROPE_DIM * 2, SLAB_BYTES}, {ROPE_DIM, PAGE_SIZE, 1});
    if (status != IRM_OK) return status;
  }
  return encode_map<3>(args.queries, p.q, {SLAB_DIM, rows, SLABS}, {ROW, SLAB_DIM * 2},
                       {SLAB_DIM, BLOCK_M, 1});
}

template <class C>
IrmStatus launch_main(const IrmMlaAttentionParams& p, Args& args, int workers) {
  const IrmStatus status = encode_maps(p, args);
  if (status != IRM_OK) return status;
  constexpr int BYTES = sizeof(Storage<C>);
  static_assert(BYTES <= 232448, "more shared memory than a block can have");
  IRM_TRY(cudaFuncSetAttribute(mla_attention_kernel<C>,
                               cudaFuncAttributeMaxDynamicSharedMemorySize, BYTES));
  return EarlyLaunch{dim3(workers * args.blocks), C::THREADS, p.stream, BYTES}.run(
      mla_attention_kernel<C>, args);
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
  IrmStatus status = check_shape(p);
  if (status == IRM_OK) status = check_cluster(p.cluster);
  if (status != IRM_OK) return status;
  int sms = 0;
  if ((status = count_sms(sms)) != IRM_OK) return status;
  PlanArgs args{};
  args.cluster = choose_cluster(p.cluster, p.num_heads, p.max_q_len);
  args.num_workers = sms / args.cluster;
  if ((status = find_plan(p, args.cluster, args.num_workers, args.at)) != IRM_OK) return status;
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

IrmStatus launch_turn(const IrmMlaTurnParams& p) noexcept {
  IrmStatus status = check_tiles(p.num_rows, p.num_tiles);
  if (status == IRM_OK) status = check_stride(p.page_stride, HEAD_DIM * 2);
  if (status != IRM_OK || p.num_rows == 0 || p.num_tiles == 0) return status;
  int sms = 0;
  if ((status = count_sms(sms)) != IRM_OK) return status;
  const TurnArgs args{static_cast<const uint8_t*>(p.cache),
                      reinterpret_cast<const Tile*>(p.tiles),
                      p.tile_start,
                      p.tile_count,
                      p.cos_sin,
                      static_cast<uint8_t*>(p.slabs),
                      p.page_stride,
                      p.num_positions,
                      p.interleaved};
  const int blocks = std::max(sms * TURN_BLOCKS_PER_SM / p.num_rows, 1);
  return EarlyLaunch{dim3(blocks, p.num_rows), TURN_THREADS, p.stream}.run(mla_turn_kernel, args);
}

IrmStatus launch_attention(const IrmMlaAttentionParams& p) noexcept {
  IrmStatus status = check_shape(p);
  if (status == IRM_OK) status = check_cluster(p.cluster);
  if (status == IRM_OK) status = check_cache(p, HEAD_DIM * 2);
  if (status == IRM_OK && p.turned != nullptr) status = check_tiles(p.num_rows, p.num_tiles);
  if (status != IRM_OK || p.total_q == 0) return status;
  int sms = 0;
  if ((status = count_sms(sms)) != IRM_OK) return status;
  const int cluster = choose_cluster(p.cluster, p.num_heads, p.max_q_len);
  const int workers = sms / cluster;
  PlanLayout at;
  if ((status = find_plan(p, cluster, workers, at)) != IRM_OK) return status;
  Args args = make_args<Args>(p, at, sms);
  // Keys that one block of rows alone reads need not stay in L2; those of several do.
  const bool shared = int64_t{p.num_heads} * p.max_q_len > BLOCK_M;
  args.key_policy = static_cast<uint64_t>(shared ? cute::TMA::CacheHintSm90::EVICT_NORMAL
                                                 : cute::TMA::CacheHintSm90::EVICT_FIRST);
  args.blocks = cluster;
  args.has_turned = p.turned != nullptr;
  status = cluster == 1 ? launch_main<Streaming>(p, args, workers)
                        : launch_main<Shared>(p, args, workers);
  return status == IRM_OK ? launch_combine(p, args, at, sms, cluster) : status;
}

}  // namespace irminsul::mla
