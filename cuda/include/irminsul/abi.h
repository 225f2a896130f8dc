/* Parameter structs and entry points of libirminsul_cuda.so, for any language that speaks C99.
 * Knows no CUDA header, no C++ and no torch: addresses are integers, streams are void pointers.
 *
 * Rules that every entry keeps
 * - One pointer to one parameter struct. Its first two fields are `size` (sizeof of the struct as
 *   the caller knows it) and `version` (IRM_ABI_VERSION); a mismatch is IRM_ERROR_ABI, at once.
 * - Returns an IrmStatus. Never exits, throws, prints, or allocates device memory. The text of the
 *   last failure on the calling thread is irm_last_error().
 * - Work is enqueued on `stream` and may be captured into a CUDA graph: no host synchronisation,
 *   scratch memory comes from the caller and is free again when the stream has passed the call.
 * - Runs on the calling thread's current device, which must own every pointer.
 *
 * To add an entry: a struct here (fixed-width fields, no padding surprises: widest fields first
 * after the two leading ones), a value in IrmStruct, a declaration under "entries", a body in
 * src/abi.cu that checks and forwards, a mirror in python/irminsul/native/abi.py. Kernels live in a
 * folder of their own under src/; build.py compiles every .cu that it finds there.
 * Any change to a struct or to the meaning of a field raises IRM_ABI_VERSION.
 */
#ifndef IRMINSUL_ABI_H
#define IRMINSUL_ABI_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define IRM_API __attribute__((visibility("default")))
#else
#define IRM_API
#endif

#define IRM_ABI_VERSION 1u

typedef enum IrmStatus {
  IRM_OK = 0,
  IRM_ERROR_ABI = 1,       /* caller and library were built from different versions of this file */
  IRM_ERROR_ARGUMENT = 2,  /* a parameter is out of its range; the text names it */
  IRM_ERROR_DEVICE = 3,    /* the current device is not one that the kernels were built for */
  IRM_ERROR_WORKSPACE = 4, /* workspace_bytes is too small */
  IRM_ERROR_CUDA = 5       /* a CUDA call failed; the text is the runtime's own */
} IrmStatus;

/* Names of the structs below, for irm_struct_size. */
typedef enum IrmStruct {
  IRM_STRUCT_RELOCATE_PARAMS = 0,
  IRM_STRUCT_RELOCATE_REPORT = 1,
  IRM_STRUCT_MLA_TILE = 2,
  IRM_STRUCT_MLA_TILES_PARAMS = 3,
  IRM_STRUCT_MLA_PLAN_PARAMS = 4,
  IRM_STRUCT_MLA_ATTENTION_PARAMS = 5,
  IRM_STRUCT_MLA_WIDEN_PARAMS = 6,
  IRM_STRUCT_MLA_TURN_PARAMS = 7,
  IRM_STRUCT_SPAN_RUN = 8,
  IRM_STRUCT_SPANS_PARAMS = 9
} IrmStruct;

/* --- relocate_rows ------------------------------------------------------------------------- */

typedef enum IrmRowFormat {
  IRM_ROW_BF16 = 0, /* 576 bf16: 512 of c_KV, 64 of k_r */
  IRM_ROW_E4M3 = 1  /* 576 e4m3, unscaled: the same */
} IrmRowFormat;

typedef enum IrmRelocateFault {
  IRM_FAULT_NONE = 0,
  IRM_FAULT_SOURCE_SLOT = 1, /* source_slots[row] is outside [0, num_slots) */
  IRM_FAULT_TARGET_SLOT = 2, /* target_slots[row] is */
  IRM_FAULT_DELTA = 3,       /* |deltas[row]| is not below num_positions */
  IRM_FAULT_OVERLAP = 4,     /* a slot is both a source and a target */
  IRM_FAULT_TWICE = 5        /* a slot is the target of two rows */
} IrmRelocateFault;

/* What was wrong with the values of a call: known only when the device has read them, so it is
 * written by the device, into memory that the host can read without asking the device (pinned).
 * `code` is written last. A call without a fault does not touch it. */
typedef struct IrmRelocateReport {
  int64_t row;   /* index into the call's slots and deltas */
  int64_t value; /* the slot or the delta that is wrong */
  int32_t code;  /* IrmRelocateFault */
  int32_t reserved;
} IrmRelocateReport;

/* For every layer and row: target row = source row, its k_r turned by the row's delta.
 * Values that break a rule write nothing, in any layer, and fill in `report`. */
typedef struct IrmRelocateParams {
  uint32_t size;
  uint32_t version;
  const uint64_t *layer_addresses; /* host [num_layers]: device address of slot 0 */
  const int64_t *layer_strides;    /* host [num_layers]: bytes from one slot to the next */
  const int64_t *source_slots;     /* device [num_rows] */
  const int64_t *target_slots;     /* device [num_rows]; distinct, and none is a source */
  const void *deltas;              /* device [num_rows], int32 or int64: target - source position */
  const float *cos_sin;            /* device [num_positions, 64]: cos(32) | sin(32); 16-aligned */
  int64_t num_rows;                /* 0 .. 2**31 - 1 */
  int64_t num_slots;               /* slots of every layer, below 2**32 */
  int64_t num_positions;
  void *workspace;                 /* device, 16-byte aligned, any content */
  uint64_t workspace_bytes;        /* at least irm_relocate_workspace_bytes(num_slots) */
  IrmRelocateReport *report;       /* pinned host or device memory */
  void *stream;                    /* cudaStream_t */
  int32_t num_layers;              /* at least 1 */
  int32_t row_format;              /* IrmRowFormat */
  int32_t interleaved;             /* 1: pairs (2i, 2i + 1); 0: pairs (i, i + 32) */
  int32_t delta_bytes;             /* 4 or 8 */
} IrmRelocateParams;

/* --- mla_attention ------------------------------------------------------------------------- */

/* Token slots [lo, hi) of a page of 64; slot lo + i holds the key of position pos0 + i of its row,
 * whose k_r is still to be turned by delta. Tiles of a row stand in ascending order of pos0. */
typedef struct IrmMlaTile {
  int32_t page;
  uint16_t lo;
  uint16_t hi;
  int32_t delta;
  int32_t pos0;
} IrmMlaTile;

/* Builds the tile table of a batch: position i of a row is its i-th token. */
typedef struct IrmMlaTilesParams {
  uint32_t size;
  uint32_t version;
  const int32_t *indices;  /* device [num_rows, row_stride]: pages, or token slots when by_slot */
  const int32_t *deltas;   /* device, as indices by token (by_slot only); null: no rotation */
  const int32_t *key_lens; /* device [num_rows] */
  int64_t row_stride;      /* numbers from one row of indices to the next */
  IrmMlaTile *tiles;       /* device [num_rows, capacity] */
  int32_t *tile_start;     /* device [num_rows] */
  int32_t *tile_count;     /* device [num_rows] */
  void *stream;
  int32_t num_rows;
  int32_t capacity;        /* tiles of a row at most; more are dropped */
  int32_t by_slot;
  int32_t reserved;
} IrmMlaTilesParams;

/* Divides the work of one batch; the result serves every layer. */
typedef struct IrmMlaPlanParams {
  uint32_t size;
  uint32_t version;
  const int32_t *q_indptr;   /* device [num_rows + 1] */
  const int32_t *q_pos;      /* device [num_rows]: position of each row's first query token */
  const int32_t *tile_start; /* device [num_rows] */
  const int32_t *tile_count; /* device [num_rows] */
  const IrmMlaTile *tiles;   /* device */
  void *plan;                /* device, 128-byte aligned */
  uint64_t plan_bytes;       /* at least irm_mla_plan_bytes(...) */
  void *stream;
  int32_t num_rows;
  int32_t total_q;
  int32_t num_heads;         /* 1 .. 128 */
  int32_t max_q_len;         /* most query tokens of a row that the host expects; chooses a variant */
  int32_t cluster;           /* CTAs that share a unit's keys: 1, 2 or 4; 0 chooses */
  int32_t reserved;
} IrmMlaPlanParams;

/* out = softmax(scale * q . [c_KV | R(delta) k_r]) c_KV over the tiles that the plan was made from.
 * num_rows, total_q, num_heads, max_q_len and cluster are those of the plan. */
typedef struct IrmMlaAttentionParams {
  uint32_t size;
  uint32_t version;
  const void *q;            /* device [total_q, num_heads, 576] bf16, 16-byte aligned */
  const void *cache;        /* device [num_pages][64, 576] bf16, 16-byte aligned */
  const IrmMlaTile *tiles;  /* device */
  const float *cos_sin;     /* device [num_positions, 64]: cos(32) | sin(32); null when no tile turns */
  void *out;                /* device [total_q, num_heads, 512] bf16; zeros without keys */
  float *lse;               /* device [total_q, num_heads], natural logarithm; -inf without keys */
  const void *plan;         /* device, filled by irm_mla_plan */
  uint64_t plan_bytes;
  void *workspace;          /* device, 16-byte aligned, any content */
  uint64_t workspace_bytes; /* at least irm_mla_workspace_bytes() */
  void *stream;
  int64_t num_pages;
  int64_t page_stride;      /* bytes from one page to the next, a multiple of 16 */
  float scale;
  int32_t num_positions;
  int32_t interleaved;      /* 1: pairs (2i, 2i + 1); 0: pairs (i, i + 32) */
  int32_t num_rows;
  int32_t total_q;
  int32_t num_heads;
  int32_t max_q_len;
  int32_t cluster;
  const void *turned;       /* device, slabs that irm_mla_turn filled; null: tiles are turned here */
  int64_t num_tiles;        /* of the table; only with `turned` */
} IrmMlaAttentionParams;

/* k_r of the tiles whose delta is not 0, turned, slab i for tile i, for irm_mla_attention: less
 * work where very many query rows share keys. The other slabs are left as they are. */
typedef struct IrmMlaTurnParams {
  uint32_t size;
  uint32_t version;
  const void *cache;         /* device [num_pages][64, 576] bf16, 16-byte aligned */
  const IrmMlaTile *tiles;   /* device [num_tiles] */
  const int32_t *tile_start; /* device [num_rows] */
  const int32_t *tile_count; /* device [num_rows] */
  const float *cos_sin;      /* device [num_positions, 64]: cos(32) | sin(32) */
  void *slabs;               /* device [num_tiles][64, 64] bf16, 128-byte aligned */
  void *stream;
  int64_t page_stride;       /* bytes from one page to the next, a multiple of 16 */
  int64_t num_tiles;
  int32_t num_rows;
  int32_t num_positions;
  int32_t interleaved;       /* 1: pairs (2i, 2i + 1); 0: pairs (i, i + 32) */
  int32_t reserved;
} IrmMlaTurnParams;

/* The same over an fp8 cache, [num_pages][64] rows of IRM_MLA_FP8_ROW_BYTES each:
 *   bytes   0 .. 511  c_KV, 512 e4m3 numbers
 *   bytes 512 .. 527  4 fp32 factors: number i of c_KV is e4m3[i] * factor[i / 128]
 *   bytes 528 .. 655  k_r, 64 bf16 numbers
 * irm_mla_fp8_attention takes IrmMlaAttentionParams with such a cache; cluster must be 1, in the
 * plan too. The numbers of c_KV are rounded to bf16 before they are multiplied. */
#define IRM_MLA_FP8_ROW_BYTES 656

/* Tiles over an fp8 cache -> the same tiles over bf16 pages of their own, tile i in page i, for
 * irm_mla_attention: less work where many query rows share keys. */
typedef struct IrmMlaWidenParams {
  uint32_t size;
  uint32_t version;
  const void *cache;         /* device [num_pages][64] rows of 656 bytes, 16-byte aligned */
  const IrmMlaTile *tiles;   /* device [num_tiles] */
  const int32_t *tile_start; /* device [num_rows] */
  const int32_t *tile_count; /* device [num_rows] */
  void *pages;               /* device [num_tiles][64, 576] bf16; only tiles in use are written */
  IrmMlaTile *wide_tiles;    /* device [num_tiles]; likewise */
  void *stream;
  int64_t page_stride;       /* bytes from one page of the cache to the next, a multiple of 16 */
  int64_t num_tiles;
  int32_t num_rows;
  int32_t reserved;
} IrmMlaWidenParams;

/* --- write_spans --------------------------------------------------------------------------- */

/* Tokens of one prompt that follow each other and are all computed or all moved. */
typedef struct IrmSpanRun {
  uint64_t given;   /* device address of int64 [count]: the slots that the tokens got */
  uint64_t sources; /* device address of int64 [count]: where rows are moved from; 0: computed */
  int64_t first;    /* index of the first token among all computed, or among all moved ones */
  int64_t count;    /* at least 1 */
  int64_t value;    /* computed: position of the first token; moved: target - source position */
} IrmSpanRun;

/* What a planned batch has to know of each of its tokens. `numbers` is, one behind the other:
 * slots [num_computed] and positions [num_computed] of the tokens to compute, then source slots,
 * target slots and deltas [num_moved each] of the others. Runs must not share tokens. */
typedef struct IrmSpansParams {
  uint32_t size;
  uint32_t version;
  const IrmSpanRun *runs; /* host [num_runs]; read before the call returns */
  int64_t *numbers;       /* device [2 * num_computed + 3 * num_moved] */
  int64_t num_computed;
  int64_t num_moved;
  void *stream;
  int32_t num_runs;
  int32_t reserved;
} IrmSpansParams;

/* --- entries ------------------------------------------------------------------------------- */

IRM_API uint32_t irm_abi_version(void);
/* sizeof a struct as the library was built with it; 0 for an unknown name. */
IRM_API uint32_t irm_struct_size(int32_t which);
/* "CUDA 13.0, sm_90a": what the library was built with. */
IRM_API const char *irm_build_info(void);
/* Text of the last failure on this thread; empty when there was none. Never NULL. */
IRM_API const char *irm_last_error(void);
/* IRM_OK when `device` runs the kernels in this library. */
IRM_API int32_t irm_check_device(int32_t device);

IRM_API uint64_t irm_relocate_workspace_bytes(int64_t num_slots);
IRM_API int32_t irm_relocate_rows(const IrmRelocateParams *params);

/* Bytes for the current device; 0 when it cannot be asked. */
IRM_API uint64_t irm_mla_plan_bytes(int64_t num_rows, int64_t total_q, int64_t num_heads);
IRM_API uint64_t irm_mla_workspace_bytes(void);
IRM_API int32_t irm_mla_tiles(const IrmMlaTilesParams *params);
IRM_API int32_t irm_mla_plan(const IrmMlaPlanParams *params);
IRM_API int32_t irm_mla_turn(const IrmMlaTurnParams *params);
IRM_API int32_t irm_mla_attention(const IrmMlaAttentionParams *params);
IRM_API int32_t irm_mla_fp8_attention(const IrmMlaAttentionParams *params);
IRM_API int32_t irm_mla_fp8_widen(const IrmMlaWidenParams *params);

IRM_API int32_t irm_write_spans(const IrmSpansParams *params);

#ifdef __cplusplus
}
#endif

#endif /* IRMINSUL_ABI_H */
