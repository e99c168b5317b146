"""BANKING77 for tests: where the real data lies on this machine, if it does, and a made-up set of the same form."""

import csv
import json
import os
from pathlib import Path

import pytest

FOLDERS = (os.environ.get("DELIVERY_PLANE_DATA"), Path(__file__).parents[2] / "shared" / "data")
DATA = next(
    (
        Path(folder).absolute()
        for folder in FOLDERS
        if folder and (Path(folder) / "banking77" / "train.csv").is_file()
    ),
    None,
)
needs_data = pytest.mark.skipif(
    DATA is None,
    reason="BANKING77 is not on this machine: set DELIVERY_PLANE_DATA to the folder that holds banking77/",
)

INTENTS = [f"intent_{number:02d}" for number in range(77)]


def made_up(root: Path, train_each: int = 20, test_each: int = 10) -> Path:
    """A set of the published form in `root`/banking77, so many messages of each intent; returns that folder."""
    folder = root / "banking77"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "categories.json").write_text(json.dumps(INTENTS))
    for name, each in (("train", train_each), ("test", test_each)):
        with (folder / f"{name}.csv").open("w", newline="") as file:
            rows = csv.writer(file)
            rows.writerow(["text", "category"])
            rows.writerows(
                [f"{name} message {n} of {intent}?", intent] for intent in INTENTS for n in range(each)
            )
    return folder
