"""The default tokenizer, loaded once for these tests."""

import pytest
from irminsul.tokenizer import load_tokenizer


@pytest.fixture(scope="session")
def encoder():
    return load_tokenizer()
