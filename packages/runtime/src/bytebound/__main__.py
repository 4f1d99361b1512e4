"""``python -m bytebound``: the same as the command ``bytebound``."""

import sys

from bytebound.cli import main

if __name__ == "__main__":
    sys.exit(main())
