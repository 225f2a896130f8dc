// Checked parameters -> kernels on a stream. What src/abi.cu sees of this folder.
// Knows the ABI struct; no kernel.
#pragma once

#include <cstdint>

#include "irminsul/abi.h"

namespace irminsul::relocate {

/// Bytes of scratch memory for layers of `num_slots` slots.
uint64_t workspace_bytes(int64_t num_slots) noexcept;

/// Checks what the host can check, then enqueues the work.
IrmStatus launch(const IrmRelocateParams& params) noexcept;

}  // namespace irminsul::relocate
