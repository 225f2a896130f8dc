"""The PEP 517 shim asks for the CUDA compiler's wheels when, and only when, they are wanted."""

import sys
from pathlib import Path

import pytest

maturin = pytest.importorskip("maturin")
CUDA = Path(__file__).resolve().parents[2] / "cuda"


@pytest.fixture
def backend(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(str(CUDA))
    import backend as shim

    monkeypatch.setattr(maturin, "get_requires_for_build_wheel", lambda settings: ["maturin"])
    monkeypatch.setattr(shim, "DRIVER", tmp_path / "version")
    yield shim
    for name in ("backend", "build"):
        sys.modules.pop(name, None)


def fetched(backend, mode=None):
    needs = backend.get_requires_for_build_wheel({"cuda": mode} if mode else None)
    assert needs[0] == "maturin"
    assert needs[1:] in ([], list(backend.cuda_build.TOOLCHAIN))
    return len(needs) > 1


def test_modes_say_whether_to_fetch(backend):
    backend.DRIVER.touch()
    assert fetched(backend, "wheels")
    assert not fetched(backend, "off")
    assert not fetched(backend, "require")


def test_a_driver_without_a_compiler_fetches_one(backend, monkeypatch):
    monkeypatch.setattr(backend.cuda_build, "find_toolchain", lambda: None)
    assert not fetched(backend)
    backend.DRIVER.touch()
    assert fetched(backend)


@pytest.mark.parametrize(
    ("version", "cutlass", "wanted"),
    [("13.0", Path("include"), False), ("12.8", Path("include"), True), ("13.0", None, True)],
)
def test_a_compiler_that_fits_is_used(backend, monkeypatch, version, cutlass, wanted):
    toolchain = backend.cuda_build.Toolchain(Path("nvcc"), Path("lib"), cutlass)
    monkeypatch.setattr(type(toolchain), "version", lambda self: version)
    monkeypatch.setattr(backend.cuda_build, "find_toolchain", lambda: toolchain)
    backend.DRIVER.touch()
    assert fetched(backend) is wanted


def test_unknown_modes_are_named(backend):
    with pytest.raises(SystemExit, match=r"cuda=yes: allowed are auto, wheels, require, off"):
        fetched(backend, "yes")
