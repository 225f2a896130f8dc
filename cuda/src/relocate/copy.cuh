// Rows of every layer -> the same rows at their targets, k_r turned.
// Knows a checked job; decides nothing about it.
//
// Bound by memory: a row is read once and written once, 16 bytes a thread. A thread keeps its place
// in the row and its angles, and walks through several layers with all their loads in flight before
// the first store. The eight (e4m3: four) threads of a row that hold k_r turn it on the way.
#pragma once

#include "common/launch.cuh"
#include "relocate/formats.cuh"
#include "relocate/params.h"

namespace irminsul::relocate {

#ifndef IRM_RELOCATE_UNROLL
#define IRM_RELOCATE_UNROLL 4
#endif
/// Layers whose loads a thread has in flight together.
constexpr int UNROLL = IRM_RELOCATE_UNROLL;
/// 4 bf16 rows of 72 chunks, or 8 e4m3 rows of 36.
constexpr int COPY_THREADS = 288;

template <class Format>
constexpr int ROWS_PER_BLOCK = COPY_THREADS / ROW_CHUNKS<Format>;

template <class Format, bool INTERLEAVED>
__global__ void __launch_bounds__(COPY_THREADS)
    copy_kernel(const __grid_constant__ Job job, const __grid_constant__ Layers layers) {
  const int chunk = threadIdx.x % ROW_CHUNKS<Format>;
  const uint32_t row =
      blockIdx.x * ROWS_PER_BLOCK<Format> + threadIdx.x / ROW_CHUNKS<Format>;
  if (row >= job.num_rows) {
    return wait_for_previous_kernel();
  }
  const int64_t source = job.source_slots[row];
  const int64_t target = job.target_slots[row];
  const int64_t delta = job.delta(row);
  // This runs beside the check, so it must not read out of bounds for a row that will be refused.
  // It waits all the same: a kernel that ends before the check would let the stream go on.
  if (!job.is_slot(source) || !job.is_slot(target) || !job.is_delta(delta)) {
    return wait_for_previous_kernel();
  }

  const int rope_chunk = chunk - LATENT_CHUNKS<Format>;
  const bool turns = rope_chunk >= 0 && delta != 0;
  Turn<Format, INTERLEAVED> turn;
  if (turns) {
    turn.load(job.cos_sin, delta, rope_chunk);
  }
  // In half-split rows the other half of k_r is half of its chunks away.
  constexpr int HALF_BYTES = ROPE_CHUNKS<Format> / 2 * 16;
  const int partner = rope_chunk < ROPE_CHUNKS<Format> / 2 ? HALF_BYTES : -HALF_BYTES;

  const int begin = blockIdx.y * layers.per_block;
  const int end = min(begin + layers.per_block, layers.count);
  bool checked = false;
  for (int first = begin; first < end; first += UNROLL) {
    uint4 own[UNROLL];
    uint4 other[UNROLL];
#pragma unroll
    for (int i = 0; i < UNROLL; ++i) {
      if (first + i < end) {
        const char* from = layers.address[first + i] + source * layers.stride_bytes[first + i];
        own[i] = load_once(from + chunk * 16);
        if (!INTERLEAVED && turns) {
          other[i] = load_once(from + chunk * 16 + partner);
        }
      }
    }
    if (!checked) {
      wait_for_previous_kernel();
      if (load_shared_word(&job.workspace->fault) != IRM_FAULT_NONE) {
        return;
      }
      checked = true;
    }
#pragma unroll
    for (int i = 0; i < UNROLL; ++i) {
      if (first + i < end) {
        char* to = layers.address[first + i] + target * layers.stride_bytes[first + i];
        const uint4 value = turns ? turn.apply(own[i], other[i]) : own[i];
        *reinterpret_cast<uint4*>(to + chunk * 16) = value;
      }
    }
  }
}

/// Rows at any address and stride: a warp a row and layer, number by number. Nothing is promised
/// about its speed; buffers of serving engines are aligned.
template <class Format, bool INTERLEAVED>
__global__ void __launch_bounds__(256)
    copy_unaligned_kernel(const __grid_constant__ Job job, const __grid_constant__ Layers layers) {
  using Storage = typename Format::Storage;
  wait_for_previous_kernel();
  if (load_shared_word(&job.workspace->fault) != IRM_FAULT_NONE) {
    return;
  }
  const uint32_t row = blockIdx.x * (256 / 32) + threadIdx.x / 32;
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
