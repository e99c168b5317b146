"""Records the histories that the replay test holds workflows to. Run by `make histories` when a workflow's order
of events was changed on purpose; the old files stay as long as deliveries of that release may be open."""

import asyncio
import json
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

from commands import Plane

from workflows.client import connect

HERE = Path(__file__).parent / "histories"
DELIVERIES = {
    "accepted": ("--seat", "reference"),
    "reopened": ("--seat", "reviser", "--on-flag", "observe"),
    "flag-refused": ("--fault", "label-shuffle", "--on-flag", "ask"),
    "violation": ("--seat", "transcriber"),
    "preflight-failed": ("--fault", "labels-all-masked-marker-miss"),
}


def scrubbed(value: Any) -> Any:
    """The same history without the names of the processes and the machine that made it."""
    if isinstance(value, dict):
        return {name: scrubbed(item) for name, item in value.items()}
    if isinstance(value, list):
        return [scrubbed(item) for item in value]
    return re.sub(r"\b\d+@[\w.-]+", "recorded", value) if isinstance(value, str) else value


async def fetch(address: str, delivery_id: str) -> dict[str, Any]:
    client = await connect(address)
    history = await client.get_workflow_handle(delivery_id).fetch_history()
    return history.to_json_dict()


def main(version: str) -> None:
    plane = Plane(Path(tempfile.mkdtemp(prefix="histories-")) / "home")
    with plane.up():
        for name, words in DELIVERIES.items():
            delivery_id = f"history-{name}"
            shown = plane.json(
                "deliver", "support-intents", *words, "--id", delivery_id, code=None, seconds=900
            )
            history = asyncio.run(fetch(plane.runtime()["address"], delivery_id))
            path = HERE / f"{version}-{name}.json"
            path.write_text(json.dumps(scrubbed(history), indent=1, sort_keys=True) + "\n")
            print(f"{path.name}: {shown['outcome']}, {len(history['events'])} events", flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
