"""How answers are decoded and judged right, for every model and on both sides of every comparison. No torch."""

from importlib.metadata import version
from pathlib import Path

from delivery_plane import __version__
from delivery_plane.compute.local.digests import file_digest
from delivery_plane.entry import canonical, sha256

BATCH = 50
SPARE_TOKENS = 4
"""New tokens allowed beyond the longest right answer: a longer answer is wrong however it goes on."""

RULES = {
    "strategy": "greedy",
    "until": "the end-of-turn token of the base's tokenizer",
    "max_new_tokens": f"longest right answer and its end of turn, plus {SPARE_TOKENS}",
    "batch": BATCH,
    "weights": "float32",
    "correct": "equal to the answer, surrounding whitespace aside",
}


def decoding_digest() -> str:
    """Digest of the rules above: equal for every evaluation that may be compared."""
    return sha256(canonical(RULES))


def code_version() -> str:
    """Changes whenever the code that scores, or a library under it, does."""
    here = Path(__file__).parent
    sources = {
        name: file_digest(here / name) for name in ("decoding.py", "evaluate.py", "models.py", "tokens.py")
    }
    libraries = {name: version(name) for name in ("torch", "transformers", "peft", "lm_eval", "tokenizers")}
    return sha256(canonical({"plane": __version__, "sources": sources, "libraries": libraries}))
