"""``make demo``: ``python -m demo`` with ``jobs`` on the path."""

from __future__ import annotations

import sys

from demo.demo import main

if __name__ == "__main__":
    sys.exit(main())
