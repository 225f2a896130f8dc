"""Error classes: one root, and the builtin kinds that callers catch."""

import inspect

import pytest
from irminsul import errors

KINDS = {
    "InvalidTokens": ValueError,
    "InvalidParams": ValueError,
    "UnknownNode": KeyError,
    "DuplicateNode": ValueError,
    "RegistryFull": RuntimeError,
    "NativeUnavailable": ImportError,
    "CudaError": RuntimeError,
    "HostMismatch": RuntimeError,
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
