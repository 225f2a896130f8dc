"""The README's example prints what the README says it prints, and its links lead somewhere."""

import contextlib
import io
import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_example_prints_what_it_says():
    match = re.search(r"```python\n(.*?)```\n\n```\n(.*?)```", README, re.DOTALL)
    code, printed = match.groups()
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile(code, "README.md", "exec"), {})
    assert out.getvalue() == printed


def test_the_table_is_the_committed_result(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benches" / "demo")
    import readme

    head, _, rest = README.partition(readme.BEGIN)
    table, _, tail = rest.partition(readme.END)
    assert table == readme.render(json.loads(readme.RESULT.read_text()))
    assert head
    assert tail


@pytest.mark.parametrize("target", re.findall(r"\]\((?!https?:)([^)#]+)", README))
def test_links_lead_somewhere(target):
    assert (ROOT / target).exists()


@pytest.mark.parametrize("target", re.findall(r"\bmake ([a-z]+)", README))
def test_make_targets_exist(target):
    assert f"\n{target}:" in (ROOT / "Makefile").read_text(encoding="utf-8")
