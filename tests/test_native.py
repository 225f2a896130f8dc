"""The CUDA library's loader and C ABI, on any machine: nothing here needs a GPU."""

import ctypes
import os
import subprocess
import sys
from pathlib import Path

import pytest
from irminsul import native
from irminsul.errors import InvalidParams, NativeUnavailable
from irminsul.native import abi, loader

needs_library = pytest.mark.skipif(
    not loader.library_path().is_file(), reason="the CUDA library is not built (make cuda)"
)


def report(code: str, **environment: str) -> str:
    """Run code in a process of its own, since a process loads the library once."""
    run = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return run.stdout


REASON = "from irminsul import native; print(native.unavailable_reason())"


def test_missing_library_says_where_and_what_to_do() -> None:
    said = report(REASON, IRMINSUL_CUDA_LIB="/nowhere/lib.so")
    assert "/nowhere/lib.so" in said
    assert "IRMINSUL_CUDA_LIB" in said


def test_switched_off_library() -> None:
    assert "IRMINSUL_DISABLE_CUDA=1" in report(REASON, IRMINSUL_DISABLE_CUDA="1")


def test_file_that_is_no_library(tmp_path: Path) -> None:
    bad = tmp_path / "lib.so"
    bad.write_text("not an ELF file")
    assert "does not load" in report(REASON, IRMINSUL_CUDA_LIB=str(bad))


def test_library_of_somebody_else() -> None:
    import _ctypes

    said = report(REASON, IRMINSUL_CUDA_LIB=_ctypes.__file__)
    assert "has no entry irm_" in said


def test_unavailable_is_an_import_error_every_time() -> None:
    code = """
from irminsul import native
from irminsul.errors import NativeUnavailable
for _ in range(2):
    try:
        native.library()
    except ImportError as error:
        print(type(error).__name__, len(error.__traceback__.tb_frame.f_code.co_name))
print(native.is_available(), native.supports_device(0))
"""
    lines = report(code, IRMINSUL_DISABLE_CUDA="1").splitlines()
    assert lines[0] == lines[1]
    assert lines[0].startswith("NativeUnavailable")
    assert lines[2] == "False False"


def test_loading_needs_no_torch() -> None:
    code = "from irminsul import native; native.is_available(); import sys; print(*sys.modules)"
    assert "torch" not in report(code).split()


@needs_library
def test_handshake() -> None:
    handle = native.library()
    assert handle.irm_abi_version() == abi.ABI_VERSION
    for number, struct in abi.STRUCTS.items():
        assert handle.irm_struct_size(number) == ctypes.sizeof(struct)
    assert handle.irm_struct_size(-1) == 0
    assert handle.irm_struct_size(10_000) == 0
    assert native.build_info().startswith("CUDA 13.")


@needs_library
@pytest.mark.parametrize("field", ["size", "version"])
def test_other_version_of_a_struct_is_refused_before_it_is_read(field: str) -> None:
    handle = native.library()
    params = abi.RelocateParams()
    setattr(params, field, 7)
    status = handle.irm_relocate_rows(ctypes.byref(params))
    assert status == abi.Status.ERROR_ABI
    with pytest.raises(NativeUnavailable, match=r"relocate_rows: the caller uses version .*7"):
        abi.check(handle, status, "relocate_rows")


def test_mirror_of_another_build_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    if not native.is_available():
        pytest.skip("the CUDA library is not built (make cuda)")
    handle = native.library()
    monkeypatch.setattr(abi, "ABI_VERSION", abi.ABI_VERSION + 1)
    with pytest.raises(NativeUnavailable, match="ABI version"):
        abi.bind(handle)
    monkeypatch.undo()

    class Longer(ctypes.Structure):
        _fields_ = [*abi.RelocateParams._fields_, ("more", ctypes.c_int64)]

    monkeypatch.setitem(abi.STRUCTS, 0, Longer)
    with pytest.raises(NativeUnavailable, match="Longer"):
        abi.bind(handle)


def relocate_params(**changes: object) -> abi.RelocateParams:
    """Parameters that the host's checks accept; no address in them is ever read here."""
    layers = 2
    fields: dict[str, object] = {
        "layer_addresses": (ctypes.c_uint64 * layers)(0x1000, 0x2000),
        "layer_strides": (ctypes.c_int64 * layers)(1152, 1152),
        "source_slots": 0x3000,
        "target_slots": 0x4000,
        "deltas": 0x5000,
        "cos_sin": 0x6000,
        "num_rows": 4,
        "num_slots": 100,
        "num_positions": 64,
        "workspace": 0x7000,
        "workspace_bytes": native.library().irm_relocate_workspace_bytes(100),
        "report": 0x8000,
        "num_layers": layers,
        "interleaved": 1,
        "delta_bytes": 8,
    }
    return abi.RelocateParams(**(fields | changes))


@needs_library
@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"num_layers": 0}, "num_layers is 0"),
        ({"num_rows": -1}, "num_rows is -1"),
        ({"num_rows": 2**31}, "num_rows is 2147483648"),
        ({"num_slots": 0}, "num_slots is 0"),
        ({"num_slots": 2**32}, "num_slots is 4294967296"),
        ({"num_positions": 0}, "num_positions is 0"),
        ({"row_format": 2}, "row_format is 2"),
        ({"delta_bytes": 2}, "delta_bytes is 2"),
        ({"source_slots": 0}, "null"),
        ({"cos_sin": 0x6004}, "16-byte aligned"),
        ({"workspace": 0x7008}, "16-byte aligned"),
        ({"workspace_bytes": 8}, "workspace_bytes is 8"),
        ({"layer_strides": (ctypes.c_int64 * 2)(1152, 1150)}, "layer 1: a stride of 1150"),
        ({"layer_strides": (ctypes.c_int64 * 2)(1153, 1152)}, "layer 0: a stride of 1153"),
        ({"layer_addresses": (ctypes.c_uint64 * 2)(0x1000, 0)}, "layer 1"),
        ({"layer_addresses": (ctypes.c_uint64 * 2)(0x1001, 0x2000)}, "layer 0"),
    ],
)
def test_bad_parameters_are_named(changes: dict[str, object], text: str) -> None:
    handle = native.library()
    status = handle.irm_relocate_rows(ctypes.byref(relocate_params(**changes)))
    with pytest.raises(InvalidParams, match=text):
        abi.check(handle, status, "relocate_rows")


def spans_params(*runs: tuple[int, ...]) -> abi.SpansParams:
    """Parameters of three computed and two moved tokens; no address in them is ever read here."""
    table = (abi.SpanRun * len(runs))(*[abi.SpanRun(*run) for run in runs])
    address = ctypes.cast(table, ctypes.c_void_p)
    params = abi.SpansParams(
        runs=address, numbers=0x1000, num_computed=3, num_moved=2, num_runs=len(runs)
    )
    params.keep = table
    return params


@needs_library
@pytest.mark.parametrize(
    ("run", "text"),
    [
        ((0, 0, 0, 3, 0), "run 1: slots are not 8-byte aligned"),
        ((0x2004, 0, 0, 3, 0), "run 1: slots are not 8-byte aligned"),
        ((0x2000, 0x3001, 0, 2, 0), "run 1: slots are not 8-byte aligned"),
        ((0x2000, 0, 0, 0, 0), "tokens 0 . 0 are not within 3"),
        ((0x2000, 0, 1, 3, 0), "tokens 1 . 3 are not within 3"),
        ((0x2000, 0x3000, 1, 2, 0), "tokens 1 . 2 are not within 2"),
        ((0x2000, 0x3000, -1, 2, 0), "tokens -1 . 2 are not within 2"),
        ((0x2000, 0, 2**62, 2**62, 0), "are not within 3"),
    ],
)
def test_bad_runs_are_named(run: tuple[int, ...], text: str) -> None:
    handle = native.library()
    status = handle.irm_write_spans(ctypes.byref(spans_params((0x2000, 0, 0, 3, 0), run)))
    with pytest.raises(InvalidParams, match=text):
        abi.check(handle, status, "write_spans")


@needs_library
def test_no_runs_need_no_device() -> None:
    assert native.library().irm_write_spans(ctypes.byref(spans_params())) == abi.Status.OK


@needs_library
def test_null_parameters() -> None:
    handle = native.library()
    assert handle.irm_relocate_rows(None) == abi.Status.ERROR_ARGUMENT
    assert handle.irm_last_error() == b"params is null"


@needs_library
def test_no_rows_need_no_device() -> None:
    params = relocate_params(num_rows=0)
    assert native.library().irm_relocate_rows(ctypes.byref(params)) == abi.Status.OK


NO_GPU = """
import ctypes, sys
sys.path.insert(0, {folder!r})
from test_native import relocate_params
from irminsul import native
from irminsul.native import abi
handle = native.library()
status = handle.irm_relocate_rows(ctypes.byref(relocate_params()))
print(status, handle.irm_last_error().decode(), native.supports_device(0))
"""


@needs_library
def test_without_a_gpu_the_runtime_s_own_words_come_back() -> None:
    code = NO_GPU.format(folder=str(Path(__file__).parent))
    status, words = report(code, CUDA_VISIBLE_DEVICES="").split(maxsplit=1)
    assert int(status) == abi.Status.ERROR_CUDA
    assert "cuda" in words.lower()
    assert words.strip().endswith("False")


@needs_library
def test_errors_belong_to_their_thread() -> None:
    import threading

    handle = native.library()
    handle.irm_relocate_rows(None)
    other: list[bytes] = []
    thread = threading.Thread(target=lambda: other.append(handle.irm_last_error()))
    thread.start()
    thread.join()
    assert other == [b""]
    assert handle.irm_last_error() == b"params is null"
