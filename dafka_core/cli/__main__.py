"""``python -m dafka_core.cli``: the same as ``dafka``, wherever the package can be imported."""

from __future__ import annotations

from dafka_core.cli import main

if __name__ == "__main__":
    main()
