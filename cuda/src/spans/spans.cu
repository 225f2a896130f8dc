// Runs of tokens -> their slots, positions and deltas, one number a token each.
// Knows int64 arrays; not what a slot or a position is.
//
// A planned batch needs five arrays over some ten thousand tokens that a few dozen runs describe.
// The runs travel as kernel parameters: no copy to the device, no memory that outlives the call.
#include "spans/spans.h"

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>

#include "common/status.h"

namespace irminsul::spans {
namespace {

constexpr int THREADS = 256;
/// Runs of one launch; kernel parameters end at 4,096 bytes.
constexpr int MOST_RUNS = 96;
/// Tokens that a thread writes at least where runs are long, and blocks of a run at most.
constexpr int64_t TOKENS = 4;
constexpr int64_t MOST_BLOCKS = 32;

struct Outputs {
  int64_t* computed_slots;
  int64_t* positions;
  int64_t* source_slots;
  int64_t* target_slots;
  int64_t* deltas;
};

struct Table {
  IrmSpanRun run[MOST_RUNS];
  Outputs out;
};
static_assert(sizeof(Table) <= 4096);

/// Block (x, y) writes every gridDim.x-th part of run y.
__global__ void __launch_bounds__(THREADS) write_kernel(const __grid_constant__ Table table) {
  const IrmSpanRun& run = table.run[blockIdx.y];
  const auto* given = reinterpret_cast<const int64_t*>(run.given);
  const auto* sources = reinterpret_cast<const int64_t*>(run.sources);
  const Outputs& out = table.out;
  const int64_t step = static_cast<int64_t>(gridDim.x) * THREADS;
  for (int64_t i = blockIdx.x * THREADS + threadIdx.x; i < run.count; i += step) {
    const int64_t place = run.first + i;
    if (sources == nullptr) {
      out.computed_slots[place] = given[i];
      out.positions[place] = run.value + i;
    } else {
      out.source_slots[place] = sources[i];
      out.target_slots[place] = given[i];
      out.deltas[place] = run.value;
    }
  }
}

IrmStatus check_run(const IrmSpansParams& params, int index) {
  const IrmSpanRun& run = params.runs[index];
  const int64_t most = run.sources == 0 ? params.num_computed : params.num_moved;
  IRM_REQUIRE(run.given != 0 && run.given % 8 == 0 && run.sources % 8 == 0,
              "run %d: slots are not 8-byte aligned", index);
  IRM_REQUIRE(run.count >= 1 && run.count <= most && run.first >= 0 &&
                  run.first <= most - run.count,
              "run %d: tokens %lld + %lld are not within %lld", index,
              static_cast<long long>(run.first), static_cast<long long>(run.count),
              static_cast<long long>(most));
  return IRM_OK;
}

Outputs outputs_of(const IrmSpansParams& params) {
  Outputs out{};
  out.computed_slots = params.numbers;
  out.positions = out.computed_slots + params.num_computed;
  out.source_slots = out.positions + params.num_computed;
  out.target_slots = out.source_slots + params.num_moved;
  out.deltas = out.target_slots + params.num_moved;
  return out;
}

}  // namespace

IrmStatus launch_write(const IrmSpansParams& params) noexcept {
  IRM_REQUIRE(params.num_runs >= 0 && params.num_computed >= 0 && params.num_moved >= 0,
              "a number of runs or tokens is negative");
  IRM_REQUIRE(params.num_runs == 0 || (params.runs != nullptr && params.numbers != nullptr),
              "runs or numbers is null");
  for (int index = 0; index < params.num_runs; ++index) {
    if (const IrmStatus status = check_run(params, index); status != IRM_OK) {
      return status;
    }
  }
  Table table{};
  table.out = outputs_of(params);
  for (int first = 0; first < params.num_runs; first += MOST_RUNS) {
    const int count = std::min(params.num_runs - first, MOST_RUNS);
    std::copy_n(params.runs + first, count, table.run);
    int64_t longest = 1;
    for (int index = 0; index < count; ++index) {
      longest = std::max(longest, table.run[index].count);
    }
    const int64_t part = THREADS * TOKENS;
    const int64_t blocks = std::min((longest + part - 1) / part, MOST_BLOCKS);
    const dim3 grid(static_cast<unsigned>(blocks), static_cast<unsigned>(count));
    write_kernel<<<grid, THREADS, 0, static_cast<cudaStream_t>(params.stream)>>>(table);
    IRM_TRY(cudaGetLastError());
  }
  return IRM_OK;
}

}  // namespace irminsul::spans
