// Slots and deltas of a call -> a fault word that the copy kernel obeys, and a report for the host.
// Knows nothing of rows and layers.
//
// Reading a slot that the same call writes would make the result depend on timing, so it must be an
// error; finding it must cost neither a sort nor a host synchronisation. Every row first signs the
// word of its source and of its target slot, then reads both back: a target whose word holds
// another name than its own was signed by a second row, and a source whose word holds a target's
// name is written by somebody. Words that no row of this call signed are never read, so they need
// no clearing, and the cost follows the rows, not the size of the pool.
// Signing and reading back are kernels of their own, a row a thread, each launched while the one
// before it runs, and the copy's first reads are under way before a word is read back: 0.01 of the
// device's copy at 4,096 rows.
// Tried and lost: both in one cluster of 8 or 16 blocks, whose few processors take 2 to 10 us
// longer; a hash set of the targets in the cluster's shared memory, 3 to 30 us longer still.
// Tried on paper and dropped: a bitmap of the pool (clearing it is a launch of its own, and grows
// with the pool), sorting (several launches).
#pragma once

#include "common/launch.cuh"
#include "relocate/params.h"

namespace irminsul::relocate {

constexpr int CHECK_THREADS = 256;

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

__global__ void __launch_bounds__(CHECK_THREADS) sign_kernel(const __grid_constant__ Job job) {
  wait_for_previous_kernel();
  let_next_kernel_start();
  const uint32_t row = blockIdx.x * CHECK_THREADS + threadIdx.x;
  if (row == 0) {
    job.workspace->fault = IRM_FAULT_NONE;
  }
  if (row < job.num_rows) {
    sign(job, row);
  }
}

__global__ void __launch_bounds__(CHECK_THREADS) read_back_kernel(const __grid_constant__ Job job) {
  // The copy kernel reads slots, tables and source rows from here on. They are as all work before
  // the call left them: every block of sign_kernel waits for that before this kernel may start. It
  // stores nothing before this kernel has ended, which waits for sign_kernel's words.
  let_next_kernel_start();
  const uint32_t row = blockIdx.x * CHECK_THREADS + threadIdx.x;
  const bool there = row < job.num_rows;
  const int64_t source = there ? job.source_slots[row] : 0;
  const int64_t target = there ? job.target_slots[row] : 0;
  const int64_t delta = there ? job.delta(row) : 0;
  const bool valid = job.is_slot(source) && job.is_slot(target) && job.is_delta(delta);
  wait_for_previous_kernel();
  uint32_t at_source = 0;
  uint32_t at_target = 0;
  if (there && valid) {
    at_source = load_shared_word(&job.owners[source]);
    at_target = load_shared_word(&job.owners[target]);
  }
  if (!there) {
    return;
  }
  if (!job.is_slot(source)) {
    return report(job, IRM_FAULT_SOURCE_SLOT, row, source);
  }
  if (!job.is_slot(target)) {
    return report(job, IRM_FAULT_TARGET_SLOT, row, target);
  }
  if (!job.is_delta(delta)) {
    return report(job, IRM_FAULT_DELTA, row, delta);
  }
  if (at_source >= job.num_rows) {
    return report(job, IRM_FAULT_OVERLAP, row, source);
  }
  if (at_target != job.num_rows + row) {
    report(job, at_target < job.num_rows ? IRM_FAULT_OVERLAP : IRM_FAULT_TWICE, row, target);
  }
}

}  // namespace irminsul::relocate
