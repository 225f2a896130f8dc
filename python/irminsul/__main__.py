"""`python -m irminsul` -> the command line.

Knows nothing beyond that.
"""

import sys

from irminsul.cli import main

if __name__ == "__main__":
    sys.exit(main())
