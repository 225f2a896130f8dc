// mla_attention as abi.cu sees it: the launchers and the buffer sizes they need.
// Knows the C ABI's structs; no kernel.
#pragma once

#include "irminsul/abi.h"

namespace irminsul::mla {

uint64_t plan_bytes(int64_t num_rows, int64_t total_q, int64_t num_heads) noexcept;
uint64_t workspace_bytes() noexcept;
IrmStatus launch_tiles(const IrmMlaTilesParams& params) noexcept;
IrmStatus launch_plan(const IrmMlaPlanParams& params) noexcept;
IrmStatus launch_turn(const IrmMlaTurnParams& params) noexcept;
IrmStatus launch_attention(const IrmMlaAttentionParams& params) noexcept;

}  // namespace irminsul::mla
