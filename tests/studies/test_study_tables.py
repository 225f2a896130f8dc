"""Every cell of the studies' tables is the value that the results file has for that very case."""

import json

import pytest
from test_study_numbers import NUMBER, ROOT, STUDIES, number, places

KINDS = {
    "one link": "single",
    "two links": "hop2",
    "three links": "hop3",
    "variables": "vars",
    "three at once": "multi",
    "tool calls": "tool",
}
HEADS = {"latent (MLA)": "MLA", "grouped (GQA)": "GQA", "full (MHA)": "MHA"}
ENERGY = {
    "J a request": "energy per request",
    "first token, ms": "time to first token",
    "from cache, %": "tokens from cache",
    "energy saved, %": "energy saved",
    "time saved, %": "time saved",
}


def rows(study, name):
    return json.loads((STUDIES / study / "results" / f"{name}.json").read_text())["rows"]


def table_rows(text):
    """Yield the heading above, the table's first line and a row of it, both split into cells."""
    heading, first = "", None
    for line in text.splitlines():
        if line.startswith("#"):
            heading = line
        if not line.startswith("|"):
            first = None
        elif first is None:
            first = [cell.strip() for cell in line.strip("|").split("|")]
        elif not line.startswith("|-"):
            yield heading, first, [cell.strip() for cell in line.strip("|").split("|")]


def check(text, value):
    assert NUMBER.fullmatch(text), text
    assert abs(number(text) - value) <= places(text), (text, value)


@pytest.mark.parametrize("page", [STUDIES / "consistency" / "README.md", ROOT / "docs/quality.md"])
def test_answers_and_scores(page):
    files = {
        name: {row["case"]: row for row in rows("consistency", name) if row["metric"] == "accuracy"}
        for name in ("consistency", "reading")
    }
    checked = 0
    for heading, first, (name, *cells) in table_rows(page.read_text()):
        if first[0] not in ("% right", "KL, nats"):
            continue
        known = files["reading" if "read" in heading else "consistency"]
        scenario, arm = name.split(", ", 1)
        for column, text in zip(first[1:], cells, strict=True):
            case = known[f"{scenario}, {KINDS.get(column, 'single')}, {arm}"]
            field = "kl_nats" if first[0] == "KL, nats" else "value"
            check(text, case["computed" if column == "computed" else field])
            checked += 1
    assert checked > 80


def test_energy():
    known = {(row["case"], row["metric"]): row for row in rows("energy", "energy")}
    seen = set()
    for _, first, (name, *cells) in table_rows((STUDIES / "energy" / "README.md").read_text()):
        architecture, kind = name.split(", ", 1)
        case = f"{HEADS.get(architecture, architecture)}, {kind}"
        for column, text in zip(first[1:], cells, strict=True):
            if column == "requests":
                check(text, known[case, "energy per request"]["samples"])
            elif text:
                check(text, known[case, ENERGY[column]]["value"])
                seen.add((case, ENERGY[column]))
    assert seen == set(known)


def test_limits():
    known = {row["case"]: row for row in rows("limits", "limits")}
    seen = set()
    for _, first, (tokens, holes, *cells) in table_rows(
        (STUDIES / "limits" / "README.md").read_text()
    ):
        for share, text in zip(first[2:-1], cells[:-1], strict=True):
            if text:
                case = f"{number(tokens):.0f} tokens, {share} moved, {holes} holes"
                check(text, known[case]["value"])
                seen.add(case)
    assert seen == set(known)
