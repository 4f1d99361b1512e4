"""``python -m bytebound_evals``: the same as the command ``bytebound-evals``."""

import sys

from bytebound_evals.cli import main

if __name__ == "__main__":
    sys.exit(main())
