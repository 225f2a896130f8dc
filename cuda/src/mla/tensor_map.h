// Addresses and strides -> TMA descriptors. Host code; knows the driver's encoder, found at run
// time so that the library needs no libcuda to load. Knows nothing of attention.
#pragma once

#include <cuda.h>
#include <cuda_runtime.h>

#include "common/status.h"

namespace irminsul::mla {

using EncodeTiled = CUresult (*)(CUtensorMap*, CUtensorMapDataType, cuuint32_t, void*,
                                 const cuuint64_t*, const cuuint64_t*, const cuuint32_t*,
                                 const cuuint32_t*, CUtensorMapInterleave, CUtensorMapSwizzle,
                                 CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

inline IrmStatus find_encoder(EncodeTiled& encoder) {
  static EncodeTiled found = nullptr;
  if (found == nullptr) {
    void* entry = nullptr;
    cudaDriverEntryPointQueryResult result{};
    IRM_TRY(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &entry, 12000,
                                             cudaEnableDefault, &result));
    if (entry == nullptr || result != cudaDriverEntryPointSuccess) {
      return fail(IRM_ERROR_DEVICE, "the driver has no cuTensorMapEncodeTiled; it is too old");
    }
    found = reinterpret_cast<EncodeTiled>(entry);
  }
  encoder = found;
  return IRM_OK;
}

// bf16 tensor of `rank` dimensions, innermost first, read in boxes with the 128-byte swizzle.
template <int RANK>
IrmStatus encode_map(CUtensorMap& map, const void* address, const cuuint64_t (&sizes)[RANK],
                     const cuuint64_t (&strides)[RANK - 1], const cuuint32_t (&box)[RANK]) {
  EncodeTiled encoder = nullptr;
  const IrmStatus status = find_encoder(encoder);
  if (status != IRM_OK) return status;
  cuuint32_t steps[RANK];
  for (auto& step : steps) step = 1;
  const CUresult result =
      encoder(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, RANK, const_cast<void*>(address), sizes,
              strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
              CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS) {
    return fail(IRM_ERROR_CUDA, "cuTensorMapEncodeTiled: error %d", static_cast<int>(result));
  }
  return IRM_OK;
}

}  // namespace irminsul::mla
