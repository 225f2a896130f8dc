"""Models of the transformers library, run over a paged cache whose rows are reused at any position.

Knows the core, the attention operator and transformers; must not know other engines.
"""

from importlib.util import find_spec

from irminsul.errors import MissingExtra

if find_spec("transformers") is None or find_spec("torch") is None:
    raise MissingExtra("transformers and torch are needed: pip install 'irminsul-kv[transformers]'")

from irminsul.integrations.transformers.engine import PICEngine
from irminsul.integrations.transformers.results import Generation, PromptStats
from irminsul.integrations.transformers.sampling import Sampling
from irminsul.integrations.transformers.spans import Planner, RowPiece, Span

__all__ = [
    "Generation",
    "PICEngine",
    "Planner",
    "PromptStats",
    "RowPiece",
    "Sampling",
    "Span",
]
