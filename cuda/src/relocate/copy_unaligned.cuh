// Rows at any address and stride -> the same rows at their targets, number by number.
// Knows a checked job; decides nothing about it.
#pragma once

#include "common/launch.cuh"
#include "relocate/formats.cuh"
#include "relocate/params.h"

namespace irminsul::relocate {

/// Rows of a block.
constexpr int UNALIGNED_ROWS = 8;

/// A warp a row and layer, number by number. Nothing is promised
/// about its speed; buffers of serving engines are aligned.
template <class Format, bool INTERLEAVED>
__global__ void __launch_bounds__(UNALIGNED_ROWS * 32)
    copy_unaligned_kernel(const __grid_constant__ Job job, const __grid_constant__ Layers layers) {
  using Storage = typename Format::Storage;
  wait_for_previous_kernel();
  if (load_shared_word(&job.workspace->fault) != IRM_FAULT_NONE) {
    return;
  }
  const uint32_t row = blockIdx.x * UNALIGNED_ROWS + threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  if (row >= job.num_rows) {
    return;
  }
  const int layer = blockIdx.y;
  const int64_t stride = layers.stride_bytes[layer];
  const auto* from =
      reinterpret_cast<const Storage*>(layers.address[layer] + job.source_slots[row] * stride);
  auto* to = reinterpret_cast<Storage*>(layers.address[layer] + job.target_slots[row] * stride);
  for (int i = lane; i < LATENT_NUMBERS; i += 32) {
    to[i] = from[i];
  }
  const int first = LATENT_NUMBERS + (INTERLEAVED ? 2 * lane : lane);
  const int second = INTERLEAVED ? first + 1 : first + ROPE_PAIRS;
  const int64_t delta = job.delta(row);
  if (delta == 0) {
    to[first] = from[first];
    to[second] = from[second];
    return;
  }
  const float* angles = job.cos_sin + (delta < 0 ? -delta : delta) * ROPE_NUMBERS;
  const float cosine = angles[lane];
  const float sine = delta < 0 ? -angles[ROPE_PAIRS + lane] : angles[ROPE_PAIRS + lane];
  const float a = Format::widen(from[first]);
  const float b = Format::widen(from[second]);
  to[first] = Format::narrow(turned(a, cosine, b, -sine));
  to[second] = Format::narrow(turned(b, cosine, a, sine));
}

}  // namespace irminsul::relocate
