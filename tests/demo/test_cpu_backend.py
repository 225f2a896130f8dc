"""The demo's attention backend inside each SGLang version, beside the stock one."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from demo_hosts import each_version, environment

pytestmark = [pytest.mark.sglang, pytest.mark.slow, pytest.mark.timeout(600)]


@each_version
def test_error_is_no_larger_than_the_stock_backend_makes(version):
    result = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("backend_check.py"))],
        capture_output=True,
        env=environment(version),
        check=False,
        text=True,
    )
    assert result.returncode == 0, result.stderr
    found = json.loads(result.stdout.splitlines()[-1])
    assert found.keys() == {"prefill", "holes", "decode"}
    for case, (ours, stock) in found.items():
        assert ours <= 2 * stock + 1e-6, case
