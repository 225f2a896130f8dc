"""Writes the golden vectors next to this file from the slow references.

Run it only to add cases: a changed vector is a breaking change of a frozen format and
belongs into the changelog.
"""

import itertools
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from reference.gear import boundary_marker, chunk_bounds, mix
from reference.namespace import encode
from reference.tokens import expand
from reference.xxhash64 import fingerprint

Part = dict[str, Any]
VOCABULARY = 129_280
DEFAULT = {"min": 64, "avg": 128, "max": 512, "secret": 0}
LARGE = {"min": 128, "avg": 512, "max": 2048, "secret": 0}
SECRET = {**DEFAULT, "secret": 0x5EC2E7}


def ids(values: list[int], times: int = 1) -> Part:
    return {"ids": values, "times": times}


def random(seed: int, count: int, below: int = VOCABULARY, power: int = 1) -> Part:
    return {"seed": seed, "count": count, "below": below, "power": power}


def sequence(start: int, count: int, step: int = 1) -> Part:
    return {"start": start, "count": count, "step": step}


def marker(params: dict[str, int]) -> Part:
    secret = params["secret"]
    low_bit = {mix(token ^ secret) & 1: token for token in range(100)}
    return ids(boundary_marker(low_bit[0], low_bit[1], secret))


def degenerate_cases() -> Iterator[tuple[str, dict[str, int], list[Part]]]:
    for length in (0, 1, 63, 64, 65, 127, 128, 511, 512, 513):
        yield f"length {length}", DEFAULT, [random(length, length)]
    for token in (0, 1, 7, 100_000, 2**31, 2**32 - 1):
        yield f"constant {token}", DEFAULT, [ids([token], 2000)]
    yield "constant with a secret", SECRET, [ids([0], 1000), ids([SECRET["secret"]], 1000)]
    for period in (2, 3, 64):
        pattern = [(i * 7919 + period) % VOCABULARY for i in range(period)]
        yield f"period {period}", DEFAULT, [ids(pattern, 3000 // period)]
    yield "zeros in text", DEFAULT, [random(1, 300), ids([0], 300), random(2, 300)]
    yield "sequential ids", DEFAULT, [sequence(0, 4000)]
    yield "descending ids", DEFAULT, [sequence(100_000, 3000, -3)]
    yield "two symbols", DEFAULT, [random(3, 4000, below=2)]
    yield "largest ids", DEFAULT, [random(4, 2000, below=2**32)]


def text_cases() -> Iterator[tuple[str, dict[str, int], list[Part]]]:
    for name, params in (("default", DEFAULT), ("large", LARGE), ("secret", SECRET)):
        yield f"uniform, {name}", params, [random(10, 6000)]
        yield f"skewed, {name}", params, [random(11, 6000, power=6)]
    yield (
        "skewed, odd sizes",
        {"min": 67, "avg": 200, "max": 333, "secret": 9},
        [random(12, 5000, power=4)],
    )
    yield (
        "average just above the minimum",
        {"min": 64, "avg": 66, "max": 66, "secret": 0},
        [random(13, 700)],
    )


def marker_cases() -> Iterator[tuple[str, dict[str, int], list[Part]]]:
    for context in range(200):
        left = random(1000 + context, 3 * context + 1)
        yield f"marker after context {context}", DEFAULT, [left, marker(DEFAULT), random(20, 400)]
    yield "marker at the start", DEFAULT, [marker(DEFAULT), random(21, 300)]
    yield "marker after a few tokens", DEFAULT, [random(22, 10), marker(DEFAULT), random(21, 300)]
    yield "two markers in a row", DEFAULT, [random(22, 100), marker(DEFAULT), marker(DEFAULT)]
    yield "marker under a secret", SECRET, [random(23, 200), marker(SECRET), random(21, 300)]
    yield "marker of another secret", DEFAULT, [random(23, 200), marker(SECRET), random(21, 300)]


def chunk_vectors() -> list[dict[str, Any]]:
    vectors = []
    for cases in (degenerate_cases(), text_cases(), marker_cases()):
        for name, params, parts in cases:
            tokens = expand(parts)
            bounds = chunk_bounds(
                tokens, params["min"], params["avg"], params["max"], params["secret"]
            )
            prints = [fingerprint(tokens[a:b]) for a, b in itertools.pairwise(bounds)]
            fingerprints = [f"{value:016x}" for value in prints]
            vectors.append(
                {
                    "name": name,
                    "params": params,
                    "tokens": parts,
                    "bounds": bounds,
                    "fingerprints": fingerprints,
                }
            )
    return vectors


def gear_vectors() -> list[dict[str, Any]]:
    tokens = [0, 1, 2, 255, 65_536, 129_279, 2**31 - 1, 2**31, 2**32 - 1]
    return [{"token": token, "value": f"{mix(token):016x}"} for token in tokens]


def fingerprint_vectors() -> list[dict[str, Any]]:
    vectors = []
    for count in (*range(20), 31, 32, 33, 64, 127, 512, 1000):
        part = random(count, count, below=2**32)
        value = fingerprint(expand([part]))
        vectors.append({"tokens": [part], "fingerprint": f"{value:016x}"})
    return vectors


def namespace_vectors() -> list[dict[str, Any]]:
    cases = [
        ("", "", "", "", ""),
        ("deepseek-ai/DeepSeek-V2-Lite@1a2b", "bf16:576", "yarn:40", "", "tenant-1"),
        ("a", "bc", "", "", ""),
        ("ab", "c", "", "", ""),
        ("", "", "", "", "b"),
        ("", "", "", "b", ""),
        ("神", "", "", "\x00", "\n"),
    ]
    return [
        {"fields": list(case), "encoding": encode(*(field.encode() for field in case)).hex()}
        for case in cases
    ]


def render(vectors: list[dict[str, Any]]) -> str:
    """One line per vector, so that a difference shows which one changed; no spaces."""
    lines = (json.dumps(vector, separators=(",", ":")) for vector in vectors)
    return "[\n" + ",\n".join(lines) + "\n]\n"


def files() -> dict[str, str]:
    """Return the contents of every golden file by name."""
    return {
        "chunks.json": render(chunk_vectors()),
        "gear.json": render(gear_vectors()),
        "fingerprints.json": render(fingerprint_vectors()),
        "namespaces.json": render(namespace_vectors()),
    }


if __name__ == "__main__":
    for name, text in files().items():
        Path(__file__).with_name(name).write_text(text, encoding="utf-8")
