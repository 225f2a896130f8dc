"""What the GPU refused to move -> no reuse until the next flush.

The GPU tells late: rows of an earlier batch were not written, so what was recorded of them is not
what it says. Must not know which batch that was.
"""

from __future__ import annotations

from irminsul import rotation
from irminsul.errors import IrminsulError
from irminsul.integrations.sglang.tree.mirror import TreeMirror


def heed(mirror: TreeMirror) -> None:
    """Stop reusing when the GPU has refused an earlier batch's slots or deltas; never waits."""
    try:
        rotation.check_relocations(wait=False)
    except IrminsulError as error:
        lose_rows(mirror, error)


def lose_rows(mirror: TreeMirror, error: IrminsulError) -> None:
    """Stop reusing until the next flush, because of `error`."""
    mirror.lose("relocation", f"{error}; reuse is off until the next flush")
