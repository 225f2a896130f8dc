"""A network namespace at the end of a link that can be stalled."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator

PAIR = ("irmtest-a", "irmtest-b")
NAMESPACE = "irmtest"
NEAR, FAR = "10.231.7.1", "10.231.7.2"
# Put before a command, it runs at the far end.
PREFIX = ("ip", "netns", "exec", NAMESPACE)


class NoLink(Exception):
    """The reason why none can be made here."""


@contextlib.contextmanager
def far_link() -> Iterator[None]:
    """Make the namespace and its link for as long as the block runs; `NoLink` where it cannot."""
    if os.geteuid() != 0 or not (shutil.which("ip") and shutil.which("tc")):
        raise NoLink("a network namespace needs root and the commands ip and tc (iproute2)")
    _remove()
    try:
        _run("ip", "netns", "add", NAMESPACE)
        _run("ip", "link", "add", PAIR[0], "type", "veth", "peer", "name", PAIR[1])
        _run("ip", "link", "set", PAIR[1], "netns", NAMESPACE)
        _run("ip", "addr", "add", f"{NEAR}/30", "dev", PAIR[0])
        _run("ip", "link", "set", PAIR[0], "up")
        _run(*PREFIX, "ip", "addr", "add", f"{FAR}/30", "dev", PAIR[1])
        _run(*PREFIX, "ip", "link", "set", PAIR[1], "up")
        _run(*PREFIX, "ip", "link", "set", "lo", "up")
    except subprocess.CalledProcessError as error:
        _remove()
        raise NoLink(f"no network namespace can be made here: {error.stderr.strip()}") from error
    try:
        yield
    finally:
        _remove()


def stall(stalled: bool) -> None:
    """Delay every packet by four seconds, or lose them all where the kernel has no netem."""
    try:
        if stalled:
            _run("tc", "qdisc", "replace", "dev", PAIR[0], "root", "netem", "delay", "4000ms")
        else:
            _run("tc", "qdisc", "del", "dev", PAIR[0], "root")
    except subprocess.CalledProcessError:
        state = "down" if stalled else "up"
        _run(*PREFIX, "ip", "link", "set", PAIR[1], state)


def _remove() -> None:
    with contextlib.suppress(subprocess.CalledProcessError):
        _run("ip", "netns", "del", NAMESPACE)


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True)
