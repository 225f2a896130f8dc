"""Makes the studies' own modules importable."""

import sys
from pathlib import Path

STUDIES = Path(__file__).parents[2] / "benches" / "studies"

for folder in ("models", "consistency"):
    sys.path.insert(0, str(STUDIES / folder))
