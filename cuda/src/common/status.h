// A failed step -> a status code and, for irm_last_error, its text on this thread.
// Knows the ABI's status codes and the CUDA runtime's; no kernel and no parameter struct.
#pragma once

#include <cuda_runtime_api.h>

#include "irminsul/abi.h"

namespace irminsul {

/// Keeps printf-style text for irm_last_error and returns `status`.
[[gnu::format(printf, 2, 3)]] IrmStatus fail(IrmStatus status, const char* format, ...) noexcept;

/// Keeps the runtime's own text for `error`, with the call that failed.
IrmStatus fail_cuda(cudaError_t error, const char* call) noexcept;

/// Text of the last failure on this thread, empty when there was none.
const char* last_error() noexcept;

}  // namespace irminsul

/// Returns IRM_ERROR_CUDA from the enclosing function when the CUDA call fails.
#define IRM_TRY(call)                                             \
  do {                                                            \
    const cudaError_t irm_try_error = (call);                     \
    if (irm_try_error != cudaSuccess) {                           \
      return ::irminsul::fail_cuda(irm_try_error, #call);         \
    }                                                             \
  } while (false)

/// Returns IRM_ERROR_ARGUMENT with the given text when the condition does not hold.
#define IRM_REQUIRE(condition, ...)                               \
  do {                                                            \
    if (!(condition)) {                                           \
      return ::irminsul::fail(IRM_ERROR_ARGUMENT, __VA_ARGS__);   \
    }                                                             \
  } while (false)
