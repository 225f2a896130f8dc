"""`irminsul doctor` on installations that lack things, or have wrong ones."""

import importlib.metadata
import importlib.util
import json
import subprocess
import sys

import pytest
from irminsul import cli, doctor
from irminsul.integrations.sglang.compat import Row
from irminsul.native import loader


@pytest.fixture
def versions(monkeypatch):
    """Pretend that these distributions, and no others of the examined ones, are installed."""
    known = {}

    def version(name):
        if name in known:
            return known[name]
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(doctor.importlib.metadata, "version", version)
    return known


@pytest.fixture
def sglang_rows(monkeypatch):
    """Pretend that SGLang is importable and has these attributes."""
    rows = []
    real = importlib.util.find_spec
    found = {"sglang": object()}
    monkeypatch.setattr(doctor.importlib.util, "find_spec", lambda n: found.get(n) or real(n))
    monkeypatch.setattr(doctor.compat, "rows", lambda: rows)
    monkeypatch.setattr(doctor.compat, "optional_rows", list)
    return rows


def status_of(checks, name):
    return next(check.status for check in checks if check.name == name)


def test_ranges_come_from_the_package():
    ranges = doctor._supported_ranges()
    assert ranges["sglang"] == "<0.5.24,>=0.5.16" or ranges["sglang"] == ">=0.5.16,<0.5.24"
    assert ranges["numpy"].startswith(">=")


@pytest.mark.parametrize(
    ("found", "supported", "inside"),
    [
        ("0.5.16", ">=0.5.16,<0.5.24", True),
        ("0.5.23.post1", ">=0.5.16,<0.5.24", True),
        ("0.5.24", ">=0.5.16,<0.5.24", False),
        ("0.5.9", ">=0.5.16,<0.5.24", False),
        ("0.5.100", ">=0.5.16,<0.5.24", False),
        ("2.13.0+cu130", ">=2.9", True),
        ("2.9.0", ">=2.9", True),
        ("6.0", ">=5.12,<6", False),
        ("1.0", "", True),
    ],
)
def test_version_ranges(found, supported, inside):
    assert doctor._in_range(found, supported) is inside


def test_nothing_optional_installed_is_no_mismatch(versions, monkeypatch, capsys):
    versions["numpy"] = "2.0"
    monkeypatch.setattr(doctor.importlib.util, "find_spec", lambda name: None)
    assert cli.main(["doctor"]) == 0
    out = capsys.readouterr().out
    assert "absent    torch" in out
    assert "SGLang is not installed" in out


def test_a_version_out_of_range_is_a_mismatch(versions, monkeypatch):
    versions.update(numpy="2.0", sglang="0.5.24")
    monkeypatch.setattr(doctor.importlib.util, "find_spec", lambda name: None)
    assert status_of(list(doctor.examine()), "sglang") == "mismatch"
    assert cli.main(["doctor", "--json"]) == 1


def test_a_hook_that_is_gone_is_a_mismatch(versions, sglang_rows, capsys):
    versions.update(numpy="2.0", sglang="0.5.20")
    sglang_rows += [Row("managers.good", True, ""), Row("managers.gone", False, "was renamed")]
    assert cli.main(["doctor", "--json"]) == 1
    answer = json.loads(capsys.readouterr().out)
    found = {check["name"]: (check["status"], check["detail"]) for check in answer["checks"]}
    assert answer["ok"] is False
    assert found["managers.good"] == ("ok", "")
    assert found["managers.gone"] == ("mismatch", "was renamed")


def test_what_the_plugin_can_do_without_may_be_gone(versions, sglang_rows, monkeypatch):
    versions.update(numpy="2.0", sglang="0.5.20")
    optional = [Row("layers.gone", False, "does not import"), Row("layers.there", True, "")]
    monkeypatch.setattr(doctor.compat, "optional_rows", lambda: optional)
    checks = list(doctor.examine())
    assert status_of(checks, "layers.gone") == "absent"
    assert status_of(checks, "layers.there") == "ok"


def test_a_missing_entry_point_is_a_mismatch(versions, sglang_rows, monkeypatch):
    monkeypatch.setattr(doctor.importlib.metadata, "entry_points", lambda group: [])
    assert status_of(list(doctor.examine()), "entry point") == "mismatch"


@pytest.mark.parametrize(
    ("variables", "status"),
    [
        ({}, "absent"),
        ({"IRMINSUL_CUDA_LIB": "/no/such/library.so"}, "mismatch"),
        ({"IRMINSUL_CUDA_LIB": __file__}, "mismatch"),
        ({"IRMINSUL_CUDA_LIB": __file__, "IRMINSUL_DISABLE_CUDA": "1"}, "absent"),
    ],
)
def test_a_cuda_library_that_does_not_load_is_a_mismatch(monkeypatch, tmp_path, variables, status):
    monkeypatch.setattr(loader, "_PACKAGED", tmp_path / "none.so")
    monkeypatch.setattr(loader, "_outcome", None)
    for name in ("IRMINSUL_CUDA_LIB", "IRMINSUL_DISABLE_CUDA"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert doctor._cuda_library().status == status


def test_runs_without_torch_and_engine(tmp_path):
    # Only numpy and the package itself can be imported: everything else is hidden.
    hidden = ("torch", "sglang", "transformers", "tokenizers", "rich", "zstandard", "packaging")
    code = (
        "import sys\n"
        f"for name in {hidden!r}: sys.modules[name] = None\n"
        "import importlib.util as u; real = u.find_spec\n"
        f"u.find_spec = lambda n, *a: None if n in {hidden!r} else real(n, *a)\n"
        "from irminsul.cli import main; sys.exit(main(['doctor', '--json']))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
    answer = json.loads(result.stdout)
    found = {check["name"]: check["status"] for check in answer["checks"]}
    assert found["extension module"] == "ok"
    assert found["hooks"] == "absent"
