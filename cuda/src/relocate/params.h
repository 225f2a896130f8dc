// What the relocation kernels are told: one job, and the layers of one launch.
// Plain data; knows no kernel and no launch.
#pragma once

#include <cstdint>

#include "irminsul/abi.h"

namespace irminsul::relocate {

constexpr int ROW_NUMBERS = 576;
constexpr int LATENT_NUMBERS = 512;  // c_KV, copied verbatim
constexpr int ROPE_NUMBERS = 64;     // k_r, turned
constexpr int ROPE_PAIRS = ROPE_NUMBERS / 2;

/// Layers that one launch takes by value; more need further launches.
constexpr int MAX_LAYERS = 128;

/// Scratch memory: a header, then one word per slot.
struct Workspace {
  uint32_t fault;  // IrmRelocateFault of this call, 0 while there is none
  uint32_t padding[3];
};

struct Job {
  const int64_t* source_slots;  // [num_rows]
  const int64_t* target_slots;  // [num_rows]
  const void* deltas;           // [num_rows] int32 or int64
  const float* cos_sin;         // [num_positions, 64]
  int64_t num_slots;
  int64_t num_positions;
  Workspace* workspace;
  uint32_t* owners;  // [num_slots], behind the header
  IrmRelocateReport* report;
  uint32_t num_rows;
  bool wide_deltas;  // int64

  __device__ int64_t delta(uint32_t row) const {
    return wide_deltas ? static_cast<const int64_t*>(deltas)[row]
                       : static_cast<const int32_t*>(deltas)[row];
  }
  __device__ bool is_slot(int64_t slot) const {
    return static_cast<uint64_t>(slot) < static_cast<uint64_t>(num_slots);
  }
  __device__ bool is_delta(int64_t delta) const {
    return -num_positions < delta && delta < num_positions;
  }
};

struct Layers {
  char* address[MAX_LAYERS];
  int64_t stride_bytes[MAX_LAYERS];
  int count;
  int per_block;  // layers that one block walks through
};

}  // namespace irminsul::relocate
