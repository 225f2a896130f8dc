// Slots and deltas of a call -> a fault word that the copy kernel obeys, and a report for the host.
// Knows nothing of rows and layers.
//
// Reading a slot that the same call writes would make the result depend on timing, so it must be an
// error; finding it must cost neither a sort nor a host synchronisation. Every row first signs the
// word of its source and of its target slot, then reads both back: a target whose word holds
// another name than its own was signed by a second row, and a source whose word holds a target's
// name is written by somebody. Words that no row of this call signed are never read, so they need
// no clearing, and the cost follows the rows, not the size of the pool.
// Tried on paper and dropped: a bitmap of the pool (clearing it is a launch of its own, and grows
// with the pool), sorting (several launches), a hash table (clearing again).
#pragma once

#include <cooperative_groups.h>

#include "common/launch.cuh"
#include "relocate/params.h"

namespace irminsul::relocate {

constexpr int CHECK_THREADS = 1024;
/// Largest portable cluster: signing and reading back are separated by its hardware barrier.
constexpr int CHECK_MAX_BLOCKS = 8;

/// Names of row i in the words of its slots: i as a source, num_rows + i as a target.
__device__ __forceinline__ void sign(const Job& job, uint32_t row) {
  const int64_t source = job.source_slots[row];
  const int64_t target = job.target_slots[row];
  if (job.is_slot(source)) {
    store_shared_word(&job.owners[source], row);
  }
  if (job.is_slot(target)) {
    store_shared_word(&job.owners[target], job.num_rows + row);
  }
}

/// The first fault wins the report; the rest of the call's rows need no naming.
__device__ __forceinline__ void report(const Job& job, uint32_t code, uint32_t row, int64_t value) {
  if (atomicCAS(&job.workspace->fault, static_cast<uint32_t>(IRM_FAULT_NONE), code) != 0) {
    return;
  }
  volatile IrmRelocateReport* out = job.report;
  out->row = row;
  out->value = value;
  __threadfence_system();  // the host reads `code` first, then the two fields above
  out->code = static_cast<int32_t>(code);
}

__device__ __forceinline__ void read_back(const Job& job, uint32_t row) {
  const int64_t source = job.source_slots[row];
  const int64_t target = job.target_slots[row];
  const int64_t delta = job.delta(row);
  if (!job.is_slot(source)) {
    return report(job, IRM_FAULT_SOURCE_SLOT, row, source);
  }
  if (!job.is_slot(target)) {
    return report(job, IRM_FAULT_TARGET_SLOT, row, target);
  }
  if (!job.is_delta(delta)) {
    return report(job, IRM_FAULT_DELTA, row, delta);
  }
  if (load_shared_word(&job.owners[source]) >= job.num_rows) {
    return report(job, IRM_FAULT_OVERLAP, row, source);
  }
  const uint32_t owner = load_shared_word(&job.owners[target]);
  if (owner != job.num_rows + row) {
    report(job, owner < job.num_rows ? IRM_FAULT_OVERLAP : IRM_FAULT_TWICE, row, target);
  }
}

/// One cluster, whatever the number of rows.
__global__ void __launch_bounds__(CHECK_THREADS) check_kernel(const __grid_constant__ Job job) {
  // The copy kernel reads slots, tables and source rows meanwhile, and stores nothing before this
  // kernel has ended.
  let_next_kernel_start();
  const uint32_t first = blockIdx.x * CHECK_THREADS + threadIdx.x;
  const uint32_t stride = gridDim.x * CHECK_THREADS;
  if (first == 0) {
    job.workspace->fault = IRM_FAULT_NONE;
  }
  for (uint64_t row = first; row < job.num_rows; row += stride) {
    sign(job, static_cast<uint32_t>(row));
  }
  cooperative_groups::this_cluster().sync();
  for (uint64_t row = first; row < job.num_rows; row += stride) {
    read_back(job, static_cast<uint32_t>(row));
  }
}

}  // namespace irminsul::relocate
