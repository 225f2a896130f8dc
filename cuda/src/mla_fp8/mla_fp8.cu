// C parameter structs -> checked launches of attention over an e4m3 cache and of its combination.
// Host code; the only file here that launches, and that chooses a variant.
#include "mla_fp8/mla_fp8.h"

#include <cuda_runtime.h>

#include "common/status.h"
#include "mla/combine.cuh"
#include "mla/mla.h"
#include "mla/tensor_map.h"
#include "mla_fp8/kernel.cuh"

namespace irminsul::mla::fp8 {
namespace {

constexpr float LOG2_E = 1.44269504088896341f;
constexpr int COMBINE_BLOCKS_PER_SM = 2;  // as many as run at a time

IrmStatus count_sms(int& sms) {
  int device = 0;
  IRM_TRY(cudaGetDevice(&device));
  IRM_TRY(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, device));
  return IRM_OK;
}

IrmStatus check_shape(const IrmMlaAttentionParams& p) {
  IRM_REQUIRE(p.num_rows >= 0, "num_rows is %d; it must not be negative", p.num_rows);
  IRM_REQUIRE(p.total_q >= 0, "total_q is %d; it must not be negative", p.total_q);
  IRM_REQUIRE(p.num_heads >= 1 && p.num_heads <= 128, "num_heads is %d; it must be in 1..128",
              p.num_heads);
  IRM_REQUIRE(int64_t{p.total_q} * p.num_heads < (int64_t{1} << 31),
              "total_q * num_heads is %lld; it must be below 2**31",
              static_cast<long long>(p.total_q) * p.num_heads);
  IRM_REQUIRE(p.max_q_len >= 0, "max_q_len is %d; it must not be negative", p.max_q_len);
  IRM_REQUIRE(p.cluster == 1, "cluster is %d; over an fp8 cache it must be 1, also in the plan",
              p.cluster);
  return IRM_OK;
}

IrmStatus check_buffers(const IrmMlaAttentionParams& p, const PlanLayout& at) {
  IRM_REQUIRE(p.num_pages >= 1 && p.num_pages < (int64_t{1} << 31),
              "num_pages is %lld; it must be in 1..2**31 - 1", static_cast<long long>(p.num_pages));
  IRM_REQUIRE(p.page_stride >= PAGE_SIZE * ROW_BYTES && p.page_stride % 16 == 0,
              "page_stride is %lld bytes; it must be a multiple of 16 and at least %d",
              static_cast<long long>(p.page_stride), PAGE_SIZE * ROW_BYTES);
  IRM_REQUIRE(p.num_positions >= 0, "num_positions is %d; it must not be negative",
              p.num_positions);
  if (p.plan == nullptr || p.plan_bytes < at.bytes) {
    return fail(IRM_ERROR_WORKSPACE, "plan_bytes is %llu; %llu are needed",
                static_cast<unsigned long long>(p.plan_bytes),
                static_cast<unsigned long long>(at.bytes));
  }
  if (p.workspace == nullptr || p.workspace_bytes < workspace_bytes()) {
    return fail(IRM_ERROR_WORKSPACE, "workspace_bytes is %llu; %llu are needed",
                static_cast<unsigned long long>(p.workspace_bytes),
                static_cast<unsigned long long>(workspace_bytes()));
  }
  return IRM_OK;
}

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

Args make_args(const IrmMlaAttentionParams& p, const PlanLayout& at, int sms) {
  const auto* plan = static_cast<const uint8_t*>(p.plan);
  Args args{};
  args.boundaries = reinterpret_cast<const Boundary*>(plan + at.boundaries);
  args.units = reinterpret_cast<const Unit*>(plan + at.units);
  args.tiles = reinterpret_cast<const Tile*>(p.tiles);
  args.cos_sin = p.cos_sin;
  args.q = static_cast<const __nv_bfloat16*>(p.q);
  args.out = static_cast<__nv_bfloat16*>(p.out);
  args.lse = p.lse;
  args.partial_out = static_cast<float*>(p.workspace);
  args.partial_lse = args.partial_out + int64_t{2} * sms * BLOCK_M * LATENT_DIM;
  args.scale_log2 = p.scale * LOG2_E;
  args.num_heads = p.num_heads;
  args.num_positions = p.cos_sin == nullptr ? 0 : p.num_positions;
  args.interleaved = p.interleaved;
  // Keys that one unit alone reads need not stay in L2; those of several units do.
  const bool shared = int64_t{p.num_heads} * p.max_q_len > BLOCK_M;
  args.key_policy = static_cast<uint64_t>(shared ? cute::TMA::CacheHintSm90::EVICT_NORMAL
                                                 : cute::TMA::CacheHintSm90::EVICT_FIRST);
  return args;
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

IrmStatus launch_combine(const Args& args, const uint8_t* plan, const PlanLayout& at, int sms,
                         cudaStream_t stream) {
  CombineArgs combine{};
  combine.header = reinterpret_cast<const PlanHeader*>(plan);
  combine.splits = reinterpret_cast<const Split*>(plan + at.splits);
  combine.block = BLOCK_M;
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
  config.stream = stream;
  config.attrs = &early;
  config.numAttrs = 1;
  IRM_TRY(cudaLaunchKernelEx(&config, mla_combine_kernel, combine));
  return IRM_OK;
}

}  // namespace

IrmStatus launch_attention(const IrmMlaAttentionParams& p) noexcept {
  IrmStatus status = check_shape(p);
  if (status != IRM_OK || p.total_q == 0) return status;
  int sms = 0;
  if ((status = count_sms(sms)) != IRM_OK) return status;
  const PlanLayout at =
      plan_layout(p.num_rows, max_units(p.total_q, p.num_rows, p.num_heads, 1), sms);
  if ((status = check_buffers(p, at)) != IRM_OK) return status;
  Args args = make_args(p, at, sms);
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
  return launch_combine(args, static_cast<const uint8_t*>(p.plan), at, sms, stream);
}

}  // namespace irminsul::mla::fp8
