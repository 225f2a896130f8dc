// Rows of every layer -> the same rows at their targets, k_r turned.
// Knows a checked job; decides nothing about it.
//
// Bound by memory, so the work is to keep enough of it in flight and to read nothing twice. A block
// takes a few rows through many layers: slots and angles are read once, the copy engine brings
// whole rows into shared memory and takes them out again, several layers ahead, and threads touch
// nothing but the k_r at the end of each row, in place.
// Tried and lost, as parts of the device's own copy at 32,768 tokens x 27 layers (this: 0.91):
// 16-byte loads and stores of threads, unrolled over layers (0.88; half-split 0.72) or over rows
// (0.87); blocks that stay and walk through tiles of one layer after the other (0.87); blocks that
// stay and take equal stretches of what is done here (0.89); this with source lines marked
// evict-first (0.88).
// Source lines outlive others in L2 (evict-last), so that it is written lines that leave, steadily
// and in their order: 0.91 becomes 0.93. Targets marked evict-first or evict-last change nothing.
#pragma once

#include "common/bulk.cuh"
#include "common/launch.cuh"
#include "relocate/formats.cuh"
#include "relocate/params.h"

namespace irminsul::relocate {

/// Layers whose rows are in shared memory at a time. 3, 4 and 6 are equal within 1 %.
constexpr int STAGES = 4;
/// 8 bf16 rows or 16 e4m3 rows.
constexpr int STAGE_BYTES = 9216;

template <class Format>
constexpr int TILE_ROWS = STAGE_BYTES / ROW_BYTES<Format>;
/// One thread for each 16 bytes of k_r in a stage.
template <class Format>
constexpr int COPY_THREADS = TILE_ROWS<Format> * ROPE_CHUNKS<Format>;

struct RowTask {
  int64_t source = 0;
  int64_t target = 0;
  int64_t delta = 0;
  bool valid = false;  // there is such a row, and it breaks no rule

  __device__ __forceinline__ void load(const Job& job, uint32_t row) {
    if (row < job.num_rows) {
      source = job.source_slots[row];
      target = job.target_slots[row];
      delta = job.delta(row);
      // This runs beside the check, so it must not read out of bounds for a row that is refused.
      valid = job.is_slot(source) && job.is_slot(target) && job.is_delta(delta);
    }
  }
};

template <class Format, bool INTERLEAVED>
__global__ void __launch_bounds__(COPY_THREADS<Format>)
    copy_kernel(const __grid_constant__ Job job, const __grid_constant__ Layers layers) {
  constexpr int ROWS = TILE_ROWS<Format>;
  constexpr int BYTES = ROW_BYTES<Format>;
  static_assert(ROWS <= 32, "warp 0 looks after one row a lane");
  __shared__ alignas(128) char stages[STAGES][STAGE_BYTES];
  __shared__ uint64_t full[STAGES];
  const int begin = blockIdx.y * layers.per_block;
  const int count = min(layers.per_block, layers.count - begin);

  // The engine's side: warp 0, a lane a row.
  const bool is_warp_0 = threadIdx.x < 32;
  RowTask task;
  const uint64_t keep = keep_in_l2();
  if (threadIdx.x < ROWS) {
    task.load(job, blockIdx.x * ROWS + threadIdx.x);
  }
  const uint32_t bytes = is_warp_0 ? __popc(__ballot_sync(0xffffffff, task.valid)) * BYTES : 0;
  const auto fetch = [&](int step) {
    const int stage = step % STAGES;
    const int layer = begin + step;
    if (threadIdx.x == 0) {
      barrier_expect(&full[stage], bytes);
    }
    __syncwarp();
    if (task.valid) {
      bulk_load(&stages[stage][threadIdx.x * BYTES],
                layers.address[layer] + task.source * layers.stride_bytes[layer], BYTES,
                &full[stage], keep);
    }
  };
  if (is_warp_0) {
    if (threadIdx.x == 0) {
      for (uint64_t& barrier : full) {
        barrier_init(&barrier, 1);
      }
      barrier_init_fence();
    }
    __syncwarp();
    for (int step = 0; step < min(count, STAGES - 1); ++step) {
      fetch(step);
    }
  }

  // The threads' side: 16 bytes of k_r each, of one row in all layers.
  const int row = threadIdx.x / ROPE_CHUNKS<Format>;
  const int chunk = threadIdx.x % ROPE_CHUNKS<Format>;
  RowTask turned;
  turned.load(job, blockIdx.x * ROWS + row);
  const bool turns = turned.valid && turned.delta != 0;
  Turn<Format, INTERLEAVED> turn;
  if (turns) {
    turn.load(job.cos_sin, turned.delta, chunk);
  }
  wait_for_previous_kernel();
  const bool refused = load_shared_word(&job.workspace->fault) != IRM_FAULT_NONE;
  __syncthreads();  // the barriers are there
  if (refused) {
    for (int step = 0; step < min(count, STAGES - 1); ++step) {
      barrier_wait(&full[step], 0);  // the engine still writes to this block's memory
    }
    return;
  }

  for (int step = 0; step < count; ++step) {
    const int stage = step % STAGES;
    barrier_wait(&full[stage], step / STAGES % 2);
    auto* k_r = reinterpret_cast<uint4*>(&stages[stage][row * BYTES]) + LATENT_CHUNKS<Format>;
    const uint4 own = k_r[chunk];
    const uint4 other = INTERLEAVED ? own : k_r[chunk ^ (ROPE_CHUNKS<Format> / 2)];
    __syncwarp();  // a row's k_r is read whole before any of it is replaced
    if (turns) {
      k_r[chunk] = turn.apply(own, other);
      fence_for_bulk();
    }
    __syncthreads();
    if (is_warp_0) {
      const int layer = begin + step;
      if (task.valid) {
        bulk_store(layers.address[layer] + task.target * layers.stride_bytes[layer],
                   &stages[stage][threadIdx.x * BYTES], BYTES);
      }
      bulk_commit();
      if (step + STAGES - 1 < count) {
        // The stage to fill held the layer before this one; its rows may still be leaving.
        bulk_wait_read<1>();
        __syncwarp();
        fetch(step + STAGES - 1);
      }
    }
  }
  bulk_wait_read<0>();
}

}  // namespace irminsul::relocate
