// C entry points -> the launchers of the kernel folders. The only extern "C" of the library.
// Checks size and version, forwards, and lets no exception out; holds no kernel.
#include <cuda_runtime.h>

#include "common/status.h"
#include "irminsul/abi.h"
#include "mla/mla.h"
#include "mla_fp8/mla_fp8.h"
#include "relocate/relocate.h"
#include "spans/spans.h"

#define IRM_TEXT_OF(value) #value
#define IRM_TEXT(value) IRM_TEXT_OF(value)

namespace {

/// Every parameter struct begins with `size` and `version`.
template <class Params>
IrmStatus check_abi(const Params* params) {
  if (params == nullptr) {
    return irminsul::fail(IRM_ERROR_ARGUMENT, "params is null");
  }
  if (params->version != IRM_ABI_VERSION || params->size != sizeof(Params)) {
    return irminsul::fail(IRM_ERROR_ABI,
                          "the caller uses version %u with %u bytes, the library version %u with "
                          "%u",
                          params->version, params->size, IRM_ABI_VERSION,
                          static_cast<unsigned>(sizeof(Params)));
  }
  return IRM_OK;
}

template <class Params>
int32_t forward(const Params* params, IrmStatus (*launch)(const Params&) noexcept) {
  const IrmStatus status = check_abi(params);
  return status == IRM_OK ? launch(*params) : status;
}

}  // namespace

extern "C" {

uint32_t irm_abi_version(void) { return IRM_ABI_VERSION; }

uint32_t irm_struct_size(int32_t which) {
  switch (which) {
    case IRM_STRUCT_RELOCATE_PARAMS:
      return sizeof(IrmRelocateParams);
    case IRM_STRUCT_RELOCATE_REPORT:
      return sizeof(IrmRelocateReport);
    case IRM_STRUCT_MLA_TILE:
      return sizeof(IrmMlaTile);
    case IRM_STRUCT_MLA_TILES_PARAMS:
      return sizeof(IrmMlaTilesParams);
    case IRM_STRUCT_MLA_PLAN_PARAMS:
      return sizeof(IrmMlaPlanParams);
    case IRM_STRUCT_MLA_ATTENTION_PARAMS:
      return sizeof(IrmMlaAttentionParams);
    case IRM_STRUCT_MLA_WIDEN_PARAMS:
      return sizeof(IrmMlaWidenParams);
    case IRM_STRUCT_MLA_TURN_PARAMS:
      return sizeof(IrmMlaTurnParams);
    case IRM_STRUCT_SPAN_RUN:
      return sizeof(IrmSpanRun);
    case IRM_STRUCT_SPANS_PARAMS:
      return sizeof(IrmSpansParams);
    default:
      return 0;
  }
}

const char* irm_build_info(void) {
  return "CUDA " IRM_TEXT(__CUDACC_VER_MAJOR__) "." IRM_TEXT(__CUDACC_VER_MINOR__) ", sm_90a";
}

const char* irm_last_error(void) { return irminsul::last_error(); }

int32_t irm_check_device(int32_t device) {
  int major = 0;
  int minor = 0;
  IRM_TRY(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device));
  IRM_TRY(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device));
  // Code for sm_90a has no forward or backward compatibility: exactly 9.0 or nothing.
  if (major != 9 || minor != 0) {
    return irminsul::fail(IRM_ERROR_DEVICE,
                          "device %d has compute capability %d.%d; the kernels are built for 9.0",
                          device, major, minor);
  }
  return IRM_OK;
}

uint64_t irm_relocate_workspace_bytes(int64_t num_slots) {
  return irminsul::relocate::workspace_bytes(num_slots);
}

int32_t irm_relocate_rows(const IrmRelocateParams* params) {
  return forward(params, irminsul::relocate::launch);
}

uint64_t irm_mla_plan_bytes(int64_t num_rows, int64_t total_q, int64_t num_heads) {
  return irminsul::mla::plan_bytes(num_rows, total_q, num_heads);
}

uint64_t irm_mla_workspace_bytes(void) { return irminsul::mla::workspace_bytes(); }

int32_t irm_mla_tiles(const IrmMlaTilesParams* params) {
  return forward(params, irminsul::mla::launch_tiles);
}

int32_t irm_mla_plan(const IrmMlaPlanParams* params) {
  return forward(params, irminsul::mla::launch_plan);
}

int32_t irm_mla_turn(const IrmMlaTurnParams* params) {
  return forward(params, irminsul::mla::launch_turn);
}

int32_t irm_mla_attention(const IrmMlaAttentionParams* params) {
  return forward(params, irminsul::mla::launch_attention);
}

int32_t irm_mla_fp8_attention(const IrmMlaAttentionParams* params) {
  return forward(params, irminsul::mla::fp8::launch_attention);
}

int32_t irm_mla_fp8_widen(const IrmMlaWidenParams* params) {
  return forward(params, irminsul::mla::fp8::launch_widen);
}

int32_t irm_write_spans(const IrmSpansParams* params) {
  return forward(params, irminsul::spans::launch_write);
}

}  // extern "C"
