"""A report -> one HTML file that needs nothing else, or PNG files of its figures.

Must not know how the numbers came about. Everything from a log is escaped.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path
from typing import Any

from irminsul.errors import InvalidParams

__all__ = ["render_html", "write_html", "write_png"]

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem;
       color: #1c2329; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.2rem; margin-top: 2.2rem; }
.lead { font-size: 1.15rem; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { padding: .3rem .6rem; border-bottom: 1px solid #dde3e7; text-align: right;
         vertical-align: top; }
th:first-child, td:first-child, td.text, th.text { text-align: left; }
code { background: #f3f5f6; overflow-wrap: anywhere; }
figure { margin: 1rem 0; } figure svg { width: 100%; height: auto; }
figcaption { color: #55616b; }
"""

COLUMNS = (
    ("calls", "calls", ",d"),
    ("prompt tokens", "prompt_tokens", ",d"),
    ("prefix cache %", "prefix_percent", ".1f"),
    ("irminsul %", "irminsul_percent", ".1f"),
    ("upper bound %", "upper_bound_percent", ".1f"),
    ("prefix cache % at capacity", "prefix_percent_at_capacity", ".1f"),
    ("irminsul % at capacity", "irminsul_percent_at_capacity", ".1f"),
    ("spans per prompt", "spans_per_prompt", ".1f"),
    ("seconds saved", "saved_seconds", ",.1f"),
)

# Sessions listed for each log; the JSON report has all of them.
MAX_SESSIONS = 50


def write_html(report: dict[str, Any], path: Path) -> None:
    """Write the report of `irminsul.traces.report.as_json` as a page.

    Raises
    ------
    InvalidParams
        The file cannot be written.
    MissingExtra
        The package ``matplotlib`` is missing.
    """
    page = render_html(report)
    try:
        path.write_text(page, encoding="utf-8")
    except OSError as error:
        raise InvalidParams(f"cannot write {str(path)!r}: {error}") from error


def write_png(report: dict[str, Any], folder: Path) -> None:
    """Write every figure of the report into a folder, which is made when missing.

    Raises
    ------
    InvalidParams
        The folder cannot be written to.
    MissingExtra
        The package ``matplotlib`` is missing.
    """
    from irminsul.traces.figures import draw

    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, _, figure in draw(report):
            figure.savefig(folder / f"{name}.png", dpi=150)
    except OSError as error:
        raise InvalidParams(f"cannot write into {str(folder)!r}: {error}") from error


def render_html(report: dict[str, Any]) -> str:
    """Return the page as text."""
    from irminsul.traces.figures import draw

    figures = {name: _figure(figure, caption) for name, caption, figure in draw(report)}
    body = [_lead(report), figures.pop("reuse")]
    rows = [(file["file"], file["total"]) for file in report["files"]]
    body.append(_totals("log", rows))
    for number, file in enumerate(report["files"], start=1):
        body += _file(file, figures.get(f"turns-{number}"), figures.get(f"causes-{number}"))
    body.append(_method(report))
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width">'
        f"<title>Prompt reuse</title><style>{STYLE}</style></head>\n"
        f"<body>{''.join(body)}</body></html>\n"
    )


def _figure(figure: Any, caption: str) -> str:
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None})
    svg = buffer.getvalue()
    # The XML declaration and document type before the element are not HTML.
    svg = svg[svg.index("<svg") :]
    return f"<figure>{svg}<figcaption>{escape(caption)}</figcaption></figure>"


def _lead(report: dict[str, Any]) -> str:
    total = report["total"]
    extra = total["irminsul_percent"] - total["prefix_percent"]
    return (
        "<h1>How much of these prompts need not be computed</h1>"
        f'<p class="lead">A prefix cache serves <b>{total["prefix_percent"]:.1f} %</b> of '
        f"{total['prompt_tokens']:,d} prompt tokens. irminsul serves <b>{extra:.1f} %</b> more, "
        f"about {total['saved_seconds']:,.1f} seconds of prefill for {escape(report['model'])}.</p>"
    )


def _file(file: dict[str, Any], turns: str | None, causes: str | None) -> list[str]:
    parts = [f"<h2>{escape(file['file'])}</h2>", turns or ""]
    if file["causes"]:
        parts += ["<h3>Why prefixes break, and what to do</h3>", causes or ""]
        parts.append(_causes(file["causes"]))
    sessions = sorted(file["sessions"], key=lambda row: -row["computed_tokens"])[:MAX_SESSIONS]
    if len(sessions) > 1:
        summary = f"The {len(sessions)} sessions with the most tokens to compute"
        table = _totals("session", [(row["session"], row) for row in sessions])
        parts.append(f"<details><summary>{summary}</summary>{table}</details>")
    if file["malformed_lines"]:
        lines = "".join(
            f"<li>line {line['line']}: {escape(line['reason'])}</li>"
            for line in file["first_malformed"]
        )
        parts.append(f"<p>{file['malformed_lines']:,d} lines were skipped:</p><ul>{lines}</ul>")
    return parts


def _totals(first: str, rows: Sequence[tuple[str, dict[str, Any]]]) -> str:
    shown = [column for column in COLUMNS if column[1] in rows[0][1]]
    head = [first, *(column[0] for column in shown)]
    body = [[label, *(format(row[key], spec) for _, key, spec in shown)] for label, row in rows]
    return _table(head, body)


def _table(head: Iterable[str], body: Iterable[Iterable[str]]) -> str:
    header = "".join(f"<th>{escape(cell)}</th>" for cell in head)
    lines = ("".join(f"<td>{escape(cell)}</td>" for cell in row) for row in body)
    rows = "".join(f"<tr>{line}</tr>" for line in lines)
    return f"<table><thead><tr>{header}</tr></thead><tbody>{rows}</tbody></table>"


def _causes(causes: Sequence[dict[str, Any]]) -> str:
    head = ("cause", "times", "tokens lost", "example", "what to do")
    header = "".join(f'<th class="text">{cell}</th>' for cell in head)
    return f"<table><tr>{header}</tr>{''.join(map(_cause, causes))}</table>"


def _cause(row: dict[str, Any]) -> str:
    example = "<br>".join(
        f"{label} <code>{escape(row.get(key, ''))}</code>"
        for label, key in (("was", "before"), ("is", "after"))
    )
    return (
        f"<tr><td>{escape(row['cause'])}</td><td>{row['count']:,d}</td>"
        f'<td>{row["lost_tokens"]:,d}</td><td class="text">{example}</td>'
        f'<td class="text">{escape(row["advice"])}</td></tr>'
    )


def _method(report: dict[str, Any]) -> str:
    capacity = report["capacity_tokens"]
    at = (
        ""
        if capacity is None
        else (f" The columns at capacity keep {capacity:,d} tokens, least recently used first out.")
    )
    return (
        "<h2>How this was measured</h2><p>The calls were replayed in order through a radix prefix "
        "cache and through irminsul's registry beside the same tree; without a capacity, "
        f"everything is kept.{at} The upper bound counts every token in a "
        "stretch of 64 tokens that an earlier prompt contains. Seconds are an estimate at "
        f"{report['teraflops']:g} TFLOP/s.</p>"
    )
