"""results/conversation.json -> the table in README.md, between its two marks.

Must not know how the figures were measured. `render` is also what the README's test compares with.
"""

import json
from pathlib import Path

ROOT = Path(__file__).parents[2]
RESULT = Path(__file__).parent / "results" / "conversation.json"
BEGIN, END = "<!-- demo table: benches/demo/readme.py -->\n", "<!-- end of demo table -->"


def render(document: dict) -> str:
    """Return the table and the line under it, as Markdown."""
    lines = [
        "| call | prompt tokens | exact prefix | reused, shifted | computed "
        "| first token, prefix cache | first token, irminsul | speed-up |",
        "|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    lines += [
        f"| {turn['turn'] + 1} | {turn['prompt_tokens']:,} | {turn['prefix_tokens']:,} "
        f"| {turn['reused_tokens']:,} | {turn['computed_tokens']:,} "
        f"| {turn['plain_ttft_s']:.2f} s | {turn['ttft_s']:.2f} s | {turn['speedup']:.1f}x |"
        for turn in document["turns"]
    ]
    machine, rows = document["machine"], {row["bar_id"]: row for row in document["rows"]}
    lines += [
        "",
        f"{machine['processor']}, {machine['cores']} cores, SGLang {machine['sglang']}"
        f"{' (' + machine['note'] + ')' if 'note' in machine else ''}. After the "
        f"first call {rows['demo.reused']['value']:.1%} of the prompt tokens were reused at "
        f"shifted positions, {rows['demo.prefix']['value']:.1%} as exact prefix.",
        "",
    ]
    return "\n".join(lines)


def main() -> None:
    """Rewrite the table in README.md."""
    path = ROOT / "README.md"
    head, _, rest = path.read_text(encoding="utf-8").partition(BEGIN)
    _, _, tail = rest.partition(END)
    table = render(json.loads(RESULT.read_text()))
    path.write_text(head + BEGIN + table + END + tail, encoding="utf-8")


if __name__ == "__main__":
    main()
