// C parameter structs -> checked launches of attention over an e4m3 cache and of its combination.
// Host code; the only file here that launches, and that chooses a variant.
#include "mla_fp8/mla_fp8.h"

#include <cuda_runtime.h>

#include "common/status.h"
#include "mla/launch.cuh"
#include "mla/tensor_map.h"
#include "mla_fp8/kernel.cuh"
#include "mla_fp8/widen.cuh"

namespace irminsul::mla::fp8 {
namespace {

constexpr int WIDEN_BLOCKS_PER_SM = 8;  // as many as run at a time

// The cache as bytes: [pages][64 rows][656], read in boxes of 64 rows.
IrmStatus encode_rows(CUtensorMap& map, const IrmMlaAttentionParams& p, cuuint32_t columns,
                      CUtensorMapSwizzle swizzle) {
  EncodeTiled encoder = nullptr;
  const IrmStatus status = find_encoder(encoder);
  if (status != IRM_OK) return status;
  const cuuint64_t sizes[] = {ROW_BYTES, PAGE_SIZE, static_cast<cuuint64_t>(p.num_pages)};
  const cuuint64_t strides[] = {ROW_BYTES, static_cast<cuuint64_t>(p.page_stride)};
  const cuuint32_t box[] = {columns, PAGE_SIZE, 1};
  const cuuint32_t steps[] = {1, 1, 1};
  const CUresult result =
      encoder(&map, CU_TENSOR_MAP_DATA_TYPE_UINT8, 3, const_cast<void*>(p.cache), sizes, strides,
              box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle,
              CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS) {
    return fail(IRM_ERROR_CUDA, "cuTensorMapEncodeTiled: error %d", static_cast<int>(result));
  }
  return IRM_OK;
}

template <class C>
IrmStatus launch_main(const Args& args, int workers, cudaStream_t stream) {
  constexpr int BYTES = sizeof(Storage<C>);
  static_assert(BYTES <= 232448, "more shared memory than a block can have");
  IRM_TRY(cudaFuncSetAttribute(mla_fp8_attention_kernel<C>,
                               cudaFuncAttributeMaxDynamicSharedMemorySize, BYTES));
  mla_fp8_attention_kernel<C><<<workers, THREADS, BYTES, stream>>>(args);
  IRM_TRY(cudaGetLastError());
  return IRM_OK;
}

}  // namespace

IrmStatus launch_attention(const IrmMlaAttentionParams& p) noexcept {
  IRM_REQUIRE(p.cluster == 1, "cluster is %d; over an fp8 cache it must be 1, also in the plan",
              p.cluster);
  IrmStatus status = check_shape(p);
  if (status != IRM_OK || p.total_q == 0) return status;
  if ((status = check_cache(p, ROW_BYTES)) != IRM_OK) return status;
  int sms = 0;
  if ((status = count_sms(sms)) != IRM_OK) return status;
  PlanLayout at;
  if ((status = find_plan(p, 1, sms, at)) != IRM_OK) return status;
  Args args = make_args<Args>(p, at, sms);
  args.q = static_cast<const __nv_bfloat16*>(p.q);
  // Keys that one unit alone reads need not stay in L2; those of several units do.
  const bool shared = int64_t{p.num_heads} * p.max_q_len > BLOCK_M;
  args.key_policy = static_cast<uint64_t>(shared ? cute::TMA::CacheHintSm90::EVICT_NORMAL
                                                 : cute::TMA::CacheHintSm90::EVICT_FIRST);
  status = encode_rows(args.rows, p, SCALE_GROUP, CU_TENSOR_MAP_SWIZZLE_128B);
  if (status != IRM_OK) return status;
  status = encode_rows(args.scales, p, NUM_GROUPS * 4, CU_TENSOR_MAP_SWIZZLE_NONE);
  if (status != IRM_OK) return status;
  const auto stream = static_cast<cudaStream_t>(p.stream);
  const int64_t columns = int64_t{p.num_heads} * p.max_q_len;
  status = columns <= 16   ? launch_main<Narrow>(args, sms, stream)
           : columns <= 32 ? launch_main<Middle>(args, sms, stream)
                           : launch_main<Wide>(args, sms, stream);
  if (status != IRM_OK) return status;
  return launch_combine(p, args, at, sms, 1);
}

IrmStatus launch_widen(const IrmMlaWidenParams& p) noexcept {
  IrmStatus status = check_tiles(p.num_rows, p.num_tiles);
  if (status == IRM_OK) status = check_stride(p.page_stride, ROW_BYTES);
  if (status != IRM_OK || p.num_rows == 0 || p.num_tiles == 0) return status;
  int sms = 0;
  if ((status = count_sms(sms)) != IRM_OK) return status;
  const WidenArgs args{static_cast<const uint8_t*>(p.cache),
                       reinterpret_cast<const Tile*>(p.tiles),
                       p.tile_start,
                       p.tile_count,
                       static_cast<__nv_bfloat16*>(p.pages),
                       reinterpret_cast<Tile*>(p.wide_tiles),
                       p.page_stride};
  const int64_t blocks = int64_t{sms} * WIDEN_BLOCKS_PER_SM / p.num_rows;
  const dim3 grid(static_cast<unsigned>(blocks < 1 ? 1 : blocks), p.num_rows);
  mla_fp8_widen_kernel<<<grid, WIDEN_THREADS, 0, static_cast<cudaStream_t>(p.stream)>>>(args);
  IRM_TRY(cudaGetLastError());
  return IRM_OK;
}

}  // namespace irminsul::mla::fp8
