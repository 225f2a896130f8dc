"""Results files hold what they were given, one row a line."""

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "benches"))
import results_file


def test_it_reads_back():
    head = {"machine": "some", "command": "python run.py"}
    rows = [{"case": "a, b", "value": 0.5, "bar": None}, {"case": "c", "value": 2, "bar": "<= 3"}]
    text = results_file.text(head, rows)
    assert json.loads(text) == {**head, "rows": rows}
    assert [json.loads(line.rstrip(",")) for line in text.splitlines()[4:6]] == rows
    assert results_file.filled(rows) == [{"case": "a, b", "value": 0.5}, rows[1]]
