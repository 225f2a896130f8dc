"""The examples in the docstrings of the public API run and print what they say."""

import doctest
import inspect
from collections.abc import Iterator

import irminsul
import pytest
from irminsul import registry


def documented() -> Iterator[tuple[str, str]]:
    for name in sorted({*irminsul.__all__} - {"__version__"}):
        value = getattr(irminsul, name)
        yield name, value.__doc__ or ""
        if inspect.isclass(value):
            for member, function in vars(value).items():
                if not member.startswith("_") and callable(function):
                    yield f"{name}.{member}", function.__doc__ or ""


DOCUMENTED = dict(documented())


@pytest.mark.parametrize("name", DOCUMENTED)
def test_every_public_name_is_documented_and_its_examples_hold(name: str) -> None:
    text = DOCUMENTED[name]
    assert len(text) > 15
    example = doctest.DocTestParser().get_doctest(text, {}, name, None, None)
    results = doctest.DocTestRunner(verbose=False).run(example)
    assert results.failed == 0
    if name in registry.__all__:
        irminsul.default_registry().clear()
