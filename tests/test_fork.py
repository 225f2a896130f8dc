"""A process that forks while its threads change a registry -> a child whose registry works.

Knows nothing of how changes are held off; the child would wait forever for one that its parent's
thread had begun.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

PARENT = """
import os, signal, threading, time
import irminsul

namespace = irminsul.Namespace(model="fork")
registry = irminsul.Registry(1 << 20)
# Long enough for the interpreter lock to be released meanwhile.
text = [(i * 2654435761) % 100003 for i in range(30_000)]
done = threading.Event()

def change(first):
    while not done.is_set():
        registry.add(first, None, text, namespace=namespace)
        registry.split(first, 1000, first + 1)
        registry.discard(first)
        registry.discard(first + 1)

threads = [threading.Thread(target=change, args=(100 * i,)) for i in range(1, 4)]
for thread in threads:
    thread.start()
try:
    for child in range(40):
        pid = os.fork()
        if pid == 0:
            signal.alarm(10)
            registry.add(7, None, text, namespace=namespace)
            found = registry.lookup([1, 2, 3, *text], namespace=namespace)
            os._exit(0 if found.reused_tokens > 29_000 else 1)
        _, status = os.waitpid(pid, 0)
        assert status == 0, f"child {child}: status {status}"
        time.sleep(0.001)
finally:
    done.set()
for thread in threads:
    thread.join()
print("changed and forked")
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_child_can_change_what_its_parents_threads_were_changing() -> None:
    # From Python 3.12 on a warning says that forking beside threads is unsafe, as it is in general.
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", PARENT]
    run = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (run.returncode, run.stdout) == (0, "changed and forked\n"), run.stderr
