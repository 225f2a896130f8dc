"""What `import irminsul` costs: neither torch nor an engine."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import sys
from pathlib import Path

import pytest
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


FORK = """
import os
import numpy  # may start threads of its own
before = len(os.listdir("/proc/self/task"))
import irminsul
assert len(os.listdir("/proc/self/task")) == before, "importing starts no thread"
registry = irminsul.Registry(1 << 20)
registry.record(list(range(5000)), 1, namespace=irminsul.Namespace())
child = os.fork()
plan = registry.lookup([7, *range(5000)], namespace=irminsul.Namespace())
assert plan.reused_tokens > 4900
registry.record(list(range(100, 900)), os.getpid(), namespace=irminsul.Namespace())
if child:
    assert os.waitpid(child, 0)[1] == 0
    assert child not in registry
"""


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs /proc")
def test_importing_starts_no_thread_and_a_forked_child_works_on_its_own_copy() -> None:
    run = subprocess.run([sys.executable, "-c", FORK], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr


def test_without_the_extension_module_the_command_line_says_so_in_a_sentence(
    tmp_path: Path,
) -> None:
    sources = Path(__file__).parents[1] / "python" / "irminsul"
    without = shutil.ignore_patterns("_core*.so", "_native", "__pycache__")
    shutil.copytree(sources, tmp_path / "irminsul", ignore=without)
    # The editable installation finds its module through a hook that only `-S` leaves out; with it
    # goes numpy, which nothing gets as far as to ask for.
    run = subprocess.run(
        [sys.executable, "-S", "-c", "from irminsul.cli import main; raise SystemExit(main())"],
        env={"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 1
    (line,) = run.stderr.splitlines()
    assert line.startswith("irminsul: the extension module irminsul._core does not load (")
    assert "make build" in line
