// Runs of tokens -> their slots, positions and deltas on a stream. What src/abi.cu sees of this
// folder. Knows the ABI struct; no kernel.
#pragma once

#include "irminsul/abi.h"

namespace irminsul::spans {

/// Checks what the host can check, then enqueues the work.
IrmStatus launch_write(const IrmSpansParams& params) noexcept;

}  // namespace irminsul::spans
