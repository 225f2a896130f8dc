"""Text of a log -> the same text without what looks like a secret or a personal address.

Must not know where the text comes from. Errs on the side of masking.
"""

from __future__ import annotations

import re

__all__ = ["MASK", "mask_secrets"]

MASK = "[masked]"

_SECRETS = re.compile(
    r"""
      -----BEGIN[ A-Z]*PRIVATE[ ]KEY.*                  # key files, cut off or not
    | \b(?:sk|pk|rk)[-_][A-Za-z0-9_-]{8,}               # API keys by their usual beginnings
    | \b(?:gh[pousr]_|github_pat_|glpat-|xox[abprs]-|hf_|AKIA|ASIA|AIza|ya29\.)[A-Za-z0-9_./-]{8,}
    | \beyJ[A-Za-z0-9_-]{8,}(?:\.[A-Za-z0-9_-]*)*       # JSON web tokens
    | (?i:\b(?:bearer|basic)[ ]+[A-Za-z0-9._~+/=-]{8,})
    | (?i:\b[\w-]*(?:password|passwd|secret|token|api[_-]?key)["']?\s*[:=]\s*["']?)[^\s"',;]{4,}
    | [\w.+-]+@[\w-]+(?:\.[\w-]+)+                      # e-mail addresses
    | \b(?=[A-Za-z0-9+/_-]*\d)(?=[A-Za-z0-9+/_-]*[A-Za-z])[A-Za-z0-9+/_]{32,}=*
    """,
    re.VERBOSE | re.DOTALL,
)


def mask_secrets(text: str) -> str:
    """Replace what looks like a credential or an e-mail address by ``[masked]``.

    Examples
    --------
    >>> mask_secrets("curl -H 'Authorization: Bearer abcdef123456' as ann@example.org")
    "curl -H 'Authorization: [masked]' as [masked]"
    """
    return _SECRETS.sub(MASK, text)
