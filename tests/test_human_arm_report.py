"""A delivery's report: what it says is the record's, it holds nothing that runs or loads, and browsers show it."""

import json
import re
import shutil
import stat
import subprocess
import time
from collections.abc import Callable, Iterator
from html import escape
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from commands import Plane
from inprocess import DELIVERY, empty_place, make_used_home, refused, run, snapshot
from lxml import html

from delivery_plane import meter
from delivery_plane.delivery import Outcome
from delivery_plane.entry import (
    Entry,
    Verification,
    parse_entries,
    read_checkpoints,
    read_json_lines,
    verify,
)
from delivery_plane.facts import DeliveryClosed, FlagRaised, GateDecided, GateOpened, ProbeObserved
from delivery_plane.record import Record
from human_arm.report import charts, render_report
from human_arm.report.moments import Span, spans
from human_arm.report.outcomes import ending
from human_arm.report.text import duration, number, shown

EXPORTS = Path(__file__).parent / "releases" / "0.1.0" / "exports"
ACCEPTED = EXPORTS / "support-intents-reference-128556.jsonl"
FLAGGED = EXPORTS / "support-intents-label-shuffle-9cd833.jsonl"

HOSTILE = "</script><img src=x onerror=alert(1)>]]>-->\u202egnp.exe\u200b\x1b[31m{{7*7}}'\"&amp;"
SHOWN = "</script><img src=x onerror=alert(1)>]]>-->\ufffdgnp.exe\ufffd\ufffd[31m{{7*7}}'\"&amp;"

FREE_TEXT = {
    *("reason", "message", "statement_of_work", "rationale", "shown", "markdown", "seat", "scenario", "base"),
    *("job_id", "candidate", "rollback_plan", "notes", "device", "by", "recipe", "gate_id", "rule", "detail"),
}
"""Fields of payloads that somebody outside the platform words, or could in a record that was tampered with."""

Lines = list[dict[str, Any]]


def rendered(lines: Lines, export: Path, **options: bool) -> str:
    """The report of an export's lines, checked against its own signed heads as far as the lines reach."""
    checkpoints = [c for c in read_checkpoints(export.with_suffix(".checkpoint")) if c.size <= len(lines)]
    key = export.with_suffix(".pub").read_text().strip()
    entries = parse_entries(lines, str(export))
    return render_report(entries, checkpoints, verify(lines, checkpoints, key), **options)


def record_of(export: Path) -> Record:
    return Record(parse_entries(read_json_lines(export), str(export)))


def tree(page: str) -> html.HtmlElement:
    return html.document_fromstring(page)


def words_of(element: html.HtmlElement) -> str:
    """Its text as one line, blocks and cells apart."""

    def parts(one: html.HtmlElement) -> Iterator[str]:
        if not isinstance(one.tag, str):
            return
        apart = " " if one.tag not in ("a", "span", "strong", "code") else ""
        yield apart + (one.text or "")
        for child in one:
            yield from parts(child)
            yield child.tail or ""
        yield apart

    return " ".join("".join(parts(element)).split())


def table(page: str, caption: str) -> list[list[str]]:
    """The body rows of the one table whose caption begins so, a text per cell."""
    found = [t for t in tree(page).iter("table") if words_of(t.find("caption")).startswith(caption)]
    assert len(found) == 1, caption
    return [[words_of(cell) for cell in row] for row in found[0].find("tbody")]


def hostile_lines(export: Path) -> Lines:
    """An export in which every worded field carries hostile text, as do base names and the delivery's id."""

    def worded(value: Any, name: str = "") -> Any:
        if isinstance(value, dict):
            return {
                (key + HOSTILE if name in ("bases", "base_licences") else key): worded(inner, key)
                for key, inner in value.items()
            }
        if isinstance(value, list):
            return [worded(inner, name) for inner in value]
        return value + HOSTILE if isinstance(value, str) and name in FREE_TEXT else value

    return [
        {**line, "payload": worded(line["payload"]), "delivery_id": line["delivery_id"] + HOSTILE}
        for line in read_json_lines(export)
    ]


@pytest.fixture(scope="module")
def accepted() -> str:
    return rendered(read_json_lines(ACCEPTED), ACCEPTED)


@pytest.fixture(scope="module")
def flagged() -> str:
    return rendered(read_json_lines(FLAGGED), FLAGGED)


@pytest.fixture(scope="module")
def waiting() -> str:
    """The accepted delivery as it was while its spend gate waited."""
    return rendered(read_json_lines(ACCEPTED)[:21], ACCEPTED)


@pytest.fixture(scope="module")
def hostile() -> str:
    return rendered(hostile_lines(FLAGGED), FLAGGED)


# What it says


def test_the_headline_says_how_it_ended_and_why(accepted: str, flagged: str) -> None:
    good = words_of(tree(accepted).find(".//header"))
    assert "Accepted On 500 sealed items the delivered model alone was right on 421" in good
    assert "uplift 0.842 (95% 0.807 to 0.871), contract margin 0.45" in good
    assert "91 entries, verified" in good
    assert "Certificate of the scenario none yet" in good
    bad = words_of(tree(flagged).find(".//header"))
    assert "Stopped on a flag job-1, step 72 (25% of the run): 3 wins, 0 losses of 64 probe items" in bad
    assert "Applied too: no model." in bad
    assert "Fault planted by the platform label-shuffle" in bad
    for page in (accepted, flagged):
        assert "NOT VERIFIED" not in page


def test_probe_and_flag_tables_hold_the_records_numbers(flagged: str) -> None:
    record = record_of(FLAGGED)
    probes = record.facts(ProbeObserved)
    assert len(probes) == 4
    rows = table(flagged, "Probes of job-1")
    for cited, row in zip(probes, rows, strict=True):
        probe = cited.value
        assert probe.train_loss is not None
        assert probe.probe_loss is not None
        assert row == [
            str(probe.step),
            f"{probe.budget_fraction:.1%}",
            f"{probe.train_loss:.4f}",
            f"{probe.probe_loss:.4f}",
            f"{probe.base_probe_loss:.4f}",
            *map(str, (probe.probe_correct, probe.base_correct, probe.probe_items, probe.wins, probe.losses)),
            f"{probe.device_seconds:.1f}",
            str(cited.entry),
        ]
    flag = record.facts(FlagRaised)[0]
    assert table(flagged, "Flags of job-1") == [
        ["F1", "72", flag.value.message, "paused, then stopped (seat stopped)", f"{flag.entry}, 38"]
    ]


def test_acceptance_meters_and_gates_hold_the_records_numbers(accepted: str) -> None:
    record = record_of(ACCEPTED)
    cited = record.acceptance()
    assert cited
    test = cited.value
    assert [row[1] for row in table(accepted, "Sealed items")] == [
        *map(str, (test.items, test.wins, test.losses, test.ties)),
        "421, 0",
        f"{test.uplift:.4f}",
        f"{test.uplift_interval[0]:.4f} to {test.uplift_interval[1]:.4f}",
        f"{test.margin:.4f}",
        f"{test.p_value:.3g}",
        "0.01",
    ]
    used, budget = meter.used(record), meter.budget(record)
    assert [(row[1], row[3]) for row in table(accepted, "Used, set aside")] == [
        (number(getattr(used, unit)), number(getattr(budget, unit))) for unit in type(used).model_fields
    ]
    opened = record.facts(GateOpened)
    for gate, ruling, row in zip(
        opened, record.facts(GateDecided), table(accepted, "Every gate"), strict=True
    ):
        assert row == [
            gate.value.gate.value,
            ruling.value.decision.value,
            ruling.value.by,
            ruling.value.reason,
            f"{ruling.value.seconds_open:.3f}",
            ruling.value.digest,
            f"{gate.entry}, {ruling.entry}",
        ]


def test_every_finding_is_there_with_the_entries_it_cites(accepted: str) -> None:
    record = record_of(ACCEPTED)
    findings = [f for verdict in record.verdicts() for f in verdict.value.findings]
    assert len(findings) > 50
    page = words_of(tree(accepted).get_element_by_id("findings").getparent())
    for finding in findings:
        said = finding.rule.partition(".")[2].replace("_", " ") + (" (blocking)" if finding.blocking else "")
        cited = ", ".join(map(str, finding.entries))
        assert f"{said} {finding.status} {' '.join(finding.message.split())} {cited}" in page


def test_every_entry_is_there_in_full(accepted: str) -> None:
    page = tree(accepted)
    for entry in record_of(ACCEPTED).entries:
        text = page.get_element_by_id(f"entry-{entry.number}").text_content()
        assert entry.hash in text
        assert entry.recorded_at in text
        leaves = [entry.payload]
        while leaves:
            value = leaves.pop()
            if isinstance(value, dict):
                assert all(key in text for key in value)
                leaves += value.values()
            elif isinstance(value, list):
                leaves += value
            elif isinstance(value, str):
                assert value in text
            elif value is not None and not isinstance(value, bool):
                assert str(value) in text


def test_links_resolve_to_one_target_each(accepted: str, flagged: str, waiting: str, hostile: str) -> None:
    for page in map(tree, (accepted, flagged, waiting, hostile)):
        ids = page.xpath("//@id")
        assert len(ids) == len(set(ids))
        links = page.xpath("//a/@href")
        assert len(links) > 40
        assert {link.removeprefix("#") for link in links} <= set(ids)


def test_stages_not_reached_say_so_and_what_was_not_tested_is_no_zero(flagged: str) -> None:
    rows = {row[0]: row for row in table(flagged, "Stage visits")}
    for stage in ("eval", "register", "deploy", "cost", "card"):
        assert rows[stage] == [stage, "not reached", "not reached", "not reached", "none"]
    acceptance = words_of(tree(flagged).get_element_by_id("acceptance").getparent())
    assert acceptance == (
        "Acceptance not reached The sealed test was not run."
        " The contract: an uplift of 0.45 on 500 sealed items."
    )


def test_a_measurement_that_failed_is_unscored_and_no_zero() -> None:
    lines = read_json_lines(ACCEPTED)
    for line in lines:
        if line["kind"] == "probe_observed":
            line["payload"].update(train_loss=None, probe_loss=None)
        if line["kind"] == "stage" and line["stage"] == "deploy":
            line["payload"]["status"] = "unscored"
            line["payload"]["findings"][0].update(status="unscored", message="no deployment_observed fact")
    page = rendered(lines, ACCEPTED)
    assert {(row[2], row[3]) for row in table(page, "Probes of job-1")} == {("not finite", "not finite")}
    staged = next(row for row in table(page, "Class J, visit 1, verdict in entry 78") if row[0] == "staged")
    assert staged[1:3] == ["unscored", "no deployment_observed fact"]
    assert next(row for row in table(page, "Stage visits") if row[0] == "deploy")[1] == "unscored"


def test_an_open_delivery_says_what_it_waits_for_and_how_to_answer(waiting: str) -> None:
    gate = record_of(ACCEPTED).facts(GateOpened)[0].value
    header = words_of(tree(waiting).find(".//header"))
    assert "Open Waits for a person at the spend gate until 2026-12-02 10:33:46 UTC." in header
    assert f"delivery-plane gates approve {gate.gate_id} --as NAME --reason" in header
    assert f"--digest {gate.digest}" in header
    assert gate.shown in tree(waiting).find(".//header").text_content()
    assert table(waiting, "Every gate")[0][1:6] == [
        *("waiting", "nobody yet", "until 2026-12-02 10:33:46 UTC", "still open"),
        gate.digest,
    ]
    assert "No job has started yet." in waiting


def test_any_prefix_of_a_record_can_be_shown() -> None:
    lines = read_json_lines(FLAGGED)
    said = {}
    for last in (1, 6, 26, 41):
        said[last] = words_of(tree(rendered(lines[:last], FLAGGED)).xpath("//header/div")[-1])
    assert said[1].startswith("Open No stage has been opened yet.")
    assert said[6].startswith("Open The intake stage is being carried out.")
    assert said[41].startswith("Open The train stage is judged; the next step has not begun.")


@pytest.mark.parametrize(
    "changes",
    [
        {"steps": 0, "step": 0, "resume_step": 0},
        {"probe_items": 0, "probe_correct": 0},
        {"train_loss": 0.0, "probe_loss": -1.0, "base_probe_loss": 9e15},
        {"budget": dict.fromkeys(["usd", "gpu_seconds", "wall_seconds", "tokens", "dev_evaluations", "bytes"], 0)},
        {"deadline_at": "never", "seconds_open": 9e15, "contract_margin": -1.0},
    ],
)  # fmt: skip
def test_values_at_the_edge_can_be_shown(changes: dict[str, Any]) -> None:
    lines = read_json_lines(FLAGGED)
    for line in lines:
        line["payload"].update({name: changes[name] for name in changes.keys() & line["payload"].keys()})
    page = rendered(lines, FLAGGED)
    assert "NaN" not in page
    assert "Infinity" not in page


def test_a_delivery_with_a_lone_fault_has_a_report() -> None:
    lines = [line for line in read_json_lines(FLAGGED) if line["kind"] == "delivery_closed"]
    lines[0]["payload"].update(outcome="platform_fault", applied=["platform_fault"])
    page = rendered(lines, FLAGGED)
    assert "the delivery never opened" in page
    assert "so it had no budget" in page


def test_time_at_gates_is_told_apart_from_work() -> None:
    lines = read_json_lines(ACCEPTED)
    for line in lines[21:]:  # the approver took a week
        line["recorded_at"] = line["recorded_at"].replace("2026-12-01", "2026-12-08")
    found = {span.label: span for span in spans(Record(parse_entries(lines, "export")))}
    before = {span.label: span for span in spans(record_of(ACCEPTED))}
    assert found["spend gate"].seconds == pytest.approx(7 * 86400 + 0.055, abs=0.01)
    assert found["train"].start == pytest.approx(before["train"].start)
    assert found["card"].end == pytest.approx(before["card"].end)
    assert found["card"].end is not None
    assert found["card"].end < 102


def _changed(payload: dict[str, Any]) -> Callable[[Entry], Entry]:
    return lambda entry: entry.model_copy(update={"payload": {**entry.payload, **payload}})


@pytest.mark.parametrize("outcome", list(Outcome))
def test_every_outcome_has_words_of_its_own(outcome: Outcome) -> None:
    entries = list(record_of(ACCEPTED).entries)
    entries[-1] = _changed({"outcome": outcome, "applied": [outcome]})(entries[-1])
    told = ending(Record(entries))
    assert told.title
    assert (told.tone == "good") == (outcome is Outcome.ACCEPTED)
    others = {ending(Record([*entries[:-1], _changed({"outcome": o})(entries[-1])])).title for o in Outcome}
    assert len(others) == len(Outcome)
    assert told.title in others


def test_a_refused_gate_names_who_and_why() -> None:
    entries = list(record_of(ACCEPTED).entries)
    entries[89] = _changed({"decision": "rejected", "by": "ada", "reason": "not now"})(entries[89])
    entries[-1] = _changed({"outcome": "refused_at_gate", "applied": ["refused_at_gate"]})(entries[-1])
    assert ending(Record(entries)).why == "release gate rejected by ada: not now"


def test_numbers_and_times_read_well() -> None:
    assert [duration(s) for s in (0.06, 9.994, 59.94, 200, 7530, 270000)] == [
        *("0.06 s", "9.99 s", "59.9 s", "3 min 20 s", "2 h 05 min", "3 d 3 h"),
    ]
    assert [number(n) for n in (0, 4, 2_000_000, 0.1, 0.006079388, 60.7938, 1234.56, 0.00001234)] == [
        *("0", "4", "2,000,000", "0.1", "0.006079", "60.79", "1,234.6", "1.23e-05"),
    ]


# What can be trusted


def test_a_tampered_record_is_shown_as_not_verified_before_anything_else() -> None:
    lines = read_json_lines(FLAGGED)
    lines[33]["payload"]["probe_correct"] = 60
    page = rendered(lines, FLAGGED)
    body = words_of(tree(page).find("body"))
    assert body.startswith(
        "NOT VERIFIED This record does not hold from entry 34 on: content does not match its hash."
    )
    assert "42 entries, NOT VERIFIED" in body
    assert "First bad entry: 34. content does not match its hash." in body
    assert tree(page).find(".//header/div").get("role") == "alert"


def test_a_record_with_unreadable_entries_is_shown_and_names_them() -> None:
    lines = read_json_lines(FLAGGED)
    lines[0]["recorded_at"] = f"soon{HOSTILE}"
    lines[33]["payload"]["surplus"] = 1
    lines[40]["payload"]["findings"][0]["entries"] = [999]
    page = rendered(lines, FLAGGED)
    body = words_of(tree(page).find("body"))
    assert "2 of 42 entries cannot be read Left out of every section but the last: 1, 34." in body
    assert "999 (missing)" in body
    assert len(table(page, "Probes of job-1")) == 3
    assert "none that can be read" in body


def test_the_head_and_the_key_are_the_records(accepted: str) -> None:
    last = read_checkpoints(ACCEPTED.with_suffix(".checkpoint"))[-1]
    rows = dict(table(accepted, "The head"))
    assert rows["hash of the last entry"] == last.root
    assert rows["signature (Ed25519)"] == last.signature
    assert rows["platform's public key"] == ACCEPTED.with_suffix(".pub").read_text().strip()
    assert rows["last signed head"] == "91 entries, 2026-12-01 10:35:15 UTC"
    assert "compare it with one you trust" not in accepted
    came = rendered(read_json_lines(ACCEPTED), ACCEPTED, key_came_along=True)
    assert "15 signed heads. The key came with the export" in words_of(tree(came).find("body"))


# What it must not hold


def assert_inert(page: str) -> None:
    """No script, no handler, nothing loaded or sent, no character that hides or steers."""
    found = tree(page)
    tags = {element.tag for element in found.iter() if isinstance(element.tag, str)}
    forbidden = "script img iframe object embed link base form input button image use foreignobject animate set a:href"
    assert not tags & set(forbidden.split())
    for element in found.iter():
        for name, value in element.attrib.items():
            assert not name.startswith("on"), (element.tag, name)
            assert "javascript:" not in value
            if name in ("href", "src", "xlink:href", "action", "data", "srcset", "poster"):
                assert name == "href"
                assert value.startswith("#")
    assert "<script" not in page.lower()
    assert "@import" not in page
    assert "url(" not in page
    assert set(re.findall(r"https?://[^\s\"'<]+", page)) <= {"http://www.w3.org/2000/svg"}
    assert not [c for c in page if c != "\n" and (ord(c) < 32 or ord(c) == 127 or c in "\u202e\u200b\x9b")]
    policy = found.xpath("//meta[@http-equiv='Content-Security-Policy']/@content")[0]
    assert policy.startswith("default-src 'none'; style-src 'unsafe-inline'; img-src data:;")


def test_it_holds_nothing_that_runs_or_loads(accepted: str, flagged: str, waiting: str) -> None:
    for page in (accepted, flagged, waiting):
        assert_inert(page)


def test_hostile_text_is_text(hostile: str) -> None:
    assert_inert(hostile)
    said = words_of(tree(hostile).find("body"))
    lines = hostile_lines(FLAGGED)
    worded = [line for line in lines if repr(HOSTILE)[1:-1] in repr(line["payload"])]
    assert len(worded) > 20
    assert said.count(SHOWN) > 40
    # A claim's reason, a gate's, the flag's message, the base's name, the job's id: each where it is read.
    assert f"as planned{SHOWN}" in said
    assert f"policy: the quote is within the budget{SHOWN}" in said
    assert f"micro-1{SHOWN} (Apache-2.0)" in said
    assert f"job-1{SHOWN}: stopped after 72 of 288 steps" in said
    assert tree(hostile).findtext(".//title").startswith(f"support-intents-label-shuffle-9cd833{SHOWN}")


def test_hostile_labels_in_a_picture_are_text() -> None:
    span = Span(HOSTILE, "stage", f"passed{HOSTILE}", "2026-12-01T00:00:00+00:00", 0.0, 1.0, 1.0, (1,))
    svg = charts.picture(charts.timeline([span], narrow=False), HOSTILE)
    assert_inert(f'<meta http-equiv=Content-Security-Policy content="{escape(_POLICY)}">{svg}')
    texts = tree(svg).xpath("//text/text()")
    assert any(text.startswith("</script><im") for text in texts)
    assert any(text.startswith(f"passed{SHOWN[:40]}") for text in texts)
    assert tree(svg).xpath("//@aria-label") == [SHOWN]


_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:;"


@pytest.mark.parametrize(
    "character", [*"\x00\x07\x1b\x7f\x9b\u200b\u200f\u202e\u2066\u2028\ufeff\ufe0f\u3164\u00ad"]
)
def test_characters_that_hide_or_steer_are_visibly_replaced(character: str) -> None:
    assert shown(f"a{character}b") == "a\ufffdb"


def test_honest_text_stays_as_it_is() -> None:
    honest = "Größe: 3 µm, naïve, 日本語, ελληνικά\n\tנכון — “quoted” 🙂"
    assert shown(honest) == honest


def test_pictures_follow_their_schema() -> None:
    record = record_of(FLAGGED)
    charts.timeline(spans(record), narrow=True).spec(checked=True)
    acceptance = record_of(ACCEPTED).acceptance()
    assert acceptance
    charts.uplift(acceptance.value).spec(checked=True)


def test_the_same_record_gives_the_same_bytes_in_good_time(accepted: str) -> None:
    took = []
    for _ in range(2):
        started = time.process_time()
        assert rendered(read_json_lines(ACCEPTED), ACCEPTED) == accepted
        took.append(time.process_time() - started)
    assert min(took) < 3, took


# How it is built for readers


def test_it_is_structured_for_everybody(accepted: str, flagged: str, waiting: str) -> None:
    for page in map(tree, (accepted, flagged, waiting)):
        assert page.get("lang") == "en"
        assert words_of(page.find(".//title"))
        levels = [int(h.tag[1]) for h in page.iter("h1", "h2", "h3", "h4")]
        assert levels[0] == 1
        assert levels.count(1) == 1
        assert all(after <= before + 1 for before, after in pairwise(levels))
        for one in page.iter("table"):
            assert words_of(one.find("caption"))
            assert all(th.get("scope") in ("row", "col") for th in one.iter("th"))
        pictures = list(page.iter("svg"))
        assert len(pictures) >= 3
        assert all(svg.get("role") == "img" and svg.get("aria-label") for svg in pictures)
        for status in page.xpath("//*[contains(@class, 'badge')]"):
            assert words_of(status)


def _luminance(colour: str) -> float:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_colours_have_contrast_in_light_dark_and_print(accepted: str) -> None:
    schemes = [
        dict(re.findall(r"--([\w-]+): (#\w{6})", block))
        for block in re.findall(r":root \{(.*?)\}", accepted, re.S)
    ]
    assert len(schemes) == 3
    for scheme in schemes:
        grounds = ["bg", "panel", "good-bg", "bad-bg", "warn-bg", "active-bg"]
        pairs = [(text, ground) for text in ("fg", "muted", "accent") for ground in grounds]
        pairs += [(tone, ground) for tone in ("good", "bad", "warn") for ground in ("bg", f"{tone}-bg")]
        pairs += [("second", "bg"), ("note", "bg")]
        for text, ground in pairs:
            bright, dark = sorted((_luminance(scheme[text]), _luminance(scheme[ground])), reverse=True)
            assert (bright + 0.05) / (dark + 0.05) >= 4.5, (text, ground)


# A real browser

CHROMIUM = shutil.which("chromium")
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="no chromium on the path")


def dumped(
    page: Path, tmp_path: Path, *options: str, fragment: str = ""
) -> "subprocess.CompletedProcess[str]":
    """The page's document after loading, on standard output; console messages on standard error."""
    assert CHROMIUM
    command = [
        CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
        "--disable-background-networking", "--disable-component-update", "--disable-sync",
        f"--user-data-dir={tmp_path / 'profile'}", "--enable-logging=stderr", *options,
    ]  # fmt: skip
    return subprocess.run(
        [*command, page.as_uri() + fragment], capture_output=True, text=True, timeout=180, check=True
    )


@needs_chromium
@pytest.mark.parametrize("name", ["accepted", "hostile"])
def test_a_browser_shows_it_at_phone_width_without_errors_or_requests(
    name: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    page: str = request.getfixturevalue(name)
    # The report lies in a frame as wide as a phone, and what is outside measures it.
    frame = tmp_path / "frame.html"
    frame.write_text(
        f"""<!doctype html><meta charset=utf-8><iframe width=390 height=800 srcdoc="{escape(page)}"></iframe>
        <pre id=found></pre><script>
        onload = () => {{
            const view = document.querySelector("iframe").contentWindow, inside = view.document;
            const measure = () => [inside.documentElement.scrollWidth, inside.documentElement.clientWidth];
            const closed = measure();
            for (const one of inside.querySelectorAll("details")) one.open = true;
            document.getElementById("found").textContent = JSON.stringify({{
                closed, opened: measure(), loaded: view.performance.getEntriesByType("resource").length,
                narrow: view.getComputedStyle(inside.querySelector(".narrow")).display,
                wide: view.getComputedStyle(inside.querySelector(".wide")).display }});
        }}
        </script>"""
    )
    done = dumped(frame, tmp_path, "--dump-dom")
    found = json.loads(html.document_fromstring(done.stdout).get_element_by_id("found").text)
    assert "CONSOLE" not in done.stderr, done.stderr[-2000:]
    assert found["loaded"] == 0
    assert (found["narrow"], found["wide"]) == ("block", "none")
    for scrolled, width in (found["closed"], found["opened"]):
        assert 300 < scrolled <= width <= 390


@needs_chromium
@pytest.mark.long
def test_a_link_opens_the_entry_and_the_page_prints(accepted: str, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    page.write_text(accepted)
    done = dumped(page, tmp_path, "--dump-dom", fragment="#entry-67")
    assert "CONSOLE" not in done.stderr, done.stderr[-2000:]
    opened = html.document_fromstring(done.stdout).xpath("//details[@open]//@id")
    assert opened == ["entry-67"]
    dumped(page, tmp_path, f"--print-to-pdf={tmp_path / 'report.pdf'}")
    assert (tmp_path / "report.pdf").read_bytes().startswith(b"%PDF")


# The commands


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return empty_place(tmp_path, monkeypatch)


def test_a_report_of_an_export_needs_no_home(place: Path, accepted: str) -> None:
    target = place / "out.html"
    done = run("deliveries", "report", str(ACCEPTED), "--out", str(target))
    assert (done.code, done.out, done.err) == (0, f"report: {target.as_uri()}\n", "")
    assert stat.S_IMODE(target.stat().st_mode) == 0o600
    assert "compare it with one you trust" in target.read_text()
    assert list(place.iterdir()) == [target]
    trusted = run(
        "deliveries",
        "report",
        str(ACCEPTED),
        "--key",
        str(ACCEPTED.with_suffix(".pub")),
        "--out",
        str(target),
    )
    assert trusted.code == 0
    assert target.read_text() == accepted


def test_a_report_of_a_tampered_export_is_written_and_ends_with_one(place: Path) -> None:
    for suffix in (".jsonl", ".checkpoint", ".pub"):
        shutil.copyfile(FLAGGED.with_suffix(suffix), place / f"export{suffix}")
    lines = (place / "export.jsonl").read_text().replace('"probe_correct":3', '"probe_correct":9')
    (place / "export.jsonl").write_text(lines)
    done = run("deliveries", "report", "export.jsonl", "--out", "out.html")
    assert done.code == 1
    assert done.out.endswith("out.html (NOT VERIFIED)\n")
    assert "NOT VERIFIED" in (place / "out.html").read_text()


def test_reports_of_deliveries_on_this_home(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DELIVERY_PLANE_HOME", str(make_used_home(place / "home")))
    assert run("deliveries", "report", DELIVERY, "--out", "closed.html").code == 0
    assert "Accepted" in (place / "closed.html").read_text()
    assert run("deliveries", "report", "delivery-2", "--out", "open.html").code == 0
    page = (place / "open.html").read_text()
    assert "Waits for a person at the spend gate" in page
    assert "compare it with one you trust" not in page


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("nobody", "--out", "out.html"), "no ledger here"),
        (("nowhere.jsonl", "--out", "out.html"), "no such public key"),
        (("nobody", "--key", "a.pub", "--out", "out.html"), "no such export"),
        ((str(ACCEPTED), "--out", "missing/out.html"), "cannot be written"),
        ((str(ACCEPTED), "--out", "."), "name an HTML file"),
        ((str(ACCEPTED), "--out", "x" * 300), "no usable path"),
        ((str(ACCEPTED), "--checkpoint", "missing", "--out", "out.html"), "no such checkpoint"),
    ],
)
def test_what_cannot_be_reported_is_one_line_and_leaves_nothing(
    words: tuple[str, ...], why: str, place: Path
) -> None:
    assert why in refused("deliveries", "report", *words)
    assert snapshot(place) == {}


def test_a_bad_place_for_the_report_is_found_before_a_delivery_starts(place: Path) -> None:
    for bad in ("missing/out.html", ".", "x" * 300):
        assert "--report" in refused("deliver", "support-intents", "--report", bad)
    assert snapshot(place) == {}


@pytest.mark.long
def test_deliver_writes_the_report_whatever_the_outcome(tmp_path: Path) -> None:
    # Nobody decides, so the spend gate expires and nothing is trained.
    plane = Plane(tmp_path / "home", {"DELIVERY_PLANE_DEADLINES__SPEND_SECONDS": "1"})
    target = tmp_path / "out.html"
    words = ("deliver", "support-intents", "--approver", "none", "--report", str(target))
    result = plane.json(*words, code=1, seconds=600)
    assert result["outcome"] == "refused_at_gate"
    page = target.read_text()
    assert "spend gate expired by nobody: no decision by the deadline" in page
    assert f"{result['ledger']['entries']} entries, verified" in page
    assert_inert(page)


def test_a_report_without_any_entry_is_refused() -> None:
    entry = record_of(FLAGGED).entries[0].model_copy(update={"recorded_at": "soon"})
    nothing = Verification(verified=False, entries=1, signed=0, head="", checkpoints=0, first_bad=1, why="-")
    with pytest.raises(ValueError, match="no readable entry"):
        render_report([entry], [], nothing)
    assert record_of(FLAGGED).last(DeliveryClosed)
