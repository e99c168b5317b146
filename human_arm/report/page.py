"""`render_report`: a delivery's record as one self-contained HTML page. It reads no files of the delivery."""

from collections.abc import Sequence
from typing import Any

from delivery_plane.entry import Checkpoint, Entry, Verification
from human_arm.report import charts, text
from human_arm.report.content import Content, flattened


def render_report(
    entries: Sequence[Entry],
    checkpoints: Sequence[Checkpoint],
    verification: Verification,
    *,
    key_came_along: bool = False,
) -> str:
    """The page. The same record gives the same bytes with the same versions of the drawing libraries.

    `key_came_along`: the record was checked with a key that came with it, which proves nothing by itself.
    Raises ValueError when there is no entry that can be read.
    """
    content = Content(entries, checkpoints, verification)
    if not content.record.entries:
        raise ValueError("no readable entry")
    template = _environment().get_template("report.html.jinja")
    page: str = template.render(content=content, charts=_pictures(content), key_came_along=key_came_along)
    return page


def _pictures(content: Content) -> dict[str, Any]:
    """Each picture's markup by name; wide and narrow where one size would not be legible on both."""
    from markupsafe import Markup

    drawn: dict[str, Any] = {}
    label = f"Timeline of {content.delivery_id}; the table below holds the same times."
    for size, narrow in (("wide", False), ("narrow", True)):
        drawn[f"timeline-{size}"] = charts.picture(charts.timeline(content.spans, narrow=narrow), label)
        for job in content.jobs:
            if job.probes:
                said = f"Losses and right answers of {job.job_id} by step; the table below holds the same numbers."
                drawn[f"job:{job.job_id}-{size}"] = charts.picture(charts.curves(job, narrow=narrow), said)
    acceptance = content.record.acceptance()
    if acceptance:
        drawn["acceptance"] = charts.picture(
            charts.uplift(acceptance.value), "Uplift on the sealed set with its interval; numbers beside it."
        )
    if content.meters:
        drawn["meters"] = charts.picture(
            charts.meters(content.meters), "Use of each budget; the table beside it holds the same numbers."
        )
    return {name: Markup(svg) for name, svg in drawn.items()}


def _environment() -> Any:
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup

    def printed(value: Any) -> Any:
        """What every expression of the template passes through: nothing hides, nothing absent looks like zero."""
        if isinstance(value, Markup):
            return value
        if value is None:
            return "not recorded"
        return text.shown(str(value))

    made = Environment(
        loader=PackageLoader("human_arm.report", ""),
        autoescape=True,
        finalize=printed,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {
        "duration": text.duration,
        "flattened": flattened,
        "num": text.number,
        "share": text.share,
        "tone": text.tone,
        "when": text.when,
        "words": text.words,
    }
    return made
