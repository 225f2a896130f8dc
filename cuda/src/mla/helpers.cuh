// The helper warpgroup: page numbers -> key tiles and queries in shared memory, ready to multiply.
// Knows rings and TMA; nothing of scores or outputs.
#pragma once

#include "layout.cuh"

namespace irminsul::mla {

template <class C>
__device__ __forceinline__ void load_pair(const Args& args, Storage<C>& sm, Ring<C::PAIRS>& ring,
                                          int page, int slab, int rank) {
  barrier_wait(&sm.pair_empty[ring.slot], ring.phase ^ 1);
  uint64_t* full = &sm.pair_full[ring.slot];
  barrier_expect(full, PAIR_BYTES);
  if constexpr (C::CLUSTER == 1) {
    cute::SM90_TMA_LOAD_4D::copy(&args.keys, full, args.key_policy, sm.pairs[ring.slot], 0, 0,
                                 slab, page);
  } else {
    constexpr int SLABS = PAIR_SLABS / C::CLUSTER;
    cute::SM90_TMA_LOAD_MULTICAST_4D::copy(
        &args.keys, full, (1 << C::CLUSTER) - 1, args.key_policy,
        sm.pairs[ring.slot] + rank * SLABS * SLAB_BYTES, 0, 0, slab + rank * SLABS, page);
  }
  ring.advance();
}

__device__ __forceinline__ bool in_table(const Args& args, int delta) {
  return delta < args.num_positions && -delta < args.num_positions;
}

// The k_r slab, what the tile is, and the angles of its delta.
template <class C>
__device__ __forceinline__ void load_rope(const Args& args, Storage<C>& sm, Ring<C::ROPES>& ring,
                                          const Tile& tile, bool first, int rank) {
  barrier_wait(&sm.rope_empty[ring.slot], ring.phase ^ 1);
  uint64_t* full = &sm.rope_full[ring.slot];
  sm.tiles[ring.slot] = TileInfo{tile.bounds, tile.delta, tile.pos0, first};
  const bool turns = tile.delta != 0 && in_table(args, tile.delta);
  barrier_expect(full, SLAB_BYTES + (turns ? ROPE_DIM * 4 : 0));
  constexpr int SLAB = LATENT_DIM / SLAB_DIM;
  if constexpr (C::CLUSTER == 1) {
    cute::SM90_TMA_LOAD_4D::copy(&args.ropes, full, args.key_policy, sm.ropes[ring.slot], 0, 0,
                                 SLAB, tile.page);
  } else {
    constexpr int ROWS = PAGE_SIZE / C::CLUSTER;
    cute::SM90_TMA_LOAD_MULTICAST_4D::copy(
        &args.ropes, full, (1 << C::CLUSTER) - 1, args.key_policy,
        sm.ropes[ring.slot] + rank * ROWS * 128, 0, rank * ROWS, SLAB, tile.page);
  }
  if (turns) {
    const float* angles = args.cos_sin + int64_t{tile.delta < 0 ? -tile.delta : tile.delta} * ROPE_DIM;
    cute::SM90_BULK_COPY_G2S::copy(angles, full, sm.angles[ring.slot], ROPE_DIM * 4);
  }
  ring.advance();
}

template <class C>
__device__ __forceinline__ void load_query_pairs(const Args& args, Storage<C>& sm,
                                                 Ring<C::PAIRS>& ring, int flat_row) {
  const auto policy = static_cast<uint64_t>(cute::TMA::CacheHintSm90::EVICT_FIRST);
#pragma unroll
  for (int slab = 0; slab < C::Q_SLABS; ++slab) {
    uint64_t* full = &sm.pair_full[ring.slot];
    if (slab % PAIR_SLABS == 0) {
      barrier_wait(&sm.pair_empty[ring.slot], ring.phase ^ 1);
      barrier_expect(full, PAIR_BYTES);
    }
    cute::SM90_TMA_LOAD_3D::copy(&args.queries, full, policy,
                                 sm.pairs[ring.slot] + slab % PAIR_SLABS * SLAB_BYTES, 0, flat_row,
                                 slab);
    if (slab % PAIR_SLABS == PAIR_SLABS - 1) ring.advance();
  }
}

// All tiles of all units, in order, through the rings. Lanes hold the next 32 tiles each time, so
// that no load of the table stands between two copies.
template <class C>
__device__ __forceinline__ void key_warp(const Args& args, Storage<C>& sm, const Work& work,
                                         int rank, int lane) {
  Ring<C::PAIRS> pairs;
  Ring<C::ROPES> ropes;
  int count = work.begin.first_tiles, tile_at = work.begin.tile_at;
  int flat_row = work.begin.flat_row;
  for (int u = work.begin.unit; u <= work.last_unit; ++u) {
    const int4* table = reinterpret_cast<const int4*>(args.tiles) + tile_at;
    int4 now{}, next = lane < count ? __ldg(table + lane) : int4{};
    const Unit coming = u < work.last_unit ? args.units[u + 1] : Unit{};
    if (lane == 0 && count > 0) {
      load_query_pairs<C>(args, sm, pairs, flat_row + rank * BLOCK_M);
    }
    for (int t = 0; t < count; ++t) {
      if (t % 32 == 0) {
        now = next;
        if (t + 32 + lane < count) next = __ldg(table + t + 32 + lane);
      }
      Tile tile;
      tile.page = __shfl_sync(~0u, now.x, t % 32);
      tile.bounds = __shfl_sync(~0u, now.y, t % 32);
      tile.delta = __shfl_sync(~0u, now.z, t % 32);
      tile.pos0 = __shfl_sync(~0u, now.w, t % 32);
      if (lane == 0) {
        load_rope<C>(args, sm, ropes, tile, t == 0, rank);
        for (int pair = 0; pair < TILE_PAIRS; ++pair) {
          load_pair<C>(args, sm, pairs, tile.page, pair * PAIR_SLABS, rank);
        }
      }
      __syncwarp();
    }
    count = work.end_tile(u + 1, coming.num_tiles);
    tile_at = coming.tile0;
    flat_row = coming.flat_row;
  }
}

// The resident slabs of Q and the description of each unit.
template <class C>
__device__ __forceinline__ void query_warp(const Args& args, Storage<C>& sm, const Work& work,
                                           int worker, int rank) {
  if (work.empty()) {  // an item without rows sends the other warpgroups home
    sm.item = Item{0, 0, 0, 0, 0, -1, 1};
    barrier_arrive(&sm.q_full);
    return;
  }
  uint32_t phase = 0;
  const auto policy = static_cast<uint64_t>(cute::TMA::CacheHintSm90::EVICT_FIRST);
  for (int u = work.begin.unit; u <= work.last_unit; ++u) {
    const Unit unit = args.units[u];
    const int first = work.first_tile(u), end = work.end_tile(u, unit.num_tiles);
    const int row = unit.head0 + rank * BLOCK_M;
    Item item;
    item.flat_row = unit.flat_row + rank * BLOCK_M;
    item.num_rows = min(max(unit.num_rows - rank * BLOCK_M, 0), BLOCK_M);
    item.head0 = row % args.num_heads;
    item.first_pos = unit.first_pos + row / args.num_heads;
    item.num_tiles = end - first;
    item.partial_slot = first > 0 ? 2 * worker : end < unit.num_tiles ? 2 * worker + 1 : -1;
    item.last = u == work.last_unit;
    barrier_wait(&sm.q_empty, phase ^ 1);
    sm.item = item;
    if (item.num_tiles == 0) {
      barrier_arrive(&sm.q_full);
    } else {
      barrier_expect(&sm.q_full, C::Q_SHARED_SLABS * SLAB_BYTES);
#pragma unroll
      for (int slab = 0; slab < C::Q_SHARED_SLABS; ++slab) {
        cute::SM90_TMA_LOAD_3D::copy(&args.queries, &sm.q_full, policy, sm.q[slab], 0,
                                     item.flat_row, slab + C::Q_SLABS);
      }
    }
    phase ^= 1;
  }
}

template <class C>
__device__ __forceinline__ void transform_warps(const Args& args, Storage<C>& sm, const Work& work,
                                                int thread) {
  Ring<C::PAIRS> pairs;
  Ring<C::ROPES> ropes;
  const bool interleaved = args.interleaved;
  for (int t = 0; t < work.begin.total_tiles; ++t) {
    barrier_wait(&sm.rope_full[ropes.slot], ropes.phase);
    const TileInfo tile = sm.tiles[ropes.slot];
    if (tile.first) pairs.advance(C::Q_PAIRS);
    if (tile.delta != 0) {
      const Rotation rotation = in_table(args, tile.delta)
                                    ? read_rotation(sm.angles[ropes.slot], tile.delta, thread)
                                    : no_rotation();
      rotate_slab(sm.ropes[ropes.slot], rotation, interleaved, thread);
    }
    // Not by the pairs' own barriers: whoever skips phases there cannot tell one from the next.
    if (tile.bounds != FULL_PAGE) barrier_wait(&sm.tile_full[ropes.slot], ropes.phase);
    for (int pair = 0; pair < TILE_PAIRS; ++pair) {
      if (tile.bounds != FULL_PAGE) {
        zero_foreign_rows(sm.pairs[pairs.slot], tile.bounds & 0xFFFF, tile.bounds >> 16, thread);
      }
      pairs.advance();
    }
    fence_async_proxy();
    __syncwarp();
    if (thread % 32 == 0) barrier_arrive(&sm.rope_ready[ropes.slot]);
    ropes.advance();
  }
}

}  // namespace irminsul::mla
