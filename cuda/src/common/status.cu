// A failed step -> a status code and its text on this thread.
// Knows the ABI's status codes and the CUDA runtime's; no kernel and no parameter struct.
#include "common/status.h"

#include <cstdarg>
#include <cstdio>

namespace irminsul {
namespace {

// A fixed buffer: an error path that allocates can fail itself.
thread_local char error_text[512] = "";

}  // namespace

IrmStatus fail(IrmStatus status, const char* format, ...) noexcept {
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(error_text, sizeof error_text, format, arguments);
  va_end(arguments);
  return status;
}

IrmStatus fail_cuda(cudaError_t error, const char* call) noexcept {
  // A failed launch stays in the runtime until it is read; leave none behind for the next caller.
  (void)cudaGetLastError();
  return fail(IRM_ERROR_CUDA, "%s (%s) in %s", cudaGetErrorString(error), cudaGetErrorName(error),
              call);
}

const char* last_error() noexcept { return error_text; }

}  // namespace irminsul
