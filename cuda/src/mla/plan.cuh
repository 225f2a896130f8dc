// Rows, their tiles and a number of workers -> who computes which tiles of which query rows.
// Runs on the device only; knows nothing of how a tile is computed.
//
// Every unit costs its tiles plus OVERHEAD_TILES. The costs of all units form one line, cut into
// equal parts, one for each worker: units are split where a cut falls inside them, and a worker
// has at most two partial results, at the start and at the end of its part. Units that follow one
// another in a sequence stand in neighbouring workers' parts, who read its keys side by side.
#pragma once

#include <cuda_runtime.h>

#include "config.h"

namespace irminsul::mla {

constexpr int PLAN_THREADS = 1024;
constexpr int OVERHEAD_TILES = 2;  // first load, query load and epilogue of a unit, in tiles
constexpr int MIN_SPLIT_TILES = 2;
constexpr int SPLIT_COST = 6;      // combining partial results, in tiles of every worker, and
constexpr int SPLIT_PART = 24;     // this part of its work: what is split reads and writes more
constexpr int MIN_WORKER_COST = 3;  // also keeps two cuts from falling on the same tile

struct PlanArgs {
  const int32_t* q_indptr;    // [num_rows + 1]
  const int32_t* q_pos;       // [num_rows]
  const int32_t* tile_start;  // [num_rows]
  const int32_t* tile_count;  // [num_rows]
  const Tile* tiles;
  uint8_t* plan;
  PlanLayout at;
  int64_t max_units;
  int32_t num_rows, num_heads, total_q, num_workers, cluster;
};

// Exclusive prefix sum over the block; `total` is the same in every thread.
template <class T>
__device__ T block_prefix(T value, T* warps, T& total) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  T sum = value;
  for (int by = 1; by < 32; by *= 2) {
    const T other = __shfl_up_sync(~0u, sum, by);
    if (lane >= by) sum += other;
  }
  __syncthreads();
  if (lane == 31) warps[warp] = sum;
  __syncthreads();
  if (warp == 0) {
    T w = warps[lane];
    for (int by = 1; by < 32; by *= 2) {
      const T other = __shfl_up_sync(~0u, w, by);
      if (lane >= by) w += other;
    }
    warps[lane] = w;
  }
  __syncthreads();
  total = warps[31];
  return sum - value + (warp > 0 ? warps[warp - 1] : T{0});
}

// Query rows (token x head) of row r. Row num_rows holds the padding tokens after the last row.
__device__ __forceinline__ int2 query_range(const PlanArgs& a, int r) {
  const int first = min(max(a.q_indptr[r], 0), a.total_q);
  const int last = r < a.num_rows ? min(max(a.q_indptr[r + 1], first), a.total_q) : a.total_q;
  return {first, last};
}

// Number of entries of the ascending array that are at most `value`.
template <class T>
__device__ int upper_bound(const T* array, int count, T value) {
  int lo = 0, hi = count;
  while (lo < hi) {
    const int mid = (lo + hi) / 2;
    if (array[mid] <= value) lo = mid + 1;
    else hi = mid;
  }
  return lo;
}

// Tiles of a row whose first position is at most `last_pos`.
__device__ __forceinline__ int visible_tiles(const Tile* tiles, int count, int last_pos) {
  if (count == 0 || tiles[count - 1].pos0 <= last_pos) return count;
  int lo = 0, hi = count - 1;
  while (lo < hi) {
    const int mid = (lo + hi) / 2;
    if (tiles[mid].pos0 <= last_pos) lo = mid + 1;
    else hi = mid;
  }
  return lo;
}

// Unit at place p of the line: worker w's part, were all alike, holds units w, w + workers, ..., and
// one of the units left over where parts are unequal.
__device__ __forceinline__ int unit_at(int p, int num_units, int workers) {
  const int64_t n = num_units;
  const int w = static_cast<int>(((p + int64_t{1}) * workers - 1) / n);
  const int first = static_cast<int>(n * w / workers), rounds = num_units / workers;
  const int round = p - first;
  return round < rounds ? round * workers + w : rounds * workers + first - rounds * w;
}

__device__ Unit make_unit(const PlanArgs& a, const int32_t* row_units, int u) {
  const int r = upper_bound(row_units, a.num_rows + 1, u) - 1;
  const int2 range = query_range(a, r);
  const int rows = (range.y - range.x) * a.num_heads;
  const int m = (u - row_units[r]) * BLOCK_M * a.cluster;
  Unit unit{};
  unit.flat_row = range.x * a.num_heads + m;
  unit.num_rows = min(rows - m, BLOCK_M * a.cluster);
  unit.head0 = m % a.num_heads;
  if (r == a.num_rows) return unit;
  unit.first_pos = a.q_pos[r] + m / a.num_heads;
  unit.tile0 = a.tile_start[r];
  const int last_pos = a.q_pos[r] + (m + unit.num_rows - 1) / a.num_heads;
  unit.num_tiles = visible_tiles(a.tiles + unit.tile0, a.tile_count[r], last_pos);
  return unit;
}

// Where the line of costs is cut at `cost`. Cuts that would leave a sliver snap to the unit's edge.
__device__ int2 cut(const int64_t* costs, const Unit* units, int num_units, int64_t cost) {
  const int u = upper_bound(costs, num_units, cost) - 1;
  if (u < 0 || u >= num_units || cost >= costs[num_units]) return {num_units, 0};
  const int tiles = units[u].num_tiles;
  const int tile = static_cast<int>(cost - costs[u]) - OVERHEAD_TILES;
  if (tile < MIN_SPLIT_TILES) return {u, 0};
  if (tile > tiles - MIN_SPLIT_TILES) return {u + 1, 0};
  return {u, tile};
}

__global__ void __launch_bounds__(PLAN_THREADS) mla_plan_kernel(const PlanArgs a) {
  __shared__ int64_t warps[32];
  __shared__ int num_splits, split_rows, longest;
  auto* header = reinterpret_cast<PlanHeader*>(a.plan);
  auto* boundaries = reinterpret_cast<Boundary*>(a.plan + a.at.boundaries);
  auto* splits = reinterpret_cast<Split*>(a.plan + a.at.splits);
  auto* row_units = reinterpret_cast<int32_t*>(a.plan + a.at.row_units);
  auto* units = reinterpret_cast<Unit*>(a.plan + a.at.units);
  auto* costs = reinterpret_cast<int64_t*>(a.plan + a.at.costs);
  const int thread = threadIdx.x;
  if (thread == 0) num_splits = split_rows = longest = 0;

  int64_t before = 0, total = 0;
  for (int first = 0; first <= a.num_rows; first += PLAN_THREADS) {
    const int r = first + thread;
    int64_t count = 0;
    if (r <= a.num_rows) {
      const int2 range = query_range(a, r);
      const int block = BLOCK_M * a.cluster;
      count = (int64_t{range.y - range.x} * a.num_heads + block - 1) / block;
    }
    const int64_t at = before + block_prefix(count, warps, total);
    if (r <= a.num_rows) row_units[r] = static_cast<int32_t>(at);
    before += total;
  }
  const int num_units = static_cast<int>(min(before, a.max_units));
  __syncthreads();

  before = 0;
  for (int first = 0; first < num_units; first += PLAN_THREADS) {
    const int u = first + thread;
    int64_t cost = 0;
    if (u < num_units) {
      units[u] = make_unit(a, row_units, unit_at(u, num_units, a.num_workers));
      cost = units[u].num_tiles + OVERHEAD_TILES;
      atomicMax(&longest, static_cast<int>(cost));
    }
    const int64_t at = before + block_prefix(cost, warps, total);
    if (u < num_units) costs[u] = at;
    before += total;
  }
  if (thread == 0) costs[num_units] = before;
  __syncthreads();

  const int workers = a.num_workers;
  const int64_t busy = min(int64_t{workers}, max(before / MIN_WORKER_COST, int64_t{1}));
  // Whole units in equal numbers, where that takes hardly longer than equal parts of the line.
  const int share = (num_units + workers - 1) / workers;
  const int64_t even = before / workers;
  const bool whole = int64_t{share} * longest <= even + even / SPLIT_PART + SPLIT_COST;
  for (int w = thread; w <= workers; w += PLAN_THREADS) {
    const int2 at = w == 0      ? int2{0, 0}
                    : whole     ? int2{min(w * share, num_units), 0}
                    : w >= busy ? int2{num_units, 0}
                                : cut(costs, units, num_units, before * w / busy);
    boundaries[w] = Boundary{at.x, at.y};
  }
  __syncthreads();

  // Tiles before a boundary: its place on the line without the overheads.
  const auto tiles_before = [&](const Boundary& b) {
    return costs[b.unit] - int64_t{b.unit} * OVERHEAD_TILES + b.tile;
  };
  for (int w = thread; w < workers; w += PLAN_THREADS) {
    const Boundary begin = boundaries[w], end = boundaries[w + 1];
    Boundary& mine = boundaries[w];
    mine.total_tiles = static_cast<int>(tiles_before(end) - tiles_before(begin));
    const int latest = end.tile > 0 ? end.unit : end.unit - 1;
    if (latest >= begin.unit) {
      const Unit& unit = units[latest];
      const int first = latest == begin.unit ? begin.tile : 0;
      mine.first_tiles = (latest == end.unit ? end.tile : unit.num_tiles) - first;
      mine.tile_at = unit.tile0 + first;
      mine.flat_row = unit.flat_row;
    }
    const bool opens = end.tile > 0 && (begin.unit < end.unit || begin.tile == 0);
    if (!opens) continue;
    int last = w + 1;
    while (boundaries[last + 1].unit == end.unit) ++last;
    const Unit& unit = units[end.unit];
    atomicMax(&split_rows, unit.num_rows);
    splits[atomicAdd(&num_splits, 1)] = Split{unit.flat_row, unit.num_rows, w, last - w + 1};
  }
  __syncthreads();
  if (thread == 0) *header = PlanHeader{num_units, num_splits, workers, a.cluster, split_rows};
}

}  // namespace irminsul::mla
