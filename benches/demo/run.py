"""`irminsul demo` -> results/<name>.json: its summary as rows with bars, and all calls' figures.

Must not know how the demo measures.
"""

import argparse
import json
import shlex
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import bars

RESULTS = Path(__file__).parent / "results"


def main() -> int:
    """Run the demo with the arguments after the name; return 1 when a bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", help="name of the result file")
    parser.add_argument("--from-json", type=Path, help="take a demo's --json output as it is")
    parser.add_argument("--note", help="what a reader of the times must know, such as other load")
    options, demo_arguments = parser.parse_known_args()
    command = [sys.executable, "-m", "irminsul", "demo", "--json", *demo_arguments]
    if options.from_json:
        answer = json.loads(options.from_json.read_text())
    else:
        done = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True)
        answer = json.loads(done.stdout)
    shown = [Path(word).name if "/" in word else word for word in demo_arguments]
    results = rows(options.name, answer)
    RESULTS.mkdir(exist_ok=True)
    document = {
        "machine": answer["machine"] | ({"note": options.note} if options.note else {}),
        "command": shlex.join(["irminsul", "demo", "--json", *shown]),
        "rows": results,
        "turns": answer["turns"],
    }
    (RESULTS / f"{options.name}.json").write_text(json.dumps(document, indent=1) + "\n")
    for row in results:
        print(row["metric"], row["value"], row["unit"], row["bar"])
    return 0 if all(bars.holds(row) for row in results) else 1


def rows(case: str, answer: dict) -> list[dict]:
    """Return the summary as rows."""
    summary = answer["summary"]
    common = {"case": case, "rival": "SGLang's prefix cache", "samples": summary["turns"]}

    def row(bar_id: str, metric: str, value: float, unit: str, rival: float | None, bar: str):
        return {"bar_id": bar_id, **common, "metric": metric, "value": value, "unit": unit,
                "rival_value": rival, "bar": bar}  # fmt: skip

    prefix, reused = summary["prefix_share"], summary["reused_share"]
    return [
        row("demo.reused", "prompt tokens reused at shifted positions, after each session's "
            "first call", round(reused, 4), "share", 0.0, ">= 0.80"),
        row("demo.prefix", "prompt tokens reused as exact prefix", round(prefix, 4), "share",
            round(prefix, 4), "< 0.02"),
        row("demo.ttft", "median time to first token", round(summary["ttft_s"], 3), "s",
            round(summary["plain_ttft_s"], 3), f"< {summary['plain_ttft_s']:.3f}"),
        row("demo.slower", "calls whose first token came later than without",
            summary["slower_turns"], "calls", None, "<= 0"),
    ]  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
