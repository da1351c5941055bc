"""`python -m memexp`."""

import sys

from memexp.cli import main

if __name__ == "__main__":
    sys.exit(main())
