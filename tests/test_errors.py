"""Error classes: one root, and the builtin kinds that callers catch."""

import inspect

import numpy as np
import pytest
from irminsul import _core, chunk, errors

KINDS = {
    "InvalidTokens": ValueError,
    "InvalidParams": ValueError,
    "UnknownNode": KeyError,
    "DuplicateNode": ValueError,
    "RegistryFull": RuntimeError,
    "NativeUnavailable": ImportError,
    "CudaError": RuntimeError,
    "HostMismatch": RuntimeError,
    "InternalError": RuntimeError,
    "Unsupported": RuntimeError,
}


@pytest.mark.parametrize("name", KINDS)
def test_each_error_is_an_irminsul_error_and_a_builtin_one(name: str) -> None:
    assert issubclass(getattr(errors, name), KINDS[name])
    assert issubclass(getattr(errors, name), errors.IrminsulError)


def test_every_error_class_is_exported() -> None:
    classes = {name for name, value in vars(errors).items() if inspect.isclass(value)}
    assert classes == set(errors.__all__)


def test_an_unknown_node_prints_its_message_without_quotes() -> None:
    assert str(errors.UnknownNode("no live node 5")) == "no live node 5"


def test_a_panic_of_the_core_is_an_exception_that_a_host_can_survive(
    capfd: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(errors.InternalError, match=r"the core failed \(lost a node\); .* a bug"):
        _core._panic("lost a node")
    assert "lost a node" in capfd.readouterr().err


@pytest.mark.parametrize("dtype", [np.uint32, np.uint16])
def test_more_tokens_than_memory_are_refused_and_do_not_end_the_process(dtype: type) -> None:
    tokens = np.broadcast_to(dtype(1), (1 << 44,))
    with pytest.raises(MemoryError, match=f"no memory for {1 << 44} tokens"):
        chunk(tokens)
