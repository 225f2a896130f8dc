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


needs_objdump = pytest.mark.skipif(
    shutil.which("objdump") is None, reason="objdump (binutils) is missing"
)
WHEELS = sorted((REPOSITORY / "dist").glob("irminsul_kv-*.whl"))


@pytest.fixture(scope="module", params=WHEELS or [None], ids=lambda path: path and path.name)
def wheel(request: pytest.FixtureRequest) -> zipfile.ZipFile:
    if request.param is None:
        pytest.skip("there is no wheel in dist/ (make wheel)")
    newest = max(path.stat().st_mtime for path in PACKAGE.rglob("*.py"))
    if request.param.stat().st_mtime < newest:
        pytest.skip(f"{request.param.name} is older than the sources (make wheel)")
    return zipfile.ZipFile(request.param)


def tags(wheel: zipfile.ZipFile) -> list[str]:
    """Python, ABI and platform."""
    return Path(str(wheel.filename)).stem.split("-")[-3:]


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


def test_tags_fit_the_module(wheel: zipfile.ZipFile, tmp_path: Path) -> None:
    (core,) = native_parts(wheel, tmp_path).keys() - {LIBRARY}
    python, abi, platform = tags(wheel)
    assert re.fullmatch(r"cp31[1-9]", python)
    if abi == "abi3":
        # One for all: no older Python than the package supports, and no newer one either.
        assert (python, Path(core).name) == ("cp311", "_core.abi3.so")
    else:
        assert abi.rstrip("t") == python
        assert Path(core).name == f"_core.{abi.replace('cp', 'cpython-')}-x86_64-linux-gnu.so"
    metadata = next(name for name in wheel.namelist() if name.endswith(".dist-info/WHEEL"))
    assert f"Tag: {python}-{abi}-{platform}" in wheel.read(metadata).decode()


@needs_objdump
def test_tag_is_no_older_than_any_native_part(wheel: zipfile.ZipFile, tmp_path: Path) -> None:
    found = re.fullmatch(r"manylinux_(\d+)_(\d+)_x86_64", tags(wheel)[2])
    assert found, "the wheel must say which glibc it needs"
    tag = tuple(int(part) for part in found.groups())
    for name, path in native_parts(wheel, tmp_path).items():
        assert elf.highest(path, "GLIBC") <= tag, name
        assert elf.run_paths(path) == [], name


@needs_objdump
def test_the_module_exports_its_entry_and_needs_the_c_library_only(
    wheel: zipfile.ZipFile, tmp_path: Path
) -> None:
    parts = native_parts(wheel, tmp_path)
    (core,) = parts.keys() - {LIBRARY}
    assert elf.exported(parts[core]) == {"PyInit__core"}
    allowed = {"libc.so.6", "libm.so.6", "libgcc_s.so.1", "ld-linux-x86-64.so.2"}
    assert elf.needed(parts[core]) <= allowed


def test_entry_points_and_licence(wheel: zipfile.ZipFile) -> None:
    info = next(name.split("/")[0] for name in wheel.namelist() if ".dist-info/" in name)
    entries = wheel.read(f"{info}/entry_points.txt").decode()
    assert "[sglang.srt.plugins]" in entries
    assert "irminsul=irminsul.cli:main" in entries.replace(" ", "")
    for licence in ("LICENSE", "THIRD_PARTY_NOTICES"):
        assert f"{info}/licenses/{licence}" in wheel.namelist()


def test_unpacked_wheel_works_without_torch(wheel: zipfile.ZipFile, tmp_path: Path) -> None:
    here = f"cp3{sys.version_info.minor}"
    if tags(wheel)[1] not in ("abi3", here):
        pytest.skip(f"this is {here}")
    wheel.extractall(tmp_path)
    code = (
        "import irminsul, irminsul.native as n; print(irminsul.__file__); "
        "print(n.library_path(), n.unavailable_reason()); "
        "print(len(irminsul.chunk(list(range(10_000)))) > 9, 'torch' in sys.modules)"
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
    package, library, works = run.stdout.splitlines()
    assert package.startswith(str(tmp_path))
    assert library == f"{tmp_path / LIBRARY} None"
    assert works == "True False"
