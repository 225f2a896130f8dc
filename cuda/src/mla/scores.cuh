// The scores warpgroup: queries and keys in shared memory -> P there, the factors on what was summed
// before, LSE. Knows nothing of how tiles arrive or of the output.
#pragma once

#include "layout.cuh"

namespace irminsul::mla {

// Registers of one thread of the scores warpgroup: rows r = warp * 16 + lane / 4 and r + 8.
template <class C>
struct Scores {
  uint32_t q[C::Q_SLABS * 4][4];
  float max[2], sum[2];
  int first_pos;
  int unseen;  // bit r: row r has had no key yet; its maximum is -inf and stands as 0
  Ring<C::PAIRS> pairs;
  Ring<C::ROPES> ropes;
  Ring<C::PS> p;
  uint32_t fragment;  // byte of a slab that first_fragment says
  int warp, lane;
};

// Byte of the 16-byte chunk that a lane addresses in ldmatrix and stmatrix of a step of 16 columns:
// its row starts at 128 * row, and chunk c stands at c ^ row % 8. Where steps stand between products,
// one number for all of them costs least: chunk 0 or 1, which each step turns over; else the row.
template <class C>
__device__ __forceinline__ uint32_t first_fragment(int warp, int lane) {
  const int row = warp * 16 + lane / 8 % 2 * 8 + lane % 8;
  return row * 128 + (C::LATE ? (lane / 16 ^ lane % 8) << 4 : 0);
}

template <class C>
__device__ __forceinline__ uint32_t fragment_offset(const Scores<C>& st, int step) {
  if (C::LATE) return st.fragment ^ 32 * step;
  return st.fragment + (((2 * step + st.lane / 16) ^ (st.lane & 7)) << 4);
}

// The first slabs of Q from the ring into registers.
template <class C>
__device__ __forceinline__ void load_query_registers(Storage<C>& sm, Scores<C>& st) {
#pragma unroll
  for (int slab = 0; slab < C::Q_SLABS; ++slab) {
    if (slab % PAIR_SLABS == 0) barrier_wait(&sm.pair_full[st.pairs.slot], st.pairs.phase);
    const uint32_t at = smem_address(sm.pairs[st.pairs.slot]) + slab % PAIR_SLABS * SLAB_BYTES;
#pragma unroll
    for (int step = 0; step < 4; ++step) {
      load_matrices(st.q[4 * slab + step], at + fragment_offset(st, step));
      fence_registers(st.q[4 * slab + step]);
    }
    if (slab % PAIR_SLABS == PAIR_SLABS - 1 || slab + 1 == C::Q_SLABS) st.pairs.advance();
  }
}

// Gives the ring slots of Q back. To be called when the products of a unit's first tile have been
// issued: an arrival does not wait for loads that are still under way, and the copy that comes next
// may be faster; a product waits for the registers that it reads.
template <class C>
__device__ __forceinline__ void release_queries(Storage<C>& sm, const Scores<C>& st) {
  fence_async_proxy();
  __syncwarp();
#pragma unroll
  for (int pair = 0; pair < C::Q_PAIRS; ++pair) {
    const int slot = st.pairs.slot + pair - TILE_PAIRS - C::Q_PAIRS;
    warp_arrive(&sm.pair_empty[slot < 0 ? slot + C::PAIRS : slot], st.lane);
  }
}

struct TileMask {
  int bounds, pos0;
};

// The products of Q with one pair of slabs of K; FIRST: products of the tile before these. `store(i)`
// runs behind every second one of the first pair, `hand` before product HANDED_AT of the tile.
template <int PAIR, int FIRST, class C, class G, class F>
__device__ __forceinline__ void issue_pair(Storage<C>& sm, Scores<C>& st, float (&s)[32],
                                           const G& store, const F& hand) {
  const uint32_t q = opaque(k_major_descriptor(smem_address(sm.q)));
  const uint32_t pairs = opaque(k_major_descriptor(smem_address(sm.pairs)));
  if (FIRST == C::HANDED_AT) hand();  // whether the pair is there or not
  barrier_wait(&sm.pair_full[st.pairs.slot], st.pairs.phase);
  cute::warpgroup_arrive();  // after every wait: where ptxas has to add one, it may serialise
  const uint32_t k = pairs + st.pairs.slot * (PAIR_BYTES >> 4);
#pragma unroll
  for (int i = 0; i < PAIR_SLABS * 4; ++i) {
    if (i > 0 && FIRST + i == C::HANDED_AT) hand();
    const int slab = PAIR * PAIR_SLABS + i / 4;
    const uint32_t at = k + (i / 4) * SLAB_STEP + (i % 4) * K_STEP;
    if (slab < C::Q_SLABS) {
      mma_scores(s, st.q[4 * slab + i % 4], at, PAIR == 0 && i == 0);
    } else {
      mma_scores(s, q + (slab - C::Q_SLABS) * SLAB_STEP + (i % 4) * K_STEP, at);
    }
    if (C::LATE && PAIR == 0 && i % 2 == 1) store(i / 2);
  }
  st.pairs.advance();
}

// The product with the turned k_r.
template <class C>
__device__ __forceinline__ void issue_rope(Storage<C>& sm, Scores<C>& st, float (&s)[32]) {
  const uint32_t q = opaque(k_major_descriptor(smem_address(sm.q[C::Q_SHARED_SLABS - 1])));
  const uint32_t k = k_major_descriptor(smem_address(sm.ropes[st.ropes.slot]));
  barrier_wait(&sm.rope_ready[st.ropes.slot], st.ropes.phase);
  cute::warpgroup_arrive();
#pragma unroll
  for (int i = 0; i < 4; ++i) mma_scores(s, q + i * K_STEP, k + i * K_STEP);
}

// Starts S = Q K^T of the next tile, in the order in which its parts come. The caller waits.
// `store(i)`, of a quarter of P, runs behind the first products, which keep the tensor cores busy.
template <class C, class G, class F>
__device__ __forceinline__ TileMask issue_scores(Storage<C>& sm, Scores<C>& st, float (&s)[32],
                                                 const G& store, const F& hand) {
  fence_registers(s);
  issue_pair<0, 0>(sm, st, s, store, hand);
  issue_pair<1, 8>(sm, st, s, store, hand);
  if constexpr (C::LATE) {
    issue_rope(sm, st, s);
    cute::warpgroup_commit_batch();
  }
  issue_pair<2, 20>(sm, st, s, store, hand);
  issue_pair<3, 28>(sm, st, s, store, hand);
  // Before k_r goes back: that keeps helper warps, who wait for this for cut tiles only, within a
  // phase of it.
  warp_arrive(&sm.tile_full[st.ropes.slot], st.lane);
  if constexpr (!C::LATE) issue_rope(sm, st, s);
  cute::warpgroup_commit_batch();
  const TileInfo& tile = tile_info(sm, st.ropes);
  return {tile.bounds, tile.pos0};
}

// Gives k_r back when its products are done, which are not the last ones where P is handed over late.
template <class C>
__device__ __forceinline__ void wait_scores(Storage<C>& sm, Scores<C>& st, float (&s)[32]) {
  if constexpr (C::LATE) {
    cute::warpgroup_wait<1>();
    warp_arrive(&sm.rope_empty[st.ropes.slot], st.lane);
  }
  cute::warpgroup_wait<0>();
  fence_registers(s);
  if constexpr (!C::LATE) warp_arrive(&sm.rope_empty[st.ropes.slot], st.lane);
  st.ropes.advance();
}

// Bits lo .. end - 1 of a page's keys; none where end <= lo.
__device__ __forceinline__ uint64_t keys_between(int lo, int end) {
  return end <= lo ? 0 : (~uint64_t{0} >> (PAGE_SIZE - end)) & (~uint64_t{0} << lo);
}

// -inf where the key is outside the tile's bounds or after the row's token.
template <class C>
__device__ __forceinline__ void mask_scores(const Storage<C>& sm, const Scores<C>& st,
                                            float (&s)[32], TileMask tile) {
  const int first = 2 * (st.lane % 4);  // key of this lane's first score; the others are counted on
  const int lo = tile.bounds & 0xFFFF, hi = tile.bounds >> 16;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int pos = sm.positions[st.warp * 16 + st.lane / 4 + 8 * r];
    const uint64_t seen = keys_between(lo, min(hi, lo + pos - tile.pos0 + 1)) >> first;
    const uint32_t words[2] = {static_cast<uint32_t>(seen), static_cast<uint32_t>(seen >> 32)};
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      const uint32_t bit = 1u << (8 * (i / 2 % 4) + i % 2);
      float& x = s[4 * (i / 2) + 2 * r + i % 2];
      x = words[i / 8] & bit ? x : -INFINITY;
    }
  }
}

// P of two rows against their maxima, as fragments; `sum` grows by it.
__device__ __forceinline__ void exponentiate(const float (&s)[32], float scale_log2,
                                             const float (&max)[2], uint32_t (&p)[16],
                                             float (&sum)[2]) {
#pragma unroll
  for (int i = 0; i < 16; ++i) {
    const float a = exp2_approx(fmaf(s[2 * i], scale_log2, -max[i % 2]));
    const float b = exp2_approx(fmaf(s[2 * i + 1], scale_log2, -max[i % 2]));
    sum[i % 2] += a;
    sum[i % 2] += b;
    p[i] = pack_bf16(a, b);
  }
}

// New running maximum of one row (of two), and the factor on everything summed so far.
template <class C>
__device__ __forceinline__ float follow_maximum(Scores<C>& st, const float (&s)[32], int r,
                                                float scale_log2) {
  float top = fmaxf(s[2 * r], s[2 * r + 1]);
#pragma unroll
  for (int i = 1; i < 8; ++i) top = fmaxf(top, fmaxf(s[4 * i + 2 * r], s[4 * i + 2 * r + 1]));
  top = fmaxf(top, __shfl_xor_sync(~0u, top, 1));
  top = fmaxf(top, __shfl_xor_sync(~0u, top, 2));
  top *= scale_log2;
  const bool unseen = st.unseen >> r & 1;
  const float before = unseen ? -INFINITY : st.max[r];
  if (!(top > before + RESCALE_THRESHOLD)) return 1.0f;
  const float factor = exp2_approx(before - top);
  st.max[r] = top;
  st.unseen &= ~(1 << r);
  st.sum[r] *= factor;
  return factor;
}

// S of one tile -> P as fragments, and the factors on everything summed so far. P is taken against
// the maxima as they are: only where a thread's numbers of a row come out too large, by their sum,
// or a row has not had a key yet, do the maxima follow and P is taken again.
template <class C>
__device__ __forceinline__ void softmax_tile(const Args& args, const Storage<C>& sm, Scores<C>& st,
                                             float (&s)[32], TileMask tile, uint32_t (&p)[16],
                                             float (&factor)[2]) {
  if (tile.bounds != FULL_PAGE || tile.pos0 + PAGE_SIZE - 1 > st.first_pos) {
    mask_scores(sm, st, s, tile);
  }
  factor[0] = factor[1] = 1.0f;
  float sum[2] = {st.sum[0], st.sum[1]};
  exponentiate(s, args.scale_log2, st.max, p, sum);
  const float grown = fmaxf(sum[0] - st.sum[0], sum[1] - st.sum[1]);
  if (!__any_sync(~0u, grown > LARGEST_SUM || st.unseen != 0)) {
    st.sum[0] = sum[0], st.sum[1] = sum[1];
    return;
  }
#pragma unroll
  for (int r = 0; r < 2; ++r) factor[r] = follow_maximum(st, s, r, args.scale_log2);
  exponentiate(s, args.scale_log2, st.max, p, st.sum);
}

// Waits for a buffer of P and puts the factors beside it.
template <class C>
__device__ __forceinline__ void begin_p(Storage<C>& sm, const Scores<C>& st,
                                        const float (&factor)[2]) {
  barrier_wait(&sm.p_empty[st.p.slot], st.p.phase ^ 1);
  if (st.lane % 4 == 0) {
    sm.p_scale[st.p.slot][st.warp * 16 + st.lane / 4] = factor[0];
    sm.p_scale[st.p.slot][st.warp * 16 + st.lane / 4 + 8] = factor[1];
  }
}

template <class C>
__device__ __forceinline__ void store_quarter(Storage<C>& sm, const Scores<C>& st,
                                              const uint32_t (&p)[16], int quarter) {
  const uint32_t to = smem_address(sm.p[st.p.slot]);
  const uint32_t* part = p + 4 * quarter;
  store_matrices(to + fragment_offset(st, quarter), part[0], part[1], part[2], part[3]);
}

// Tells the output warpgroups that P is there.
template <class C>
__device__ __forceinline__ void hand_over(Storage<C>& sm, Scores<C>& st) {
  fence_async_proxy();
  __syncwarp();
  warp_arrive(&sm.p_full[st.p.slot], st.lane);
  st.p.advance();
}

// All tiles of a unit, at least one.
template <class C>
__device__ __forceinline__ void run_tiles(const Args& args, Storage<C>& sm, Scores<C>& st,
                                          int count) {
  float s[32];
  TileMask tile = issue_scores(sm, st, s, [](int) {}, [] {});
  release_queries(sm, st);
  wait_scores(sm, st, s);
#pragma unroll 1
  for (int t = 1;; ++t) {
    float factor[2];
    uint32_t p[16];
    softmax_tile(args, sm, st, s, tile, p, factor);
    begin_p(sm, st, factor);
    const auto store = [&](int quarter) { store_quarter(sm, st, p, quarter); };
    if (!C::LATE || t >= count) {
#pragma unroll
      for (int quarter = 0; quarter < 4; ++quarter) store(quarter);
    }
    if (t >= count) break;
    if constexpr (C::LATE) {
      tile = issue_scores(sm, st, s, store, [&] { hand_over(sm, st); });
    } else {
      hand_over(sm, st);
      tile = issue_scores(sm, st, s, [](int) {}, [] {});
    }
    wait_scores(sm, st, s);
  }
  hand_over(sm, st);
}

// Sums of the two rows -> LSE in global memory, inverse sums for the output warpgroups.
template <class C>
__device__ __forceinline__ void finish_unit(const Args& args, Storage<C>& sm, Scores<C>& st,
                                            const Item& item, uint32_t phase, int rank) {
  barrier_wait(&sm.epilogue_empty, phase ^ 1);
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    float sum = st.sum[r];
    sum += __shfl_xor_sync(~0u, sum, 1);
    sum += __shfl_xor_sync(~0u, sum, 2);
    const int row = st.warp * 16 + st.lane / 4 + 8 * r;
    if (st.lane % 4 != 0) continue;
    sm.inverse_sum[row] = sum == 0.0f ? 0.0f : 1.0f / sum;  // NaN stays NaN
    const float lse = sum == 0.0f ? -INFINITY : st.max[r] + log2f(sum);
    if (row >= item.num_rows) continue;
    if (item.partial_slot < 0) {
      args.lse[item.flat_row + row] = lse * LN_2;
    } else {
      const int64_t first = (int64_t{item.partial_slot} * args.blocks + rank) * BLOCK_M;
      args.partial_lse[first + row] = lse;
    }
  }
  __syncwarp();
  warp_arrive(&sm.epilogue_full, st.lane);
}

template <class C>
__device__ __forceinline__ void scores_warpgroup(const Args& args, Storage<C>& sm, int rank,
                                                 int thread) {
  Scores<C> st;
  st.warp = thread / 32;
  st.lane = thread % 32;
  st.fragment = first_fragment<C>(st.warp, st.lane);
  for (uint32_t phase = 0;; phase ^= 1) {
    barrier_wait(&sm.q_full, phase);
    const int num_tiles = uniform(sm.item.num_tiles);
    if (num_tiles > 0) load_query_registers(sm, st);
    st.max[0] = st.max[1] = st.sum[0] = st.sum[1] = 0.0f;
    st.unseen = 3;
    st.first_pos = sm.item.first_pos;
    if (st.lane < 16) {
      const int row = st.warp * 16 + st.lane;
      sm.positions[row] = st.first_pos + (sm.item.head0 + row) / args.num_heads;
    }
    __syncwarp();
    if (num_tiles > 0) run_tiles(args, sm, st, num_tiles);
    const Item item = read_item(sm);  // read again: kept, it would cost registers in the loop
    __syncwarp();
    warp_arrive(&sm.q_empty, st.lane);
    finish_unit(args, sm, st, item, phase, rank);
    if (item.last) return;
  }
}

}  // namespace irminsul::mla
