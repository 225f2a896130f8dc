// A kernel and its arguments -> a launch that may start while the kernel before it still runs.
// Host code; knows no kernel. What such a kernel must wait for itself: common/launch.cuh.
#pragma once

#include <cuda_runtime.h>

#include "common/status.h"

namespace irminsul {

/// The grid of a launch; `threads` of a block, `shared_bytes` of dynamic shared memory.
struct EarlyLaunch {
  dim3 grid;
  int threads;
  void* stream;
  size_t shared_bytes = 0;

  template <class... Parameters, class... Arguments>
  IrmStatus run(void (*kernel)(Parameters...), const Arguments&... arguments) const noexcept {
    cudaLaunchAttribute early{};
    early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    early.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config{};
    config.gridDim = grid;
    config.blockDim = dim3(threads);
    config.dynamicSmemBytes = shared_bytes;
    config.stream = static_cast<cudaStream_t>(stream);
    config.attrs = &early;
    config.numAttrs = 1;
    IRM_TRY(cudaLaunchKernelEx(&config, kernel, arguments...));
    return IRM_OK;
  }
};

}  // namespace irminsul
