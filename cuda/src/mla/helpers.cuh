// The helper warpgroup: page numbers -> key tiles and queries in shared memory, ready to multiply.
// Knows rings and TMA; nothing of scores or outputs.
#pragma once

#include "common/bulk.cuh"
#include "layout.cuh"

namespace irminsul::mla {

template <class C>
__device__ __forceinline__ void load_pair(const Args& args, Storage<C>& sm, Ring<C::PAIRS>& ring,
                                          int page, int pair) {
  barrier_wait(&sm.pair_empty[ring.slot], ring.phase ^ 1);
  uint64_t* full = &sm.pair_full[ring.slot];
  barrier_expect(full, PAIR_BYTES);
  cute::SM90_TMA_LOAD_4D::copy(&args.keys, full, args.key_policy, sm.pairs[ring.slot], 0, 0,
                               pair * PAIR_SLABS, page);
  ring.advance();
}

// The k_r slab, what the tile is, and the angles of its delta, which stay in L2: spans that turn alike
// have many tiles. `index`: of the tile in the table.
template <class C>
__device__ __forceinline__ void load_rope(const Args& args, Storage<C>& sm, Ring<C::ROPES>& ring,
                                          const Tile& tile, int index, int flags) {
  barrier_wait(&sm.rope_empty[ring.slot], ring.phase ^ 1);
  uint64_t* full = &sm.rope_full[ring.slot];
  const bool turned = args.has_turned && tile.delta != 0;
  tile_info(sm, ring) = TileInfo{tile.bounds, turned ? 0 : tile.delta, tile.pos0, flags};
  const bool turns = tile.delta != 0 && !turned && in_table(tile.delta, args.num_positions);
  barrier_expect(full, SLAB_BYTES + (turns ? ROPE_DIM * 4 : 0));
  constexpr int SLAB = LATENT_DIM / SLAB_DIM;
  if (turned) {
    cute::SM90_TMA_LOAD_3D::copy(&args.turned, full, args.key_policy, sm.ropes[ring.slot], 0, 0,
                                 index);
  } else {
    cute::SM90_TMA_LOAD_4D::copy(&args.ropes, full, args.key_policy, sm.ropes[ring.slot], 0, 0,
                                 SLAB, tile.page);
  }
  if (turns) {
    const int64_t row = tile.delta < 0 ? -tile.delta : tile.delta;
    bulk_load(sm.angles[ring.slot], args.cos_sin + row * ROPE_DIM, ROPE_DIM * 4, full,
              static_cast<uint64_t>(cute::TMA::CacheHintSm90::EVICT_LAST));
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
      barrier_expect(full, slab + 1 < C::Q_SLABS ? PAIR_BYTES : SLAB_BYTES);
    }
    cute::SM90_TMA_LOAD_3D::copy(&args.queries, full, policy,
                                 sm.pairs[ring.slot] + slab % PAIR_SLABS * SLAB_BYTES, 0, flat_row,
                                 slab);
    if (slab % PAIR_SLABS == PAIR_SLABS - 1 || slab + 1 == C::Q_SLABS) ring.advance();
  }
}

// The table entries of a unit's tiles. Lanes hold the next 32 each time, so that no load of the
// table stands between two copies.
struct TileWindow {
  const int4* table;
  int count;
  int4 now{}, next{};

  __device__ __forceinline__ TileWindow(const Args& args, int tile_at, int count, int lane)
      : table(reinterpret_cast<const int4*>(args.tiles) + tile_at), count(count) {
    if (lane < count) next = __ldg(table + lane);
  }
  // Tile t, to be asked for one after the other by all lanes.
  __device__ __forceinline__ Tile at(int t, int lane) {
    if (t % 32 == 0) {
      now = next;
      if (t + 32 + lane < count) next = __ldg(table + t + 32 + lane);
    }
    Tile tile;
    tile.page = __shfl_sync(~0u, now.x, t % 32);
    tile.bounds = __shfl_sync(~0u, now.y, t % 32);
    tile.delta = __shfl_sync(~0u, now.z, t % 32);
    tile.pos0 = __shfl_sync(~0u, now.w, t % 32);
    return tile;
  }
  // Whether tile t, the last asked for, begins a run: MIN_RUN tiles with its delta.
  __device__ __forceinline__ bool begins_run(int t, int delta) const {
    const uint32_t these = __ballot_sync(~0u, now.z == delta);
    // Asked only where it matters: it may still be on its way.
    const uint32_t others = t % 32 > 32 - MIN_RUN ? __ballot_sync(~0u, next.z == delta) : 0;
    const uint32_t alike = __funnelshift_r(these, others, t % 32);
    return t + MIN_RUN <= count && (~alike & ((1u << MIN_RUN) - 1)) == 0;
  }
};

// Leaves in `tile` the delta that is still to be applied for it, and says to what. `queries`: by
// which they stand turned back.
__device__ __forceinline__ int choose_side(const Args& args, const TileWindow& tiles, int t,
                                           int& queries, Tile& tile) {
  const int delta = tile.delta;
  if (args.has_turned || delta == queries) {
    if (delta == queries) tile.delta = 0;
    return 0;
  }
  if (delta != 0 && in_table(delta, args.num_positions) && tiles.begins_run(t, delta)) {
    queries = delta;
    tile.delta = -delta;
    return TURN_QUERIES;
  }
  const int flags = queries != 0 ? RESTORE_QUERIES : 0;
  queries = 0;
  return flags;
}

// All tiles of all units, the last unit first, through the ring of pairs; k_r slabs too where the
// query warp does not load them.
template <class C>
__device__ __forceinline__ void key_warp(const Args& args, Storage<C>& sm, const Boundary* at,
                                         int rank, int lane) {
  Ring<C::PAIRS> pairs;
  Ring<C::ROPES> ropes;
  int count = at->first_tiles, tile_at = at->tile_at, flat_row = at->flat_row;
  for (int u = Work(at).last_unit;; --u) {
    TileWindow tiles(args, tile_at, count, lane);
    if (lane == 0 && count > 0) {
      load_query_pairs<C>(args, sm, pairs, flat_row + rank * BLOCK_M);
    }
    for (int t = 0; t < count; ++t) {
      const Tile tile = tiles.at(t, lane);
      if (lane == 0) {
        if (!C::LATE) load_rope<C>(args, sm, ropes, tile, tile_at + t, t == 0 ? FIRST_TILE : 0);
        for (int pair = 0; pair < TILE_PAIRS; ++pair) {
          load_pair<C>(args, sm, pairs, tile.page, pair);
        }
      }
      __syncwarp();
    }
    const Work work(at);  // read again: kept, it would cost registers in the loop
    if (u <= work.begin.unit) return;
    const Unit& coming = args.units[u - 1];
    const int first = work.first_tile(u - 1);
    count = coming.num_tiles - first;
    tile_at = coming.tile0 + first;
    flat_row = coming.flat_row;
  }
}

// What one CTA does of unit u.
__device__ __forceinline__ Item make_item(const Args& args, const Work& work, int u, int worker,
                                          int rank) {
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
  item.last = u == work.begin.unit;
  return item;
}

// Description and resident slabs of Q of one unit.
template <class C>
__device__ __forceinline__ void load_item(const Args& args, Storage<C>& sm, const Item& item,
                                          uint32_t phase) {
  const auto policy = static_cast<uint64_t>(cute::TMA::CacheHintSm90::EVICT_FIRST);
  barrier_wait(&sm.q_empty, phase ^ 1);
  sm.item = item;
  if (item.num_tiles == 0) {
    barrier_arrive(&sm.q_full);
    return;
  }
  barrier_expect(&sm.q_full, C::Q_SHARED_SLABS * SLAB_BYTES);
#pragma unroll
  for (int slab = 0; slab < C::Q_SHARED_SLABS; ++slab) {
    cute::SM90_TMA_LOAD_3D::copy(&args.queries, &sm.q_full, policy, sm.q[slab], 0, item.flat_row,
                                 slab + C::Q_SLABS);
  }
}

// Items with their queries; where P is handed over late, k_r slabs of their tiles as well, so that
// they are there and turned long before the third pair.
template <class C>
__device__ __forceinline__ void query_warp(const Args& args, Storage<C>& sm, const Boundary* at,
                                           int worker, int rank, int lane) {
  if (Work(at).empty()) {  // an item without rows sends the other warpgroups home
    if (lane != 0) return;
    sm.item = Item{0, 0, 0, 0, 0, -1, 1};
    barrier_arrive(&sm.q_full);
    return;
  }
  Ring<C::ROPES> ropes;
  uint32_t phase = 0;
  int tile_at = at->tile_at, count = at->first_tiles;
  for (int u = Work(at).last_unit;; --u) {
    TileWindow tiles(args, tile_at, C::LATE ? count : 0, lane);
    if (lane == 0) load_item(args, sm, make_item(args, Work(at), u, worker, rank), phase);
    __syncwarp();
    phase ^= 1;
    int queries = 0;
    for (int t = 0; C::LATE && t < count; ++t) {
      Tile tile = tiles.at(t, lane);
      int flags = choose_side(args, tiles, t, queries, tile);
      if (t == 0) flags |= FIRST_TILE;
      if (phase == 0) flags |= QUERY_PHASE;
      if (lane == 0) load_rope<C>(args, sm, ropes, tile, tile_at + t, flags);
      __syncwarp();
    }
    const Work work(at);
    if (u <= work.begin.unit) return;
    const Unit& coming = args.units[u - 1];
    const int first = work.first_tile(u - 1);
    count = coming.num_tiles - first;
    tile_at = coming.tile0 + first;
  }
}

// Zeroes the rows that the tile does not own, once all its pairs are there.
template <class C>
__device__ __forceinline__ void clean_tile(Storage<C>& sm, Ring<C::PAIRS> pairs,
                                           const Ring<C::ROPES>& ropes, int bounds, int thread) {
  // Not by the pairs' own barriers: whoever skips phases there cannot tell one from the next.
  barrier_wait(&sm.tile_full[ropes.slot], ropes.phase);
  uint8_t* slots[TILE_PAIRS];
#pragma unroll
  for (int i = 0; i < TILE_PAIRS; ++i) {
    slots[i] = sm.pairs[pairs.slot];
    pairs.advance();
  }
  zero_foreign_rows(slots, bounds & 0xFFFF, bounds >> 16, thread);
}

// The queries' rotary slab as it came, when no product reads the one that stands there. For a
// unit's first tile that is what was loaded with the others; else it is loaded again, which costs
// less than keeping it.
template <class C>
__device__ __forceinline__ void load_queries_again(const Args& args, Storage<C>& sm, int t,
                                                   int flags, uint32_t& phase, int thread) {
  if (flags & FIRST_TILE) {
    barrier_wait(&sm.q_full, flags & QUERY_PHASE ? 1 : 0);
    return;
  }
  const int before = t - 1;
  barrier_wait(&sm.rope_empty[before % C::ROPES], before / C::ROPES & 1);
  if (thread == 0) {
    barrier_expect(&sm.q_again, SLAB_BYTES);
    cute::SM90_TMA_LOAD_3D::copy(&args.queries, &sm.q_again,
                                 static_cast<uint64_t>(cute::TMA::CacheHintSm90::EVICT_LAST),
                                 sm.q[C::Q_SHARED_SLABS - 1], 0, sm.item.flat_row,
                                 LATENT_DIM / SLAB_DIM);
  }
  __syncwarp();
  barrier_wait(&sm.q_again, phase);
  phase ^= 1;
}

// Turns k_r, or the queries for a run of tiles, and cleans cut tiles. Where P is handed over late, S
// takes k_r before the last pairs are there: cleaning comes after it, beside the softmax, and P V
// waits for it.
template <class C>
__device__ __forceinline__ void transform_warps(const Args& args, Storage<C>& sm, int num_tiles,
                                                int thread) {
  Ring<C::PAIRS> pairs;
  Ring<C::ROPES> ropes;
  Ring<C::PS> ps;
  uint32_t again = 0;
  for (int t = 0; t < num_tiles; ++t) {
    barrier_wait(&sm.rope_full[ropes.slot], ropes.phase);
    const TileInfo& tile = tile_info(sm, ropes);
    const int bounds = tile.bounds, flags = tile.flags;
    if (flags & FIRST_TILE) pairs.advance(C::Q_PAIRS);
    uint8_t* slab = sm.ropes[ropes.slot];
    if (C::LATE && flags & TURN_QUERIES) {
      load_queries_again(args, sm, t, flags, again, thread);
      slab = sm.q[C::Q_SHARED_SLABS - 1];
    }
    if (const int delta = tile.delta; delta != 0) {
      // Turned earlier, beside more of the products, it costs more: docs/kernel.md.
      if (C::LATE) barrier_wait(&sm.p_full[ps.slot], ps.phase ^ 1);
      const Rotation rotation = in_table(delta, args.num_positions)
                                    ? read_rotation(sm.angles[ropes.slot], delta, thread)
                                    : no_rotation();
      rotate_slab<C::LATE ? 8 : 4>(slab, rotation, args.interleaved, thread);
    }
    if (C::LATE && flags & RESTORE_QUERIES) {
      load_queries_again(args, sm, t, flags, again, thread);
    }
    if (!C::LATE && bounds != FULL_PAGE) clean_tile(sm, pairs, ropes, bounds, thread);
    fence_async_proxy();
    __syncwarp();
    warp_arrive(&sm.rope_ready[ropes.slot], thread % 32);
    if constexpr (C::LATE) {
      if (bounds != FULL_PAGE) {
        clean_tile(sm, pairs, ropes, bounds, thread);
        fence_async_proxy();
        __syncwarp();
      }
      barrier_wait(&sm.p_full[ps.slot], ps.phase ^ 1);  // not twice in one phase
      warp_arrive(&sm.p_full[ps.slot], thread % 32);
      ps.advance();
    }
    pairs.advance(TILE_PAIRS);
    ropes.advance();
  }
}

}  // namespace irminsul::mla
