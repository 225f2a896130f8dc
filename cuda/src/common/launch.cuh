// Device helpers that several kernels share: dependent launches, words shared between blocks.
// Knows PTX; no layout of any cache.
#pragma once

#include <cstdint>

namespace irminsul {

/// Lets the next kernel of the stream start while this one runs. That one must call
/// wait_for_previous_kernel before it reads what this one writes.
__device__ __forceinline__ void let_next_kernel_start() {
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

/// Waits until the kernel before this one has ended and its writes are visible.
__device__ __forceinline__ void wait_for_previous_kernel() {
  asm volatile("griddepcontrol.wait;" ::: "memory");
}

/// A word that other blocks may write at the same time; whole, and never from a stale L1 line.
__device__ __forceinline__ uint32_t load_shared_word(const uint32_t* address) {
  uint32_t value;
  asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(address) : "memory");
  return value;
}

__device__ __forceinline__ void store_shared_word(uint32_t* address, uint32_t value) {
  asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(address), "r"(value) : "memory");
}

}  // namespace irminsul
