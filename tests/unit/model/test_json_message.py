"""JSON messages in threads."""

import subprocess
import sys

FIRST_CONVERSIONS = """\
import sys
import threading
from dafka_core.model.json_message import JsonMessage, Natural

sys.setswitchinterval(1e-6)
fields = [f"f{i}" for i in range(30)]
annotations = {"__annotations__": dict.fromkeys(fields, "Natural"), "__module__": __name__}
kinds = [type(JsonMessage)(f"Kind{i}", (JsonMessage,), dict(annotations)) for i in range(100)]
text = kinds[0](*range(30)).packed()
turn = threading.Barrier(8)

def parse():
    for kind in kinds:
        turn.wait()
        assert kind.parse(text).f29 == 29
    print("parsed")

threads = [threading.Thread(target=parse) for _ in range(8)]
for each in threads:
    each.start()
"""


def test_several_threads_are_the_first_to_parse_a_class() -> None:
    """Without its lock, msgspec 0.22 ends the process with a segmentation fault."""
    done = subprocess.run(
        [sys.executable, "-c", FIRST_CONVERSIONS], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout.count("parsed")) == (0, 8), done.stderr
