"""What is in the wheel that `make wheel` has built."""

import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import elf
import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
PACKAGE = REPOSITORY / "python"
LIBRARY = "irminsul/_native/cu13/libirminsul_cuda.so"


@pytest.fixture(scope="module")
def wheel() -> zipfile.ZipFile:
    built = sorted((REPOSITORY / "dist").glob("irminsul_kv-*.whl"), key=lambda p: p.stat().st_mtime)
    if not built:
        pytest.skip("there is no wheel in dist/ (make wheel)")
    newest = max(path.stat().st_mtime for path in PACKAGE.rglob("*.py"))
    if built[-1].stat().st_mtime < newest:
        pytest.skip(f"{built[-1].name} is older than the sources (make wheel)")
    return zipfile.ZipFile(built[-1])


def native_parts(wheel: zipfile.ZipFile, folder: Path) -> dict[str, Path]:
    names = [name for name in wheel.namelist() if name.endswith(".so")]
    return {name: Path(wheel.extract(name, folder)) for name in names}


def test_holds_the_whole_package(wheel: zipfile.ZipFile) -> None:
    sources = {str(path.relative_to(PACKAGE)) for path in PACKAGE.rglob("*.py")}
    packed = {name for name in wheel.namelist() if name.endswith(".py")}
    assert packed == sources
    assert {"irminsul/py.typed", "irminsul/_core.pyi"} <= set(wheel.namelist())


def test_holds_both_native_parts_and_no_more(wheel: zipfile.ZipFile, tmp_path: Path) -> None:
    names = set(native_parts(wheel, tmp_path))
    assert LIBRARY in names
    (core,) = names - {LIBRARY}
    assert re.fullmatch(r"irminsul/_core\.(cpython-3\d+t?-x86_64-linux-gnu|abi3)\.so", core)


def test_tag_is_no_older_than_any_native_part(wheel: zipfile.ZipFile, tmp_path: Path) -> None:
    if shutil.which("objdump") is None:
        pytest.skip("objdump (binutils) is missing")
    found = re.search(r"manylinux_(\d+)_(\d+)_x86_64", Path(str(wheel.filename)).name)
    assert found, "the wheel must say which glibc it needs"
    tag = tuple(int(part) for part in found.groups())
    for name, path in native_parts(wheel, tmp_path).items():
        assert elf.highest(path, "GLIBC") <= tag, name
        assert elf.run_paths(path) == [], name


def test_entry_points_and_licence(wheel: zipfile.ZipFile) -> None:
    info = next(name.split("/")[0] for name in wheel.namelist() if ".dist-info/" in name)
    entries = wheel.read(f"{info}/entry_points.txt").decode()
    assert "[sglang.srt.plugins]" in entries
    assert "irminsul=irminsul.cli:main" in entries.replace(" ", "")
    for licence in ("LICENSE", "THIRD_PARTY_NOTICES"):
        assert f"{info}/licenses/{licence}" in wheel.namelist()


def test_unpacked_wheel_works(wheel: zipfile.ZipFile, tmp_path: Path) -> None:
    wheel.extractall(tmp_path)
    code = (
        "import irminsul, irminsul.native as n; print(irminsul.__file__); "
        "print(n.library_path(), n.unavailable_reason())"
    )
    run = subprocess.run(
        # Isolated: no PYTHONPATH, no working folder; the checkout must not stand in for the wheel.
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(tmp_path)!r}); {code}"],
        cwd=tmp_path,
        env={"PATH": "", "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        check=True,
    )
    package, library = run.stdout.splitlines()
    assert package.startswith(str(tmp_path))
    assert library == f"{tmp_path / LIBRARY} None"
