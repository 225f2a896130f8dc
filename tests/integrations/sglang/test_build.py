"""Server arguments -> what an engine may be asked to do by the cache that is built for it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from irminsul.integrations.sglang.start import build


@pytest.mark.parametrize(
    ("arguments", "budget"),
    [
        ({}, 8192),
        ({"chunked_prefill_size": -1}, 0),
        ({"enable_dp_attention": True, "dp_size": 2}, 0),
        ({"enable_dp_attention": False, "dp_size": 1, "attn_dp_size": 2}, 0),
        ({"dp_size": 2, "attn_dp_size": 1}, 8192),
        ({"enable_lora": True}, 0),
    ],
)
def test_ranks_that_forward_in_step_never_run_parts_of_their_own(
    arguments: dict[str, Any], budget: int
) -> None:
    """0.5.22 and later count attention's groups apart from replicas, and clear the flag."""
    given_arguments = SimpleNamespace(**{"chunked_prefill_size": 8192, **arguments})
    assert build._forward_tokens(SimpleNamespace(server_args=given_arguments)) == budget
