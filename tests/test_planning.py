"""Plans and policies as Python values."""

import gc
import pickle

import numpy as np
import pytest
from irminsul import Compute, Namespace, Piece, Policy, Registry, Reuse
from irminsul.errors import InvalidParams, RegistryFull

TEXT = np.random.default_rng(1).integers(0, 129_280, 2000)


@pytest.fixture
def registry() -> Registry:
    registry = Registry(2000)
    registry.add(1, None, TEXT[:1200], namespace=Namespace())
    registry.add(2, 1, TEXT[1200:], namespace=Namespace(), base_position=1200)
    return registry


def test_segments_match_patterns_and_compare_by_value(registry: Registry) -> None:
    prompt = [1, 2, 3, *TEXT.tolist()]
    plan = registry.lookup(prompt, namespace=Namespace())
    again = registry.lookup(prompt, namespace=Namespace())
    assert plan.segments == again.segments
    assert {hash(s) for s in plan.segments} == {hash(s) for s in again.segments}
    match plan.segments:
        case (
            Compute(0, 35),
            Reuse(35, length, 32, (Piece(1, 32, first), Piece(2, 0, second))),
            Compute(2002, 2003),
        ):
            assert first + second == length == 2002 - 35
        case other:
            pytest.fail(f"unexpected segments {other}")
    assert plan.segments[1].delta == 3
    assert repr(plan) == "ReusePlan(3 segments, 1967 tokens reused, 36 computed)"


def test_the_exact_prefix_is_never_in_a_plan(registry: Registry) -> None:
    for prefix_len in (0, 1, 500, 1999, 2000):
        plan = registry.lookup(TEXT, namespace=Namespace(), prefix_len=prefix_len)
        starts = [s.target if isinstance(s, Reuse) else s.start for s in plan.segments]
        assert starts[:1] == ([prefix_len] if prefix_len < 2000 else [])
        assert plan.reused_tokens + plan.computed_tokens == 2000 - prefix_len


def test_a_prompt_of_no_or_one_token_is_computed(registry: Registry) -> None:
    assert registry.lookup([], namespace=Namespace()).segments == ()
    (only,) = registry.lookup([5], namespace=Namespace()).segments
    assert only == registry.lookup([6], namespace=Namespace()).segments[0]
    assert isinstance(only, Compute)


def fits(registry: Registry) -> bool:
    """Whether something may be evicted for a node of 100 tokens."""
    try:
        registry.add(9, None, TEXT[:100] + 1, namespace=Namespace())
    except RegistryFull:
        return False
    registry.remove(9)
    return True


def test_a_plan_pins_until_it_is_left(registry: Registry) -> None:
    plan = registry.lookup([1, *TEXT.tolist()], namespace=Namespace())
    assert not fits(registry)
    with plan as entered:
        assert entered is plan
        assert not fits(registry)
    assert plan.reused_tokens > 0
    assert fits(registry)


def test_a_plan_pins_until_it_is_released_or_collected(registry: Registry) -> None:
    plan = registry.lookup([1, *TEXT.tolist()], namespace=Namespace())
    other = registry.lookup([1, *TEXT.tolist()], namespace=Namespace())
    plan.release()
    plan.release()
    assert not fits(registry)
    del other
    gc.collect()
    assert fits(registry)


def test_policy_is_a_value() -> None:
    policy = Policy(sink_tokens=4, min_span=8, recompute_head=2, max_hops=3, max_depth=5)
    assert pickle.loads(pickle.dumps(policy)) == policy
    assert len({policy, Policy(4, 8, 2, 3, 5), Policy()}) == 2
    assert repr(policy).startswith("Policy(sink_tokens=4, min_span=8, recompute_head=2,")
    assert Registry(5, policy=policy).policy == policy
    for name in ("min_span", "max_segments"):
        with pytest.raises(InvalidParams, match=f"{name} is 0; allowed: at least 1"):
            Policy(**{name: 0})
    with pytest.raises(InvalidParams, match="max_hops is -1"):
        Policy(max_hops=-1)


def test_plans_outlive_their_registry() -> None:
    registry = Registry(5000)
    registry.add(1, None, TEXT, namespace=Namespace())
    plan = registry.lookup([1, *TEXT.tolist()], namespace=Namespace())
    del registry
    gc.collect()
    assert plan.revalidate()
    assert plan.reused_tokens == 2000 - 32 - 1
