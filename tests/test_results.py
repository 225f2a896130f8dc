"""Every committed result is in the one format, and its bars can be computed."""

import re
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "benches"))
import bars

FILES = dict(bars.results())


def row(value, bar, rival=None):
    return {"bar_id": "x.1", "case": "c", "metric": "m", "value": value, "bar": bar,
            "rival_value": rival}  # fmt: skip


@pytest.mark.parametrize("name", FILES)
def test_a_results_file_has_the_format(name):
    result = FILES[name]
    assert result["machine"]
    assert result["command"]
    assert result["rows"]
    for found in result["rows"]:
        assert not [key for key in bars.REQUIRED if key not in found], found
        assert re.fullmatch(r"[a-z]+(\.[a-z0-9-]+)?", found["bar_id"]), found["bar_id"]
        bars.holds(found)


@pytest.mark.parametrize(
    ("value", "bar", "rival", "verdict"),
    [
        (1.1, "<= 1.10", None, True),
        (1.11, "<= 1.10", None, False),
        (0, "== 0", None, True),
        (8.5, ">= 0.85 of the rival", 10, True),
        (8.4, ">= 0.85 of the rival", 10, False),
        (9, "< the rival", 10, True),
        (10, "< the rival", 10, False),
        (10, ">= the rival, within spread", 10, True),
        (2e-3, "<= 1.7e-3", None, False),
        (3, None, None, None),
        (3, "", None, None),
    ],
)
def test_bars_are_computed(value, bar, rival, verdict):
    assert bars.holds(row(value, bar, rival)) is verdict


@pytest.mark.parametrize(("bar", "said"), [("faster", "no comparison"), ("<= the rival", "rival_")])
def test_a_bar_that_cannot_be_computed_is_an_error(bar, said):
    with pytest.raises(ValueError, match=said):
        bars.holds(row(1, bar))
