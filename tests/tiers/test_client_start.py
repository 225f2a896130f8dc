"""A host that has no process to spare for the store's client is a store that is away."""

from __future__ import annotations

import errno
import logging
import os
from typing import Any

import pytest
from irminsul.tiers.mooncake import process
from irminsul.tiers.mooncake.settings import MooncakeSettings


@pytest.mark.parametrize("number", [errno.ENOMEM, errno.EMFILE, errno.EAGAIN])
def test_a_client_that_cannot_be_started_is_tried_again_later(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, number: int
) -> None:
    def refuse(*_: Any, **__: Any) -> Any:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(process, "answers", lambda address, timeout: True)
    monkeypatch.setattr(process.subprocess, "Popen", refuse)
    open_before = len(os.listdir("/proc/self/fd"))
    with caplog.at_level(logging.WARNING):
        settings = MooncakeSettings(master="127.0.0.1:9")
        assert process.ClientProcess.start(settings, 0, lambda: False) is None
    assert os.strerror(number) in caplog.text
    assert len(os.listdir("/proc/self/fd")) == open_before
