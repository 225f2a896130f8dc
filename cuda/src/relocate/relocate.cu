// Checked parameters -> the check kernel and the copy kernels on a stream.
// Knows launch shapes; the arithmetic is in formats.cuh, the rules are in check.cuh.
#include "relocate/relocate.h"

#include <cuda_runtime.h>

#include <algorithm>

#include "common/early_launch.h"
#include "common/status.h"
#include "relocate/check.cuh"
#include "relocate/copy.cuh"
#include "relocate/copy_unaligned.cuh"

namespace irminsul::relocate {
namespace {

using CopyKernel = void (*)(Job, Layers);

struct Kernels {
  CopyKernel aligned;
  CopyKernel unaligned;
  uint32_t tile_rows;
  uint32_t threads;
  uint32_t waves;
};

/// Blocks to have for each that the device can hold: fewer leave it idle at the end, more read
/// slots and angles again. bf16: 4 and 16 are equal within 1 %. e4m3 rows are half as long, so at
/// 4,096 tokens 16 is 0.81 of the device's copy and 4 is 0.86; at 32,768 they are 0.90 and 0.89.
template <class Format>
constexpr uint32_t WAVES = sizeof(typename Format::Storage) == 1 ? 4 : 16;

template <class Format>
Kernels kernels_of(bool interleaved) {
  if (interleaved) {
    return {copy_kernel<Format, true>, copy_unaligned_kernel<Format, true>, TILE_ROWS<Format>,
            COPY_THREADS<Format>, WAVES<Format>};
  }
  return {copy_kernel<Format, false>, copy_unaligned_kernel<Format, false>, TILE_ROWS<Format>,
          COPY_THREADS<Format>, WAVES<Format>};
}

bool is_aligned(uint64_t value, uint64_t to) { return value % to == 0; }

Job job_of(const IrmRelocateParams& params) {
  Job job{};
  job.source_slots = params.source_slots;
  job.target_slots = params.target_slots;
  job.deltas = params.deltas;
  job.cos_sin = params.cos_sin;
  job.num_slots = params.num_slots;
  job.num_positions = params.num_positions;
  job.workspace = static_cast<Workspace*>(params.workspace);
  job.owners = reinterpret_cast<uint32_t*>(job.workspace + 1);
  job.report = params.report;
  job.num_rows = static_cast<uint32_t>(params.num_rows);
  job.wide_deltas = params.delta_bytes == 8;
  return job;
}

IrmStatus check_call(const IrmRelocateParams& params) {
  IRM_REQUIRE(params.num_layers >= 1, "num_layers is %d, at least 1 is needed", params.num_layers);
  IRM_REQUIRE(params.num_rows >= 0 && params.num_rows <= INT32_MAX,
              "num_rows is %lld, allowed: 0 to 2147483647",
              static_cast<long long>(params.num_rows));
  IRM_REQUIRE(params.num_slots >= 1 && params.num_slots <= UINT32_MAX,
              "num_slots is %lld, allowed: 1 to 4294967295",
              static_cast<long long>(params.num_slots));
  IRM_REQUIRE(params.num_positions >= 1, "num_positions is %lld, at least 1 is needed",
              static_cast<long long>(params.num_positions));
  IRM_REQUIRE(params.row_format == IRM_ROW_BF16 || params.row_format == IRM_ROW_E4M3,
              "row_format is %d, allowed: 0 (bf16), 1 (e4m3)", params.row_format);
  IRM_REQUIRE(params.delta_bytes == 4 || params.delta_bytes == 8,
              "delta_bytes is %d, allowed: 4, 8", params.delta_bytes);
  IRM_REQUIRE(params.layer_addresses && params.layer_strides && params.source_slots &&
                  params.target_slots && params.deltas && params.cos_sin && params.workspace &&
                  params.report,
              "a required pointer is null");
  IRM_REQUIRE(is_aligned(reinterpret_cast<uint64_t>(params.cos_sin), 16) &&
                  is_aligned(reinterpret_cast<uint64_t>(params.workspace), 16),
              "cos_sin and workspace must be 16-byte aligned");
  if (params.workspace_bytes < workspace_bytes(params.num_slots)) {
    return fail(IRM_ERROR_WORKSPACE, "workspace_bytes is %llu, %llu are needed",
                static_cast<unsigned long long>(params.workspace_bytes),
                static_cast<unsigned long long>(workspace_bytes(params.num_slots)));
  }
  return IRM_OK;
}

IrmStatus check_layers(const IrmRelocateParams& params) {
  const int number_bytes = params.row_format == IRM_ROW_BF16 ? 2 : 1;
  for (int i = 0; i < params.num_layers; ++i) {
    IRM_REQUIRE(params.layer_addresses[i] != 0 &&
                    is_aligned(params.layer_addresses[i], number_bytes),
                "layer %d: the address is null or not aligned to a number", i);
    IRM_REQUIRE(params.layer_strides[i] >= ROW_NUMBERS * number_bytes &&
                    is_aligned(params.layer_strides[i], number_bytes),
                "layer %d: a stride of %lld bytes does not hold whole rows", i,
                static_cast<long long>(params.layer_strides[i]));
  }
  return IRM_OK;
}

/// Signs, then reads back; see check.cuh.
IrmStatus launch_check(const Job& job, void* stream) {
  const dim3 grid((job.num_rows + CHECK_THREADS - 1) / CHECK_THREADS);
  const EarlyLaunch launch{grid, CHECK_THREADS, stream};
  if (const IrmStatus status = launch.run(sign_kernel, job); status != IRM_OK) {
    return status;
  }
  return launch.run(read_back_kernel, job);
}

/// Fills `layers` from the caller's arrays; true when the fast kernel can take them.
bool take_layers(const IrmRelocateParams& params, int first, Layers& layers) {
  layers.count = std::min(params.num_layers - first, MAX_LAYERS);
  bool aligned = true;
  for (int i = 0; i < layers.count; ++i) {
    layers.address[i] = reinterpret_cast<char*>(params.layer_addresses[first + i]);
    layers.stride_bytes[i] = params.layer_strides[first + i];
    aligned = aligned && is_aligned(params.layer_addresses[first + i], 16) &&
              is_aligned(params.layer_strides[first + i], 16);
  }
  return aligned;
}

/// Blocks of the copy kernel that the device holds at a time.
IrmStatus resident_blocks(const Kernels& kernels, uint32_t& blocks) {
  int device = 0;
  int processors = 0;
  int per_processor = 0;
  IRM_TRY(cudaGetDevice(&device));
  IRM_TRY(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device));
  IRM_TRY(cudaOccupancyMaxActiveBlocksPerMultiprocessor(
      &per_processor, kernels.aligned, static_cast<int>(kernels.threads), 0));
  blocks = static_cast<uint32_t>(std::max(1, processors * per_processor));
  return IRM_OK;
}

IrmStatus launch_copy(const Kernels& kernels, const Job& job, Layers& layers, void* stream) {
  uint32_t resident = 0;
  if (const IrmStatus status = resident_blocks(kernels, resident); status != IRM_OK) {
    return status;
  }
  const uint32_t tiles = (job.num_rows + kernels.tile_rows - 1) / kernels.tile_rows;
  const uint32_t count = static_cast<uint32_t>(layers.count);
  const uint32_t parts = std::clamp((kernels.waves * resident + tiles - 1) / tiles, 1u, count);
  layers.per_block = static_cast<int>((count + parts - 1) / parts);
  const uint32_t used = (count + layers.per_block - 1) / layers.per_block;
  const EarlyLaunch launch{dim3(tiles, used), static_cast<int>(kernels.threads), stream};
  return launch.run(kernels.aligned, job, layers);
}

IrmStatus launch_copy_unaligned(const Kernels& kernels, const Job& job, Layers& layers,
                                void* stream) {
  const dim3 grid((job.num_rows + UNALIGNED_ROWS - 1) / UNALIGNED_ROWS, layers.count);
  const EarlyLaunch launch{grid, UNALIGNED_ROWS * 32, stream};
  return launch.run(kernels.unaligned, job, layers);
}

}  // namespace

uint64_t workspace_bytes(int64_t num_slots) noexcept {
  const uint64_t slots = num_slots > 0 ? static_cast<uint64_t>(num_slots) : 0;
  return sizeof(Workspace) + slots * sizeof(uint32_t);
}

IrmStatus launch(const IrmRelocateParams& params) noexcept {
  for (const auto check : {check_call, check_layers}) {
    if (const IrmStatus status = check(params); status != IRM_OK) {
      return status;
    }
  }
  if (params.num_rows == 0) {
    return IRM_OK;
  }
  const Job job = job_of(params);
  if (const IrmStatus status = launch_check(job, params.stream); status != IRM_OK) {
    return status;
  }
  const Kernels kernels = params.row_format == IRM_ROW_BF16
                              ? kernels_of<Bf16>(params.interleaved != 0)
                              : kernels_of<E4m3>(params.interleaved != 0);
  for (int first = 0; first < params.num_layers; first += MAX_LAYERS) {
    Layers layers{};
    const bool aligned = take_layers(params, first, layers);
    const auto copy = aligned ? launch_copy : launch_copy_unaligned;
    if (const IrmStatus status = copy(kernels, job, layers, params.stream); status != IRM_OK) {
      return status;
    }
  }
  return IRM_OK;
}

}  // namespace irminsul::relocate
