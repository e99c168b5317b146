"""How long `delivery-plane --help` takes against importing the two libraries it is made with. Not a profile.

Ends with one JSON object; exits 1 when the ratio misses its goal.
"""

import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

RUNS = 7
GOAL = 3.0
"""At most this many times the libraries alone."""

COMMAND = [str(Path(sys.executable).parent / "delivery-plane"), "--help"]
LIBRARIES = [sys.executable, "-c", "import cyclopts, rich"]


def seconds(command: list[str]) -> float:
    """Wall time of one run. Raises CalledProcessError when it fails."""
    started = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True)
    return time.perf_counter() - started


def main() -> int:
    """Both commands in turn, so that a busy machine slows both alike; the first pair only fills caches."""
    pairs = [(seconds(COMMAND), seconds(LIBRARIES)) for _ in range(RUNS + 1)][1:]
    command = statistics.median(pair[0] for pair in pairs)
    libraries = statistics.median(pair[1] for pair in pairs)
    ratio = round(command / libraries, 2)
    print(f"delivery-plane --help: median {command:.3f} s; import cyclopts, rich: median {libraries:.3f} s")
    figures = {
        "bench": "startup",
        "help_seconds": round(command, 4),
        "libraries_seconds": round(libraries, 4),
        "runs": RUNS,
        "ratio": ratio,
        "goal": GOAL,
        "ok": ratio <= GOAL,
    }
    print(json.dumps(figures))
    return 0 if figures["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
