"""A hooked call of SGLang's adder -> its answer, whatever goes wrong on irminsul's side.

Must not know budgets, spans or locks: only whether SGLang's own function has run.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from irminsul.integrations.sglang.admission.adder import Admission

Call = Callable[..., Any]


class _Watched:
    """SGLang's function, and what has become of it."""

    def __init__(self, original: Call) -> None:
        self._original = original
        self.returned = False
        self.failed = False
        self.result: Any = None

    def __call__(self, *args: Any, **kw: Any) -> Any:
        self.failed = True
        self.result = self._original(*args, **kw)
        self.failed, self.returned = False, True
        return self.result


def answered(
    admission: Admission,
    step: Call,
    original: Call,
    adder: Any,
    request: Any,
    *rest: Any,
    **kw: Any,
) -> Any:
    """Return what `step` makes of SGLang's `original`, or what that says alone.

    Raises
    ------
    Exception
        What SGLang itself raised. With several ranks also what irminsul did: the others have gone
        on, and would wait for this one for ever.
    """
    watched = _Watched(original)
    try:
        return step(watched, adder, request, *rest, **kw)
    except Exception:
        if watched.failed or not admission.give_up():
            raise
    return watched.result if watched.returned else original(adder, request, *rest, **kw)
