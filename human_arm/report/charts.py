"""The report's pictures as static SVG: data in, markup out. They hold no fonts, scripts, links or numbers of their own.

Colours are the page's CSS variables, so one picture serves light, dark and print.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal
from xml.etree import ElementTree

from human_arm.report.moments import Span
from human_arm.report.text import duration, share, shown, tone

if TYPE_CHECKING:
    import altair as alt

    from delivery_plane.facts import ProbeObserved
    from delivery_plane.verdicts import Acceptance
    from human_arm.report.content import Job, Meter

_SVG = "http://www.w3.org/2000/svg"

_ELEMENTS = {"svg", "g", "path", "rect", "line", "text", "tspan"}
_ATTRIBUTES = {
    *("d", "x", "y", "x1", "x2", "y1", "y2", "dx", "dy", "width", "height", "transform", "viewBox"),
    *(
        "fill",
        "fill-opacity",
        "stroke",
        "stroke-width",
        "stroke-opacity",
        "stroke-dasharray",
        "stroke-linecap",
    ),
    *("stroke-miterlimit", "opacity", "text-anchor", "font-family", "font-size", "font-weight"),
}

_TONE_COLOURS = {
    "good": "var(--good)",
    "bad": "var(--bad)",
    "warn": "var(--warn)",
    "active": "var(--accent)",
    "muted": "var(--muted)",
}


_STYLE: dict[str, Any] = {
    "font": "Arial",
    "background": "transparent",
    "padding": {"left": 2, "right": 14, "top": 4, "bottom": 4},
    "view": {"stroke": None},
    "axis": {
        "labelColor": "var(--fg)",
        "titleColor": "var(--muted)",
        "gridColor": "var(--line)",
        "domainColor": "var(--line)",
        "tickColor": "var(--line)",
        "labelFontSize": 12,
        "titleFontSize": 12,
        "titleFontWeight": "normal",
    },
    "legend": {
        "labelColor": "var(--fg)",
        "labelFontSize": 12,
        "labelLimit": 0,
        "symbolType": "stroke",
        "symbolSize": 500,
        "symbolStrokeWidth": 2,
        "columnPadding": 24,
    },
    "title": {"color": "var(--fg)", "fontSize": 13, "fontWeight": "bold", "anchor": "start"},
    "text": {"fontSize": 12, "color": "var(--fg)"},
}


@dataclass(frozen=True)
class Drawing:
    """A chart and the rows it names. Apart, since altair copies and checks at every step whatever a chart holds."""

    chart: "alt.TopLevelMixin"
    rows: dict[str, list[dict[str, Any]]]

    def spec(self, *, checked: bool = False) -> dict[str, Any]:
        """The Vega-Lite document; `checked` against its schema, which takes as long as all the rest."""
        document: dict[str, Any] = self.chart.to_dict(validate=checked)
        return {**document, "config": _STYLE, "datasets": _legible(self.rows)}


def _legible(value: Any) -> Any:
    """The same with every text fit to be shown. The renderer ends the whole process at a control character."""
    if isinstance(value, str):
        return shown(value)
    if isinstance(value, dict):
        return {name: _legible(inner) for name, inner in value.items()}
    return [_legible(inner) for inner in value] if isinstance(value, list) else value


def picture(drawing: Drawing, label: str) -> str:
    """A drawing as an `<svg role="img">` that scales down with the page; `label` says it to those who cannot see it."""
    import vl_convert

    svg = ElementTree.fromstring(vl_convert.vegalite_to_svg(drawing.spec()))
    _strip(svg)
    width = svg.attrib.pop("width")
    del svg.attrib["height"]
    svg.attrib |= {"role": "img", "aria-label": shown(label), "style": f"max-width:{width}px"}
    ElementTree.register_namespace("", _SVG)
    return ElementTree.tostring(svg, encoding="unicode")


def _strip(element: ElementTree.Element) -> None:
    """Leave nothing but drawn shapes and text, whatever the renderer or a label put there."""
    for child in list(element):
        name = child.tag.removeprefix(f"{{{_SVG}}}")
        if name not in _ELEMENTS or child.get("display") == "none" or child.get("class") == "background":
            element.remove(child)
            continue
        _strip(child)
        if name == "g" and not len(child):
            element.remove(child)
    for name in set(element.attrib) - _ATTRIBUTES:
        del element.attrib[name]


def timeline(spans: Sequence[Span], *, narrow: bool) -> Drawing:
    """Stage visits on the clock of work, gates as diamonds on it, how long and how it ended at the right."""
    import altair as alt

    width = 110 if narrow else 620
    end = max((span.end for span in spans if span.end is not None), default=0.0)
    unit, size = ("seconds", 1) if end < 600 else ("minutes", 60) if end < 4 * 3600 else ("hours", 3600)
    rows = [
        {
            "label": span.label,
            "kind": span.kind if span.start is not None else "none",
            "start": (span.start or 0) / size,
            "end": (span.end or 0) / size,
            "colour": _TONE_COLOURS[tone(span.status)],
            "note": span.status
            if span.seconds is None
            else f"{span.status}, {duration(span.seconds)}",
        }
        for span in spans
    ]  # fmt: skip
    order = [shown(span.label) for span in spans]
    base = alt.Chart(alt.NamedData(name="spans")).encode(
        y=alt.Y("label:N", sort=order, title=None).axis(ticks=False, domain=False, labelLimit=130, grid=False),
        x=alt.X("start:Q", title=unit if narrow else f"{unit} of work since the opening, waits at gates left out")
        .scale(domain=[0, (end or 1) / size], nice=False)
        .axis(tickCount=3 if narrow else 8),
        color=alt.Color("colour:N", scale=None, legend=None),
    )  # fmt: skip
    works = alt.FieldOneOfPredicate(field="kind", oneOf=["stage", "test"])
    bars = base.transform_filter(works).mark_bar(height=13, cornerRadius=2).encode(x2="end:Q")
    # What took no time at this scale is still seen.
    starts = base.transform_filter(works).mark_tick(thickness=3, height=13, opacity=1)
    gates = base.transform_filter(alt.FieldEqualPredicate(field="kind", equal="gate")).mark_point(
        shape="diamond", filled=True, size=110, opacity=1
    )
    notes = base.mark_text(align="left", baseline="middle").encode(
        x=alt.value(width + 12), text="note:N", color=alt.value("var(--fg)")
    )
    chart = alt.layer(bars, starts, gates, notes).properties(width=width, height=alt.Step(23))
    return Drawing(chart, {"spans": rows})


def curves(job: "Job", *, narrow: bool) -> Drawing:
    """Losses above, held-out items right below, on one axis of steps; flags and resumes as labelled lines."""
    import altair as alt

    probes = [cited.value for cited in job.probes]
    loss = list(_losses(probes))
    right = list(_right(probes)) + list(_promised(job))
    positive = all(row["y"] > 0 for row in loss)
    scale = (
        alt.Scale(type="log", nice=False, padding=4) if positive else alt.Scale(zero=True, nice=True)
    )  # fmt: skip
    items = max((probe.probe_items for probe in probes), default=1)
    upper = alt.Y("y:Q", scale=scale, title=None).axis(
        values=_log_ticks([row["y"] for row in loss]) if positive else alt.Undefined, format="~g"
    )
    lower = alt.Y("y:Q", scale=alt.Scale(domain=[0, items], nice=False), title=None).axis(tickCount=5)
    n = probes[0].probe_items if probes else 0
    scaled = ", logarithmic" if positive else ""
    panels = [
        _panel(
            "loss", loss, job, upper, f"loss, nats per supervised token{scaled}", narrow=narrow, last=False
        ),
        _panel("right", right, job, lower, f"right answers on {n} held-out items", narrow=narrow, last=True),
    ]
    chart = alt.vconcat(*panels, spacing=14).resolve_scale(color="independent", strokeDash="independent")
    return Drawing(chart, {"loss": loss, "right": right, "marks": list(_marks(job))})


_LINES = {
    "training": ("var(--second)", [5, 3]),
    "held out, model": ("var(--accent)", [1, 0]),
    "model": ("var(--accent)", [1, 0]),
    "held out, base": ("var(--muted)", [2, 3]),
    "base": ("var(--muted)", [2, 3]),
    "base plus contract margin": ("var(--note)", [10, 4]),
}
"""Colour and dash of each curve: either alone tells them apart."""


def _losses(probes: Sequence["ProbeObserved"]) -> Iterator[dict[str, Any]]:
    for probe in probes:
        values = {
            "training": probe.train_loss,
            "held out, model": probe.probe_loss,
            "held out, base": probe.base_probe_loss,
        }
        yield from ({"x": probe.step, "y": y, "series": name} for name, y in values.items() if y is not None)


def _right(probes: Sequence["ProbeObserved"]) -> Iterator[dict[str, Any]]:
    for probe in probes:
        yield {"x": probe.step, "y": probe.probe_correct, "series": "model"}
        yield {"x": probe.step, "y": probe.base_correct, "series": "base"}


def _promised(job: "Job") -> Iterator[dict[str, Any]]:
    """Over the whole run: how many items the model must get right to be what the contract says."""
    if job.margin is not None and job.probes:
        last = job.probes[-1].value
        promised = last.base_correct + job.margin * last.probe_items
        yield from (
            {"x": step, "y": promised, "series": "base plus contract margin"} for step in (0, job.steps)
        )


_SIDES: tuple[tuple[str, Literal["left", "right"], int], ...] = (("right", "left", -1), ("left", "right", 1))
"""Where a label stands of its line, how it is aligned then, and how far it is moved."""


def _panel(
    data: str, rows: list[dict[str, Any]], job: "Job", y: "alt.Y", title: str, *, narrow: bool, last: bool
) -> "alt.LayerChart | alt.FacetChart":
    import altair as alt

    names = [name for name in _LINES if any(row["series"] == name for row in rows)]
    legend = alt.Legend(orient="bottom", title=None, columns=1 if narrow else 3, offset=6)
    x = (
        alt.X("x:Q", title="training step" if last else None)
        .scale(domain=[0, job.steps], nice=False)
        .axis(tickCount=4 if narrow else 8, labels=last, ticks=last)
    )
    curve = alt.Chart(alt.NamedData(name=data)).encode(
        x=x,
        y=y,
        color=alt.Color("series:N", sort=names, legend=legend)
        .scale(domain=names, range=[_LINES[name][0] for name in names]),
        strokeDash=alt.StrokeDash("series:N", sort=names, legend=legend)
        .scale(domain=names, range=[_LINES[name][1] for name in names]),
    )  # fmt: skip
    # Colour as a value: the legend is the lines' alone.
    dots = (
        alt.Chart(alt.NamedData(name=data))
        .transform_filter(alt.FieldOneOfPredicate(field="series", oneOf=["model", "held out, model"]))
        .mark_point(filled=True, size=24, opacity=1, color="var(--accent)")
        .encode(x=x, y=y)
    )
    marks = alt.Chart(alt.NamedData(name="marks")).encode(
        x=x, color=alt.Color("colour:N", scale=None, legend=None)
    )
    rules = marks.mark_rule(strokeWidth=2)
    texts = [
        marks.transform_filter(alt.FieldEqualPredicate(field="side", equal=side))
        .mark_text(align=align, dx=dx, baseline="bottom", fontWeight="bold")
        .encode(y=alt.value(-3), text="label:N")
        for side, align, dx in _SIDES
    ]
    layers = [curve.mark_line(strokeWidth=2), dots, rules, *texts]
    return alt.layer(*layers).properties(
        width=290 if narrow else 840,
        height=150,
        title=alt.Title(title, offset=18 if job.marks else 6, anchor="start", frame="group"),
    )


def _marks(job: "Job") -> Iterator[dict[str, Any]]:
    for mark in job.marks:
        yield {
            "x": mark.step,
            "label": mark.label,
            "colour": "var(--bad)" if mark.kind == "flag" else "var(--muted)",
            "side": "right" if mark.step * 2 < job.steps else "left",
        }


def _log_ticks(values: Sequence[float]) -> list[float]:
    low, high = min(values, default=1.0), max(values, default=1.0)
    ticks = [
        round(digit * 10.0**power, 12)
        for power in range(-9, 6)
        for digit in (1, 2, 5)
        if low <= digit * 10.0**power <= high
    ]
    return ticks or [low]


def uplift(test: "Acceptance") -> Drawing:
    """The measured uplift with its interval, against no uplift and the contract's margin."""
    import altair as alt

    low, high = test.uplift_interval
    ends = [min(low, 0.0), max(high, test.margin, 0.0)]
    room = 0.06 * (ends[1] - ends[0])
    domain = [max(-1.0, ends[0] - room), min(1.0, ends[1] + room)]
    middle = (domain[0] + domain[1]) / 2
    reached = "var(--good)" if test.decision == "accept" else "var(--bad)"
    row: dict[str, Any] = {
        "uplift": test.uplift,
        "low": low,
        "high": high,
        "said": f"{test.uplift:.3f} ({low:.3f} to {high:.3f})",
        "margin": test.margin,
        "promised": f"contract margin {test.margin:.3g}",
        "zero": 0,
    }
    base = alt.Chart(alt.NamedData(name="test"))
    title = f"uplift over the base, as a share of {test.items} sealed items (0: no better)"
    x = alt.X("uplift:Q", title=title).scale(domain=domain, nice=False).axis(tickCount=6)

    def text(field: str, at: str, y: int, colour: str) -> "alt.Chart":
        align: Literal["left", "right"] = "right" if row[at] > middle else "left"
        mark = base.mark_text(align=align, baseline="middle", color=colour, fontWeight="bold")
        written: alt.Chart = mark.encode(x=alt.X(f"{at}:Q"), y=alt.value(y), text=f"{field}:N")
        return written

    layers = [
        base.mark_rule(color="var(--fg)").encode(x="zero:Q"),
        base.mark_rule(color="var(--note)", strokeWidth=2, strokeDash=[10, 4]).encode(x="margin:Q"),
        base.mark_rule(color=reached, strokeWidth=4).encode(x="low:Q", x2="high:Q", y=alt.value(45)),
        base.mark_point(filled=True, size=150, color=reached, opacity=1).encode(x=x, y=alt.value(45)),
        text("said", "high" if row["high"] > middle else "low", 66, reached),
        text("promised", "margin", -10, "var(--note)"),
    ]
    return Drawing(alt.layer(*layers).properties(width=440, height=80), {"test": [row]})


def meters(units: Sequence["Meter"]) -> Drawing:
    """What was used of each budget, and what is set aside, as shares of it."""
    import altair as alt

    rows: list[dict[str, Any]] = [
        {
            "unit": unit.name,
            "used": unit.used_share,
            "with_reserved": unit.used_share + unit.reserved_share,
            "colour": "var(--accent)" if unit.used_share <= 1 else "var(--bad)",
            "said": share(unit.used_share)
            + (f" + {share(unit.reserved_share)} reserved" if unit.reserved_share else ""),
            "whole": 1,
        }
        for unit in units
    ]
    end = max([1.0, *(unit.used_share + unit.reserved_share for unit in units)])
    width = 250
    base = alt.Chart(alt.NamedData(name="units")).encode(
        y=alt.Y("unit:N", sort=[unit.name for unit in units], title=None).axis(ticks=False, domain=False)
    )
    x = alt.X("whole:Q", title="share of the budget").scale(domain=[0, end], nice=False)
    layers = [
        base.mark_bar(height=14, color="var(--line)").encode(x=x.axis(format="%", tickCount=4, grid=False)),
        base.mark_bar(height=14, color="var(--second)", opacity=0.6).encode(x="with_reserved:Q"),
        base.mark_bar(height=14).encode(x="used:Q", color=alt.Color("colour:N", scale=None, legend=None)),
        base.mark_text(align="left").encode(x=alt.value(width + 8), text="said:N"),
    ]
    return Drawing(alt.layer(*layers).properties(width=width, height=alt.Step(24)), {"units": rows})
