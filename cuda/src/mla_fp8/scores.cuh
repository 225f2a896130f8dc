// The scores warpgroup: e4m3 key tiles and queries -> bf16 values in shared memory, P, LSE.
// Knows number formats and the softmax; nothing of how tiles arrive or of the output.
//
// S^T = K Q^T: keys are the long side of the product, query rows the short one, so that 16 heads
// cost a quarter of what 64 do. A thread widens 16 e4m3 numbers of two keys at a time in registers,
// where they are at once the product's first operand and what goes to shared memory for P V. The
// numbers of a 128-wide group then stand in another order than in the row: thread c of a quad has
// columns 32 c + 16 j + 4 s + 2 h + e in places 2 c + 8 h + e of step s of slab j. Queries are laid
// out alike, and the output's columns are named accordingly where they are stored.
#pragma once

#include "mla_fp8/layout.cuh"
#include "mla_fp8/products.cuh"

namespace irminsul::mla::fp8 {

// Registers of one thread: keys 16 warp + g and + 8 of a tile, columns 8 i + 2 c + {0, 1} of S^T.
template <class C>
struct Scores {
  float sum[C::COLUMNS];
  Ring<C::RAW> raw;
  Ring<C::PAIRS> pairs;
  Ring<C::ROPES> ropes;
  Ring<C::SCALES> scales;
  Ring<C::PS> p;
  uint32_t epilogue_phase = 0;
  int stream, warp, lane, g, c;
  int first_pos;  // the lowest position of the part's tokens
};

template <class C>
__device__ __forceinline__ int p_slot(const Scores<C>& st) {
  return st.stream * C::PS + st.p.slot;
}

// ---------------------------------------------------------------------------------------- queries

// Stores 16 bytes of one query row where its slab wants them.
template <class C>
__device__ __forceinline__ void place_query(Storage<C>& sm, int row, int chunk, uint4 x) {
  constexpr int LATENT_CHUNKS = LATENT_DIM / 8;
  if (chunk >= LATENT_CHUNKS) {
    uint8_t* at = sm.q[LATENT_DIM / SLAB_DIM] + row * 128;
    *reinterpret_cast<uint4*>(at + (((chunk - LATENT_CHUNKS) ^ (row & 7)) << 4)) = x;
    return;
  }
  const int within = chunk % 16, c = within / 4, j = within / 2 % 2;
  uint8_t* at = sm.q[chunk / 16 * PAIR_SLABS + j] + row * 128 + 4 * c;
  const uint32_t words[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
  for (int w = 0; w < 4; ++w) {
    const int place = 2 * (2 * (within % 2) + w / 2) + w % 2;  // 16-byte chunk: 2 s + h
    *reinterpret_cast<uint32_t*>(at + ((place ^ (row & 7)) << 4)) = words[w];
  }
}

template <class C>
__device__ __forceinline__ void load_queries(const Args& args, Storage<C>& sm, const Part& part,
                                             int thread) {
  constexpr int CHUNKS = HEAD_DIM / 8, THREADS_HERE = C::STREAMS * 128;
  constexpr int EACH = (C::N * CHUNKS + THREADS_HERE - 1) / THREADS_HERE;
  constexpr int BATCH = EACH < 9 ? EACH : 9;
#pragma unroll 1
  for (int first = thread; first < C::N * CHUNKS; first += THREADS_HERE * BATCH) {
    uint4 x[BATCH];
#pragma unroll
    for (int i = 0; i < BATCH; ++i) {
      const int row = (first + THREADS_HERE * i) / CHUNKS;
      const int chunk = (first + THREADS_HERE * i) % CHUNKS;
      const auto* q = reinterpret_cast<const uint4*>(args.q) + int64_t{part.flat_row} * CHUNKS;
      x[i] = row < part.num_rows ? __ldg(q + row * CHUNKS + chunk) : uint4{0, 0, 0, 0};
    }
#pragma unroll
    for (int i = 0; i < BATCH; ++i) {
      const int row = (first + THREADS_HERE * i) / CHUNKS;
      if (row < C::N) place_query(sm, row, (first + THREADS_HERE * i) % CHUNKS, x[i]);
    }
  }
  if (thread < C::N) {
    sm.row_pos[thread] = part.first_pos + (part.head0 + thread) / args.num_heads;
#pragma unroll
    for (int stream = 0; stream < C::STREAMS; ++stream) sm.column_max[stream][thread] = -INFINITY;
  }
  fence_async_proxy();
  sync_streams<C::STREAMS>();
}

// ------------------------------------------------------------------------------------- conversion

// Rows of the page outside the tile's bounds may be other requests' or never written: their numbers
// and factors become zeros, since 0 x NaN in P V would be NaN.
struct Keys {
  bool cut, valid[2];
};

template <class C>
__device__ __forceinline__ Keys find_keys(const Scores<C>& st, int bounds) {
  const int row = st.warp * 16 + st.g, lo = bounds & 0xFFFF, hi = bounds >> 16;
  return {bounds != FULL_PAGE, {row >= lo && row < hi, row + 8 >= lo && row + 8 < hi}};
}

template <class C>
__device__ __forceinline__ float read_scale(const Storage<C>& sm, const Scores<C>& st,
                                            const Keys& keys, int r, int group) {
  const float scale = sm.scales[st.scales.slot][st.warp * 16 + st.g + 8 * r][group];
  return keys.valid[r] ? scale : 0.0f;
}

// 16 e4m3 numbers of each of the thread's two keys, and the factors of their group.
struct Numbers {
  uint4 x[2];
  float scale[2];
};

// Reads the next slab, j of a group in the raw ring; the caller gives the group back.
template <class C>
__device__ __forceinline__ void read_numbers(const Storage<C>& sm, const Scores<C>& st,
                                             const Keys& keys, int group, int j,
                                             Numbers& numbers) {
  if (j == 0) {
    barrier_wait(&sm.raw_full[st.raw.slot], st.raw.phase);
    numbers.scale[0] = read_scale(sm, st, keys, 0, group);
    numbers.scale[1] = read_scale(sm, st, keys, 1, group);
  }
  const uint8_t* raw = sm.raw[st.raw.slot] + (st.warp * 16 + st.g) * SCALE_GROUP;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    numbers.x[r] = *reinterpret_cast<const uint4*>(raw + 8 * r * SCALE_GROUP +
                                                   (((2 * st.c + j) ^ st.g) << 4));
    if (keys.cut && !keys.valid[r]) numbers.x[r] = uint4{0, 0, 0, 0};
  }
}

// The copy engine's next write to the slot is ordered behind no load that is still under way: an
// arrival does not wait for them, and P V can keep one waiting for longer than a copy takes. So this
// comes after instructions that needed the numbers.
template <class C>
__device__ __forceinline__ void give_back_group(Storage<C>& sm, Scores<C>& st) {
  __syncwarp();
  warp_arrive(&sm.raw_empty[st.raw.slot], st.lane);
  st.raw.advance();
}

// The first operand's registers of a slab's four steps.
__device__ __forceinline__ void widen(const Numbers& numbers, uint32_t (&a)[4][4]) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const uint4& x = numbers.x[r];
    const uint32_t words[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
    for (int s = 0; s < 4; ++s) {
      a[s][r] = scale_two(static_cast<uint16_t>(words[s]), numbers.scale[r]);
      a[s][2 + r] = scale_two(static_cast<uint16_t>(words[s] >> 16), numbers.scale[r]);
    }
  }
}

// The same numbers into the slab that P V reads. No two lanes of a phase share a bank.
template <class C>
__device__ __forceinline__ void store_values(uint8_t* slab, const Scores<C>& st,
                                             const uint32_t (&a)[4][4]) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    uint8_t* row = slab + (st.warp * 16 + st.g + 8 * r) * 128;
#pragma unroll
    for (int b = 0; b < 2; ++b) {
      *reinterpret_cast<uint4*>(row + (((2 * st.c + b) ^ st.g) << 4)) =
          uint4{a[2 * b][r], a[2 * b][2 + r], a[2 * b + 1][r], a[2 * b + 1][2 + r]};
    }
  }
}

// ----------------------------------------------------------------------------------------- scores

// The last slab: k_r, turned meanwhile. Waits for all of S^T; returns what the tile is.
template <class C>
__device__ __forceinline__ TileInfo multiply_rope(Storage<C>& sm, Scores<C>& st, float (&s)[C::N / 2],
                                              uint32_t q) {
  barrier_wait(&sm.rope_ready[st.ropes.slot], st.ropes.phase);
  const uint32_t k_r = k_major_descriptor(smem_address(sm.ropes[st.ropes.slot]));
  cute::warpgroup_arrive();
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    multiply_shared<C::N>(
        s, k_r + k * K_STEP,
        q + LATENT_DIM / SLAB_DIM * (C::Q_SLAB_BYTES >> 4) + k * K_STEP);
  }
  cute::warpgroup_commit_batch();
  TileInfo tile = sm.rope_tiles[st.ropes.slot];
  // Here, not where they are needed: the arrival below waits for no load that is still under way.
  tile.bounds = uniform(tile.bounds), tile.pos0 = uniform(tile.pos0);
  cute::warpgroup_wait<0>();
  fence_registers(s);
  warp_arrive(&sm.rope_empty[st.ropes.slot], st.lane);
  st.ropes.advance();
  return tile;
}

// S^T += of one slab, whose numbers stand in registers. The caller waits.
template <class C>
__device__ __forceinline__ void multiply_slab(float (&s)[C::N / 2], uint32_t (&a)[4][4], uint32_t q,
                                              bool first) {
#pragma unroll
  for (int k = 0; k < 4; ++k) fence_registers(a[k]);
  cute::warpgroup_arrive();
#pragma unroll
  for (int k = 0; k < 4; ++k) multiply_registers<C::N>(s, a[k], q + k * K_STEP, first && k == 0);
  cute::warpgroup_commit_batch();
}

// Widens one tile into the ring of slab pairs, and multiplies it alongside.
template <class C>
__device__ __forceinline__ TileInfo convert_tile(Storage<C>& sm, Scores<C>& st,
                                                 float (&s)[C::N / 2]) {
  const uint32_t q = opaque(k_major_descriptor(smem_address(sm.q)));
  uint32_t a[2][4][4];  // the slab being multiplied and the one being widened
  barrier_wait(&sm.raw_full[st.raw.slot], st.raw.phase);
  const Keys keys = find_keys(st, uniform(sm.key_bounds[st.scales.slot]));
  Numbers now{}, next{};
  read_numbers(sm, st, keys, group_of(0), 0, next);
  fence_registers(s);
#pragma unroll
  for (int i = 0; i < TILE_PAIRS; ++i) {
    barrier_wait(&sm.pair_empty[st.pairs.slot], st.pairs.phase ^ 1);
#pragma unroll
    for (int j = 0; j < PAIR_SLABS; ++j) {
      now = next;
      if (j == 0) read_numbers(sm, st, keys, group_of(i), 1, next);
      if (i > 0) {  // the product that still reads these registers
        cute::warpgroup_wait<1>();
#pragma unroll
        for (int k = 0; k < 4; ++k) fence_registers(a[j][k]);
      }
      widen(now, a[j]);
      store_values(sm.pairs[st.pairs.slot] + j * SLAB_BYTES, st, a[j]);
      multiply_slab<C>(s, a[j], q + (group_of(i) * PAIR_SLABS + j) * (C::Q_SLAB_BYTES >> 4),
                       i == 0 && j == 0);
    }
    st.pairs.advance();
    give_back_group(sm, st);
    if (i < TILE_PAIRS - 1) read_numbers(sm, st, keys, group_of(i + 1), 0, next);
  }
  st.scales.advance();
  const TileInfo tile = multiply_rope(sm, st, s, q);
#pragma unroll
  for (int k = 0; k < 8; ++k) fence_registers(a[k / 4][k % 4]);
  return tile;
}

// ---------------------------------------------------------------------------------------- softmax

// -inf where the key is outside the tile's bounds or after the column's token.
template <class C>
__device__ __forceinline__ void mask_scores(const Storage<C>& sm, const Scores<C>& st,
                                            float (&s)[C::N / 2], const TileInfo& tile) {
  const int lo = tile.bounds & 0xFFFF, hi = tile.bounds >> 16;
#pragma unroll
  for (int i = 0; i < C::N / 8; ++i) {
    const int2 pos = *reinterpret_cast<const int2*>(&sm.row_pos[8 * i + 2 * st.c]);
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const int row = st.warp * 16 + st.g + k / 2 * 8;
      const int end = min(hi, lo + (k % 2 ? pos.y : pos.x) - tile.pos0 + 1);
      s[4 * i + k] = row >= lo && row < end ? s[4 * i + k] : -INFINITY;
    }
  }
}

// Running maxima of columns 8 i + 2 c and the next.
template <class C>
__device__ __forceinline__ float2 read_maxima(const Storage<C>& sm, const Scores<C>& st, int i) {
  return *reinterpret_cast<const float2*>(&sm.column_max[st.stream][8 * i + 2 * st.c]);
}

// Whether any score lies far above its column's running maximum.
template <class C>
__device__ __forceinline__ bool maximum_grows(const Storage<C>& sm, const Scores<C>& st,
                                              const float (&s)[C::N / 2], float scale_log2) {
  bool grows = false;
#pragma unroll
  for (int i = 0; i < C::N / 8; ++i) {
    const float2 max = read_maxima(sm, st, i);
    grows |= fmaxf(s[4 * i], s[4 * i + 2]) * scale_log2 > max.x + RESCALE_THRESHOLD;
    grows |= fmaxf(s[4 * i + 1], s[4 * i + 3]) * scale_log2 > max.y + RESCALE_THRESHOLD;
  }
  return any_in_stream(st.stream, grows);
}

// New running maxima over the tile's 64 keys, and the factors on everything summed so far.
template <class C>
__device__ __forceinline__ void update_maxima(Storage<C>& sm, Scores<C>& st,
                                              const float (&s)[C::N / 2], float scale_log2) {
  float old[C::COLUMNS];
#pragma unroll
  for (int i = 0; i < C::COLUMNS; ++i) {
    const int column = i / 2 * 8 + 2 * st.c + i % 2;
    old[i] = sm.column_max[st.stream][column];
    float top = fmaxf(s[4 * (i / 2) + i % 2], s[4 * (i / 2) + 2 + i % 2]);
#pragma unroll
    for (int by = 4; by < 32; by *= 2) top = fmaxf(top, __shfl_xor_sync(~0u, top, by));
    if (st.g == 0) sm.of_warps[st.stream][st.warp][column] = top * scale_log2;
  }
  sync_stream(st.stream);
#pragma unroll
  for (int i = 0; i < C::COLUMNS; ++i) {
    const int column = i / 2 * 8 + 2 * st.c + i % 2;
    float top = old[i];
#pragma unroll
    for (int w = 0; w < 4; ++w) top = fmaxf(top, sm.of_warps[st.stream][w][column]);
    const float factor = top > old[i] ? exp2_approx(old[i] - top) : 1.0f;
    st.sum[i] *= factor;
    if (st.warp != 0 || st.g != 0) continue;
    sm.column_max[st.stream][column] = top;
    sm.p_scale[p_slot(st)][column] = factor;
  }
  sync_stream(st.stream);  // the maxima are there, and of_warps is free again
}

// S^T of one tile -> P in shared memory, row by row of the queries.
template <class C>
__device__ __forceinline__ void softmax_tile(const Args& args, Storage<C>& sm, Scores<C>& st,
                                             float (&s)[C::N / 2], const TileInfo& tile) {
  if (tile.bounds != FULL_PAGE || tile.pos0 + PAGE_SIZE - 1 > st.first_pos) {
    mask_scores(sm, st, s, tile);
  }
  const int slot = p_slot(st);
  barrier_wait(&sm.p_empty[slot], st.p.phase ^ 1);
  const bool grows = maximum_grows(sm, st, s, args.scale_log2);
  if (grows) update_maxima(sm, st, s, args.scale_log2);
  if (st.warp == 0 && st.lane == 0) sm.rescale[slot] = grows;
#pragma unroll
  for (int i = 0; i < C::N / 8; ++i) {
    const float2 max = read_maxima(sm, st, i);
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const float top = k % 2 ? max.y : max.x;
      float& x = s[4 * i + k];
      x = exp2_approx(fmaf(x, args.scale_log2, top == -INFINITY ? 0.0f : -top));
      st.sum[2 * i + k % 2] += x;
    }
  }
  // Matrix m of four goes to query rows 8 (m / 2) .., keys 16 warp + 8 (m % 2) ..
  const uint32_t p = smem_address(sm.p[slot]) + (st.lane / 16 * 8 + st.lane % 8) * 128 +
                     (((2 * st.warp + st.lane / 8 % 2) ^ (st.lane & 7)) << 4);
#pragma unroll
  for (int i = 0; i < C::N / 16; ++i) {
    const float* x = s + 8 * i;
    store_transposed(p + i * 16 * 128, pack_bf16(x[0], x[1]), pack_bf16(x[2], x[3]),
                     pack_bf16(x[4], x[5]), pack_bf16(x[6], x[7]));
  }
  fence_async_proxy();  // P and, before it, the tile's values
  __syncwarp();
  warp_arrive(&sm.p_full[slot], st.lane);
  st.p.advance();
}

// Sums and maxima of all streams -> LSE in global memory, weights of their outputs.
template <class C>
__device__ __forceinline__ void weigh_streams(const Args& args, Storage<C>& sm, const Part& part,
                                              int row) {
  float max = -INFINITY, sum = 0.0f, sums[C::STREAMS];
#pragma unroll
  for (int s = 0; s < C::STREAMS; ++s) max = fmaxf(max, sm.column_max[s][row]);
  const float base = max == -INFINITY ? 0.0f : max;
#pragma unroll
  for (int s = 0; s < C::STREAMS; ++s) {
    sums[s] = 0.0f;
#pragma unroll
    for (int w = 0; w < 4; ++w) sums[s] += sm.of_warps[s][w][row];
    const float own = sm.column_max[s][row];
    const float weight = own == base || own == -INFINITY ? 1.0f : exp2_approx(own - base);
    sm.weight[s][row] = sums[s] == 0.0f ? 0.0f : weight;  // a stream without keys has no output
    sum += sums[s] == 0.0f ? 0.0f : sums[s] * weight;
  }
  const float inverse = sum == 0.0f ? 0.0f : 1.0f / sum;  // NaN stays NaN
#pragma unroll
  for (int s = 0; s < C::STREAMS; ++s) sm.weight[s][row] *= inverse;
  const float lse = sum == 0.0f ? -INFINITY : base + log2f(sum);
  if (row >= part.num_rows) return;
  if (part.partial_row < 0) args.lse[part.flat_row + row] = lse * LN_2;
  else args.partial_lse[part.partial_row + row] = lse;
}

template <class C>
__device__ __forceinline__ void finish_part(const Args& args, Storage<C>& sm, Scores<C>& st,
                                            const Part& part, int thread) {
#pragma unroll
  for (int i = 0; i < C::COLUMNS; ++i) {
    float sum = st.sum[i];
#pragma unroll
    for (int by = 4; by < 32; by *= 2) sum += __shfl_xor_sync(~0u, sum, by);
    if (st.g == 0) sm.of_warps[st.stream][st.warp][i / 2 * 8 + 2 * st.c + i % 2] = sum;
  }
  if (st.stream == 0) barrier_wait(&sm.epilogue_empty, st.epilogue_phase ^ 1);
  sync_streams<C::STREAMS>();
  if (st.stream == 0) {
    if (thread < C::N) weigh_streams(args, sm, part, thread);
    __syncwarp();
    warp_arrive(&sm.epilogue_full, st.lane);
  }
  st.epilogue_phase ^= 1;
  if constexpr (C::STREAMS > 1) sync_streams<C::STREAMS>();  // what it read may be written again
}

// The other stream's tile.
template <class C>
__device__ __forceinline__ void skip_tile(Scores<C>& st) {
  st.raw.advance(TILE_PAIRS);
  st.pairs.advance(TILE_PAIRS);
  st.ropes.advance();
  st.scales.advance();
}

template <class C>
__device__ __forceinline__ int start_part(const Args& args, Storage<C>& sm, Scores<C>& st,
                                          const Part& part, int thread) {
  load_queries(args, sm, part, thread);
  st.first_pos = part.first_pos;
#pragma unroll
  for (int i = 0; i < C::COLUMNS; ++i) st.sum[i] = 0.0f;
  return part.num_tiles;
}

template <class C>
__device__ __forceinline__ void scores_warpgroup(const Args& args, Storage<C>& sm, int worker,
                                                 int stream, int thread) {
  Scores<C> st;
  st.stream = stream;
  st.warp = thread / 32, st.lane = thread % 32;
  st.g = st.lane / 4, st.c = st.lane % 4;
#pragma unroll 1
  for (Place at = first_place(args, worker); at.valid();
       at = next_place<C::N>(args, worker, at)) {
    const int num_tiles = start_part(
        args, sm, st, read_part<C::N>(args, worker, at), stream * 128 + thread);
    float s[C::N / 2];
#pragma unroll 1
    for (int t = 0; t < num_tiles; ++t) {
      if (C::STREAMS > 1 && t % C::STREAMS != stream) {
        skip_tile(st);
        continue;
      }
      const TileInfo tile = convert_tile(sm, st, s);
      softmax_tile(args, sm, st, s, tile);
    }
    finish_part(args, sm, st, read_part<C::N>(args, worker, at), thread);
  }
}

}  // namespace irminsul::mla::fp8
