"""As much of SGLang's adder, requests and tree as admission uses, on plain objects."""

from __future__ import annotations

import enum
from array import array
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from irminsul import Namespace, Policy, Registry
from irminsul.integrations.sglang.admission.adder import Admission
from irminsul.integrations.sglang.agreement import Agreement
from irminsul.integrations.sglang.metrics import Metrics
from irminsul.integrations.sglang.settings import Settings
from irminsul.integrations.sglang.spans import Limits
from irminsul.integrations.sglang.tree.mirror import TreeMirror

NAMESPACE = Namespace(model="m")
LIMITS = Limits(rows=16, row_tokens=10**6, min_span=8, positions=10**6)
DOCUMENT = 400


class Result(enum.Enum):
    CONTINUE = 0
    NO_TOKEN = 1
    OTHER = 2


def ids(count: int, seed: int) -> list[int]:
    return [int(token) for token in np.random.default_rng(seed).integers(2, 2**31, count)]


class Cache:
    """A tree of one donor, with lock counts and a pool of `free` evictable slots."""

    def __init__(self, document: list[int]) -> None:
        self.metrics = Metrics(60.0)
        self.mirror = TreeMirror(Registry(1 << 16, policy=Policy(min_span=8)), self.metrics)
        tokens = ids(40, 99) + document
        self.leaf: Any = Node(tokens, None)
        self.mirror.record(self.leaf, None, NAMESPACE, [])
        self.locks = 0

    def inc_lock_ref(self, node: Any) -> None:
        assert node is self.leaf
        self.locks += 1

    def dec_lock_ref(self, node: Any) -> None:
        assert node is self.leaf
        self.locks -= 1

    def lookup_namespace(self, request: Any) -> Namespace | None:
        return None if request.exact else NAMESPACE


class Node:
    """A radix-tree node that holds `tokens`."""

    def __init__(self, tokens: list[int], parent: Any) -> None:
        self.key = _Key(array("q", tokens))
        self.value = torch.arange(len(tokens))
        self.parent = parent


class _Key:
    def __init__(self, tokens: array[int]) -> None:
        self.token_ids = tokens

    def __len__(self) -> int:
        return len(self.token_ids)

    def raw_token_ids(self) -> array[int]:
        return self.token_ids


class Adder:
    """SGLang's budgets, charged as `PrefillAdder` charges them."""

    def __init__(self, cache: Cache, chunk: int | None, memory: int = 10**6, page: int = 1) -> None:
        self.cache, self.memory, self.page_size = cache, memory, page
        self.rem_chunk_tokens = chunk
        self.rem_input_tokens = 10**6
        self.can_run_list: list[Any] = []
        self.running_batch = SimpleNamespace(reqs=[])
        self.waiting_queue_len = 1
        self.new_chunked_req: Any = None
        self.chunked_req_limit: Any = None
        self.prefill_delayer_single_pass: Any = None
        self.log_hit_tokens = self.log_input_tokens = self.log_device_hit_tokens = 0
        self.reprocessed_log_hit_tokens = self.reprocessed_log_input_tokens = 0
        self.calls = 0

    @property
    def rem_total_tokens(self) -> int:
        return self.memory - (len(self.cache.leaf.key) if self.cache.locks else 0)

    def ceil_paged_tokens(self, tokens: int) -> int:
        return -(-tokens // self.page_size) * self.page_size

    def budget_state(self) -> Result:
        if self.rem_total_tokens <= 0:
            return Result.NO_TOKEN
        spent = self.rem_chunk_tokens is not None and self.rem_chunk_tokens <= 0
        return Result.OTHER if spent or self.rem_input_tokens <= 0 else Result.CONTINUE

    def admit(self, request: Any, length: int) -> None:
        request.extend_end = request.prefix_len + length
        self.can_run_list.append(request)
        charged = self.ceil_paged_tokens(length)
        self.memory -= charged
        self.rem_input_tokens -= charged
        self.log_input_tokens += charged
        self.reprocessed_log_input_tokens += charged if request.retracted_stain else 0
        if self.rem_chunk_tokens is not None:
            self.rem_chunk_tokens -= charged


def add_one_req(adder: Adder, request: Any) -> Result:
    adder.calls += 1
    left = len(request.full_untruncated_fill_ids) - request.prefix_len
    if left >= adder.rem_total_tokens:
        return Result.NO_TOKEN
    chunk = adder.rem_chunk_tokens
    if chunk is not None and adder.ceil_paged_tokens(left) > chunk:
        left = chunk // adder.page_size * adder.page_size
        if left <= 0:
            return Result.OTHER
        adder.new_chunked_req = request
    adder.admit(request, left)
    return adder.budget_state()


def add_chunked_req(adder: Adder, request: Any) -> Any:
    left = len(request.full_untruncated_fill_ids) - request.prefix_len
    limit = min(adder.rem_chunk_tokens or 0, adder.rem_total_tokens)
    limit = limit if limit > 0 else adder.rem_chunk_tokens or 0
    adder.admit(request, min(left, limit))
    return request if left > limit else None


def request(tokens: list[int], **fields: Any) -> Any:
    given: dict[str, Any] = {
        "rid": "r",
        "full_untruncated_fill_ids": array("q", tokens),
        "origin_input_ids": tokens,
        "prefix_len": 0,
        "exact": False,
        "multimodal_inputs": None,
        "input_embeds": None,
        "positional_embed_overrides": None,
        "return_hidden_states": False,
        "return_logprob": False,
        "retracted_stain": False,
        "logprob_start_len": -1,
    }
    return SimpleNamespace(**{**given, **fields})


def moved(document: list[int], seed: int, head: int = 70, tail: int = 20) -> list[int]:
    return ids(head, seed) + document + ids(tail, seed + 1)


def setting(
    limits: Limits = LIMITS, settings: Settings | None = None
) -> tuple[Cache, Admission, list[int]]:
    document = ids(DOCUMENT, 1)
    cache = Cache(document)
    made: Any = cache
    return (
        cache,
        Admission(made, limits, settings or Settings(), cache.metrics, Agreement.alone()),
        document,
    )


def batch_of(requests: list[Any]) -> Any:
    return SimpleNamespace(
        reqs=requests,
        prefix_lens=[one.prefix_len for one in requests],
        extend_lens=[one.extend_end - one.prefix_len for one in requests],
    )
