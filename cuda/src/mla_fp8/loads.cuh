// The helper warpgroup: page numbers -> raw key tiles in shared memory, their k_r turned.
// Knows rings and TMA; nothing of number formats, scores or outputs.
#pragma once

#include "mla_fp8/layout.cuh"

namespace irminsul::mla::fp8 {

// The k_r slab and the angles of its delta.
template <class C>
__device__ __forceinline__ void load_rope(const Args& args, Storage<C>& sm, Ring<C::ROPES>& ring,
                                          int page, const TileInfo& tile) {
  barrier_wait(&sm.rope_empty[ring.slot], ring.phase ^ 1);
  uint64_t* full = &sm.rope_full[ring.slot];
  sm.rope_tiles[ring.slot] = tile;
  const bool turns = tile.delta != 0 && in_table(tile.delta, args.num_positions);
  barrier_expect(full, SLAB_BYTES + (turns ? ROPE_DIM * 4 : 0));
  cute::SM90_TMA_LOAD_3D::copy(&args.rows, full, args.key_policy, sm.ropes[ring.slot], int{ROPE_AT}, 0,
                               page);
  if (turns) {
    const int64_t row = tile.delta < 0 ? -tile.delta : tile.delta;
    cute::SM90_BULK_COPY_G2S::copy(args.cos_sin + row * ROPE_DIM, full, sm.angles[ring.slot],
                                   ROPE_DIM * 4);
  }
  ring.advance();
}

// One group of a tile; the first one brings the tile's factors and bounds along.
template <class C>
__device__ __forceinline__ void load_group(const Args& args, Storage<C>& sm, Ring<C::RAW>& ring,
                                           int page, int i, int bounds, int scales_slot) {
  barrier_wait(&sm.raw_empty[ring.slot], ring.phase ^ 1);
  uint64_t* full = &sm.raw_full[ring.slot];
  if (i == 0) sm.key_bounds[scales_slot] = bounds;
  barrier_expect(full, RAW_BYTES + (i == 0 ? SCALES_BYTES : 0));
  cute::SM90_TMA_LOAD_3D::copy(&args.rows, full, args.key_policy, sm.raw[ring.slot],
                               group_of(i) * SCALE_GROUP, 0, page);
  if (i == 0) {
    cute::SM90_TMA_LOAD_3D::copy(&args.scales, full, args.key_policy, sm.scales[scales_slot],
                                 int{SCALES_AT}, 0, page);
  }
  ring.advance();
}

// Lanes hold the next 32 tiles each time, so that no load of the table stands between two copies.
template <class C>
__device__ __forceinline__ void key_warp(const Args& args, Storage<C>& sm, int worker, int lane) {
  Ring<C::RAW> raw;
  Ring<C::ROPES> ropes;
  Ring<C::SCALES> scales;
  for (Place at = first_place(args, worker); at.valid();
       at = next_place<C::N>(args, worker, at)) {
    const Part part = read_part<C::N>(args, worker, at);
    const int4* table = reinterpret_cast<const int4*>(args.tiles) + part.tile_at;
    int4 now{}, next = lane < part.num_tiles ? __ldg(table + lane) : int4{};
    for (int t = 0; t < part.num_tiles; ++t) {
      if (t % 32 == 0) {
        now = next;
        if (t + 32 + lane < part.num_tiles) next = __ldg(table + t + 32 + lane);
      }
      const int page = __shfl_sync(~0u, now.x, t % 32);
      TileInfo tile;
      tile.bounds = __shfl_sync(~0u, now.y, t % 32);
      tile.delta = __shfl_sync(~0u, now.z, t % 32);
      tile.pos0 = __shfl_sync(~0u, now.w, t % 32);
      if (lane == 0) {
        for (int i = 0; i < TILE_PAIRS; ++i) {
          load_group<C>(args, sm, raw, page, i, tile.bounds, scales.slot);
          if (i == 0) load_rope<C>(args, sm, ropes, page, tile);
        }
        scales.advance();
      }
      __syncwarp();
    }
  }
}

template <class C>
__device__ __forceinline__ void rotating_warps(const Args& args, Storage<C>& sm, int worker,
                                               int thread) {
  Ring<C::ROPES> ropes;
  for (Place at = first_place(args, worker); at.valid();
       at = next_place<C::N>(args, worker, at)) {
    const int num_tiles = read_part<C::N>(args, worker, at).num_tiles;
    for (int t = 0; t < num_tiles; ++t) {
      barrier_wait(&sm.rope_full[ropes.slot], ropes.phase);
      const int delta = sm.rope_tiles[ropes.slot].delta;
      if (delta != 0) {
        const Rotation rotation = in_table(delta, args.num_positions)
                                      ? read_rotation(sm.angles[ropes.slot], delta, thread)
                                      : no_rotation();
        rotate_slab(sm.ropes[ropes.slot], rotation, args.interleaved, thread);
        fence_async_proxy();
      }
      __syncwarp();
      warp_arrive(&sm.rope_ready[ropes.slot], thread % 32);
      ropes.advance();
    }
  }
}

}  // namespace irminsul::mla::fp8
