"""Token ids -> chunk bounds, as literally as the rule can be written.

Knows nothing of speed. A hash here is computed from its window alone, never rolled.
"""

from collections.abc import Sequence

WINDOW = 64
MARKER_THRESHOLD = 1 << 24
_MASK64 = (1 << 64) - 1
_MASK32 = (1 << 32) - 1


def mix(token: int) -> int:
    """Return the 64-bit gear value of one id."""
    a = token * 0x9E3779B1
    return (((a >> 13) & _MASK32) * 0xF2D4A6C7 + (a << 32)) & _MASK64


def window_hash(tokens: Sequence[int], end: int, secret: int = 0) -> int:
    """Return the hash after the token before `end`: a token of age i is shifted left by i."""
    start = max(0, end - WINDOW)
    total = sum(mix(tokens[at] ^ secret) << (end - 1 - at) for at in range(start, end))
    return total & _MASK64


def chunk_bounds(
    tokens: Sequence[int],
    minimum: int = 64,
    average: int = 128,
    maximum: int = 512,
    secret: int = 0,
) -> list[int]:
    """Return the bounds of the chunks, from 0 to the number of tokens."""
    threshold = (1 << 64) // (average - minimum)
    bounds = [0]
    last_marker = 0
    for end in range(1, len(tokens) + 1):
        value = window_hash(tokens, end, secret)
        length = end - bounds[-1]
        if value < MARKER_THRESHOLD and end - last_marker >= WINDOW:
            bounds.append(end)
            last_marker = end
        elif (value < threshold and length >= minimum) or length == maximum:
            bounds.append(end)
    if bounds[-1] != len(tokens):
        bounds.append(len(tokens))
    return bounds


def boundary_marker(even: int, odd: int, secret: int = 0) -> list[int]:
    """Return 64 ids out of two whose window hash is 0.

    The token of age i reaches bit i of the hash with its gear value's lowest bit, once the
    younger tokens are fixed. Two ids that differ there can therefore clear the bits one by one.
    """
    by_low_bit = {mix(even ^ secret) & 1: even, mix(odd ^ secret) & 1: odd}
    assert set(by_low_bit) == {0, 1}, (
        "the two ids must differ in the lowest bit of their gear value"
    )
    total = 0
    youngest_first = []
    for age in range(WINDOW):
        token = by_low_bit[(total >> age) & 1]
        total = (total + (mix(token ^ secret) << age)) & _MASK64
        youngest_first.append(token)
    assert total == 0
    return youngest_first[::-1]
