"""Skips what needs an H100 or H200 and the CUDA library, and says which of them is missing."""

import pytest


def missing() -> str | None:
    """Return why GPU tests cannot run here, or None when they can."""
    torch = pytest.importorskip("torch")
    from irminsul import native

    if not torch.cuda.is_available():
        return "no CUDA GPU"
    if (reason := native.unavailable_reason()) is not None:
        return reason
    if not native.supports_device(torch.cuda.current_device()):
        return f"no kernels for {torch.cuda.get_device_name()}: they are built for H100 and H200"
    return None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if marked and (reason := missing()) is not None:
        for item in marked:
            item.add_marker(pytest.mark.skip(reason=reason))
