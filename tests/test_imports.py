"""What `import irminsul` costs: neither torch nor an engine."""

import subprocess
import sys

SCRIPT = """
import sys
import irminsul
irminsul.record(list(range(100)), 1)
irminsul.lookup(list(range(100)))
heavy = {"torch", "sglang", "transformers", "triton"} & set(sys.modules)
print(sorted(heavy))
"""


def test_the_core_works_without_torch_or_an_engine() -> None:
    run = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=False
    )
    assert (run.returncode, run.stdout.strip()) == (0, "[]"), run.stderr


def test_every_exported_name_exists() -> None:
    import irminsul

    assert [name for name in irminsul.__all__ if not hasattr(irminsul, name)] == []
