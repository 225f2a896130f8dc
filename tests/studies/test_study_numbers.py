"""No page quotes a measured number that no committed results file holds."""

import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
STUDIES = ROOT / "benches" / "studies"
PAGES = [*STUDIES.glob("*/README.md")]
NUMBER = re.compile(r"(?<![\w.,-])-?\d[\d,]*(?:\.\d+)?(?:e-?\d+)?(?![\w])")
# Code, links and references are no results.
NOISE = re.compile(r"```.*?```|`[^`]*`|\]\([^)]*\)|arXiv \d+\.\d+|\d+-token", re.DOTALL)


def results(folder):
    """All numbers of the results files below a folder, texts of settings and ranges included."""
    values = set()
    for path in folder.rglob("results/*.json"):
        for row in json.loads(path.read_text()).get("rows", []):
            for value in flat(row.values()):
                if isinstance(value, int | float) and not isinstance(value, bool):
                    values.add(float(value))
                elif isinstance(value, str):
                    values |= {number(found) for found in NUMBER.findall(value)}
    return values


def flat(values):
    for value in values:
        if isinstance(value, list):
            yield from flat(value)
        else:
            yield value


def number(text):
    return float(text.replace(",", ""))


def places(text):
    """How far a quoted number may be from the exact one: half its last place."""
    mantissa, _, exponent = text.replace(",", "").partition("e")
    decimals = len(mantissa.partition(".")[2])
    return 0.5 * 10.0 ** (-decimals + int(exponent or 0)) * (1 + 1e-9)


def unfounded(quoted, known):
    return [
        text
        for text in quoted
        if not any(abs(number(text) - value) <= places(text) for value in known)
    ]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.parent.name)
def test_study_results(page):
    before, _, result = page.read_text().partition("## Result")
    assert result, f"{page} has no section Result"
    named = {number(text) for text in NUMBER.findall(before)}
    quoted = NUMBER.findall(NOISE.sub(" ", result))
    assert unfounded(quoted, results(page.parent) | named) == []


def test_quality_page():
    """Only results of the studies that the page links to count."""
    text = (ROOT / "docs" / "quality.md").read_text()
    folders = {ROOT / found for found in re.findall(r"\]\(\.\./(benches/[\w/]+)\)", text)}
    assert folders
    known = set().union(*(results(folder) for folder in folders))
    assert unfounded(NUMBER.findall(NOISE.sub(" ", text)), known) == []


def test_the_check_can_fail():
    known = {0.932, 1.667e-3}
    assert unfounded(["0.932", "1.67e-3", "0.93"], known) == []
    assert unfounded(["0.94", "1.68e-3", "12"], known) == ["0.94", "1.68e-3", "12"]
