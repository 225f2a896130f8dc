// mla_attention over an e4m3 cache as abi.cu sees it.
// Knows the C ABI's structs; no kernel.
#pragma once

#include "irminsul/abi.h"

namespace irminsul::mla::fp8 {

IrmStatus launch_attention(const IrmMlaAttentionParams& params) noexcept;
IrmStatus launch_widen(const IrmMlaWidenParams& params) noexcept;

}  // namespace irminsul::mla::fp8
