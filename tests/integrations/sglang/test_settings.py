"""Environment and file -> settings, and every way to get them wrong."""

from __future__ import annotations

import dataclasses
import inspect
import json
import re
from pathlib import Path

import pytest
from irminsul import Policy
from irminsul.errors import InvalidParams
from irminsul.integrations.sglang import settings
from irminsul.integrations.sglang.settings import Settings


def test_defaults() -> None:
    assert settings.load({}) == Settings()


def test_variables_win_over_the_file(tmp_path: Path) -> None:
    file = tmp_path / "irminsul.json"
    file.write_text(json.dumps({"mode": "exact", "min_span": 48, "log_interval": 5}))
    loaded = settings.load({"IRMINSUL_CONFIG": str(file), "IRMINSUL_MIN_SPAN": "64"})
    assert (loaded.mode, loaded.min_span, loaded.log_interval) == ("exact", 64, 5.0)


@pytest.mark.parametrize(
    ("content", "named"),
    [
        ({"min_spam": 1}, "min_spam"),
        ({"mode": "fast"}, "fast"),
        ({"min_span": "48"}, "min_span"),
        ({"min_span": True}, "min_span"),
        ([], "object"),
    ],
)
def test_a_wrong_file_names_the_culprit(tmp_path: Path, content: object, named: str) -> None:
    file = tmp_path / "irminsul.json"
    file.write_text(json.dumps(content))
    with pytest.raises(InvalidParams, match=named):
        settings.load({"IRMINSUL_CONFIG": str(file)})


def test_an_unreadable_file(tmp_path: Path) -> None:
    with pytest.raises(InvalidParams, match="cannot be read"):
        settings.load({"IRMINSUL_CONFIG": str(tmp_path / "absent.json")})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("IRMINSUL_MIN_SPAN", "many"),
        ("IRMINSUL_MODE", "both"),
        ("IRMINSUL_ON_UNSUPPORTED", "ignore"),
        ("IRMINSUL_LOG_INTERVAL", "soon"),
    ],
)
def test_a_wrong_variable_names_itself(name: str, value: str) -> None:
    with pytest.raises(InvalidParams, match=f"{name}.*{value}"):
        settings.load({name: value})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("IRMINSUL_MAX_ROWS", "-1"),
        ("IRMINSUL_MIN_SPAN", "-2"),
        ("IRMINSUL_GATHER", "nan"),
        ("IRMINSUL_LOG_INTERVAL", "inf"),
        ("IRMINSUL_RELINK", "1.5"),
    ],
)
def test_a_number_out_of_range_is_refused(name: str, value: str) -> None:
    field = name.removeprefix("IRMINSUL_").lower()
    with pytest.raises(InvalidParams, match=rf"{field} is {value}"):
        settings.load({name: value})


def test_overrides_leave_the_library_its_defaults() -> None:
    assert settings.policy_overrides(Settings()) == {}
    assert settings.chunk_overrides(Settings()) == {}
    changed = dataclasses.replace(Settings(), sink_tokens=0, chunk_avg=256, windows=False)
    assert settings.policy_overrides(changed) == {"sink_tokens": 0, "windows": False}
    assert settings.chunk_overrides(changed) == {"avg": 256}


def test_every_policy_field_is_a_setting() -> None:
    wanted = set(inspect.signature(Policy).parameters)
    everything = dict.fromkeys(settings._POLICY, 1)
    given = dataclasses.replace(Settings(), **everything, windows=False)
    assert set(settings.policy_overrides(given)) == wanted
    Policy(**settings.policy_overrides(given))


def test_a_boolean_variable() -> None:
    assert settings.load({"IRMINSUL_WINDOWS": "0"}).windows is False
    assert settings.load({"IRMINSUL_WINDOWS": "yes"}).windows is True
    with pytest.raises(InvalidParams, match=r"IRMINSUL_WINDOWS.*perhaps"):
        settings.load({"IRMINSUL_WINDOWS": "perhaps"})


def test_a_misspelt_variable_is_told(caplog: pytest.LogCaptureFixture) -> None:
    settings.load({"IRMINSUL_MIN_SPAM": "48", "IRMINSUL_SERVICE_HOST": "10.0.0.1"})
    assert [record.getMessage() for record in caplog.records] == [
        "irminsul: IRMINSUL_MIN_SPAM is no setting and has no effect; is IRMINSUL_MIN_SPAN meant?"
    ]


def test_every_setting_is_documented_with_its_default() -> None:
    page = Path(__file__).parents[3].joinpath("docs", "sglang.md").read_text()
    rows = dict(re.findall(r"^\| `(IRMINSUL_\w+)` \| `?([^|`]+?)`? \|", page, re.MULTILINE))
    for field in dataclasses.fields(Settings):
        if not field.name.startswith("test_"):
            default = {True: "1", False: "0"}.get(field.default, str(field.default)) or "none"
            assert rows[f"IRMINSUL_{field.name.upper()}"] == default.removesuffix(".0")
