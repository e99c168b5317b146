"""The evaluator's process for the sealed set: it answers with counts and row ids, never with text.

Run as `python -m delivery_plane.compute.sealed PUBLIC SEALED NGRAM_WORDS`; prints a JSON list of row ids.
"""

import json
import subprocess
import sys
from pathlib import Path

from delivery_plane.errors import ComputeFault, Interrupted
from delivery_plane.rows import overlapping, read_rows


class SealedOverlap:
    """Finds overlap with a sealed file in a process of its own."""

    def __init__(self, sealed: Path) -> None:
        self._sealed = sealed

    def __call__(self, public: Path, ngram_words: int) -> tuple[str, ...]:
        """Ids of the public rows that overlap. Raises ComputeFault, or Interrupted when it was killed."""
        command = [sys.executable, "-m", __name__, str(public), str(self._sealed), str(ngram_words)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
        if done.returncode < 0:
            raise Interrupted(f"overlap search: the process was killed by signal {-done.returncode}")
        if done.returncode:
            raise ComputeFault(f"overlap search failed ({done.returncode}): {done.stderr.strip()[-300:]}")
        return tuple(json.loads(done.stdout))


if __name__ == "__main__":
    found = overlapping(read_rows(Path(sys.argv[1])), read_rows(Path(sys.argv[2])), int(sys.argv[3]))
    json.dump(found, sys.stdout)
