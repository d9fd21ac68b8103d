"""``python -m dafka_core.cli``: ``dafka`` without its installed script."""

from __future__ import annotations

from dafka_core.cli import main

if __name__ == "__main__":
    main()
