"""Recorded agent calls as text -> token ids of some sessions in one file.

For a machine that has no tokenizer.

    python benches/serving/pack.py TRACE.jsonl.zst --out calls.npz --sessions 24
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from irminsul.tokenizer import load_tokenizer
from irminsul.traces.reader import read_calls
from irminsul.traces.template import render_chat


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("trace", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--sessions", type=int, default=24, help="taken evenly from the whole file")
    parser.add_argument("--calls", type=int, default=None, help="first calls of each; all of them")
    arguments = parser.parse_args()
    grouped: dict[str, list[str]] = {}
    for call in read_calls(arguments.trace):
        grouped.setdefault(call.session, []).append(render_chat(call.messages, call.tools))
    names = list(grouped)
    step = max(1, len(names) // arguments.sessions)
    encoder = load_tokenizer()
    packed = {}
    for index, name in enumerate(names[::step][: arguments.sessions]):
        for turn, text in enumerate(grouped[name][: arguments.calls]):
            packed[f"{index:03d}_{turn:03d}"] = np.asarray(encoder.encode(text), dtype=np.uint32)
    np.savez_compressed(arguments.out, **packed)
    print(f"{len(packed)} calls, {sum(map(len, packed.values()))} tokens: {arguments.out}")


if __name__ == "__main__":
    main()
