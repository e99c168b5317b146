"""A delivery as one JSON object and as a scorecard, from its record. It judges nothing anew."""

from datetime import datetime
from typing import Any

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from delivery_plane import meter
from delivery_plane.delivery import STAGE_CLASS, STAGES, VerdictStatus
from delivery_plane.entry import Entry, Verification
from delivery_plane.facts import (
    DeliveryClosed,
    DeliveryFaulted,
    DeliveryOpened,
    FlagRaised,
    GateDecided,
    JobEnded,
    JobStarted,
    PreflightChecked,
)
from delivery_plane.record import Record

SCHEMA_VERSION = 1

COLOURS = {
    VerdictStatus.PASSED: "green",
    VerdictStatus.FAILED: "red",
    VerdictStatus.UNSCORED: "yellow",
    VerdictStatus.NOT_REACHED: "dim",
}


def summarise(delivery_id: str, record: Record, verification: Verification) -> dict[str, Any]:
    """The `--json` object of a delivery."""
    opened = record.last(DeliveryOpened)
    assert opened
    closed = record.last(DeliveryClosed)
    acceptance = record.acceptance()
    order = opened.value
    fault = record.last(DeliveryFaulted)
    return {
        "schema_version": SCHEMA_VERSION,
        "delivery_id": delivery_id,
        "scenario": order.scenario,
        "certificate": order.certificate or "uncertified",
        "seat": order.seat,
        "plane": order.plane,
        "seed": order.seed,
        "outcome": closed.value.outcome if closed else None,
        "platform_fault": fault.value.message if fault else None,
        "stages": stages(record),
        "acceptance": _acceptance(acceptance.value.model_dump(mode="json")) if acceptance else None,
        "flags": [_flag(fact.value) for fact in record.facts(FlagRaised)],
        "preflights": [
            {
                "attempt": fact.attempt,
                "checks": len(fact.value.checks),
                "failed": [check.model_dump(exclude={"passed"}) for check in fact.value.failed],
                "seconds": fact.value.seconds,
            }
            for fact in record.facts(PreflightChecked)
        ],
        "jobs": _jobs(record),
        "meters": meter.used(record).model_dump(),
        "budget": order.budget.model_dump(),
        "gates": [
            {
                "kind": fact.value.gate,
                "decision": fact.value.decision,
                "by": fact.value.by,
                "reason": fact.value.reason,
                "seconds_open": fact.value.seconds_open,
            }
            for fact in record.facts(GateDecided)
        ],
        "ledger": {
            "entries": verification.entries,
            "head": verification.head,
            "verified": verification.verified,
        },
        "wall_seconds": wall_seconds(record.entries),
    }


def stages(record: Record) -> list[dict[str, Any]]:
    """Every stage visit's verdict in order, then the stages that were not reached."""
    found = [
        {
            "name": verdict.value.stage,
            "class": verdict.value.stage_class,
            "attempt": verdict.value.attempt,
            "status": verdict.value.status,
            "findings": [
                {
                    "rule": finding.rule,
                    "blocking": finding.blocking,
                    "status": finding.status,
                    "message": finding.message,
                    "entries": list(finding.entries),
                }
                for finding in verdict.value.findings
            ],
        }
        for verdict in record.verdicts()
    ]
    reached = {stage["name"] for stage in found}
    missing: list[dict[str, Any]] = [
        {
            "name": stage,
            "class": STAGE_CLASS[stage],
            "attempt": 0,
            "status": VerdictStatus.NOT_REACHED,
            "findings": [],
        }
        for stage in STAGES
        if stage not in reached
    ]
    return found + missing


def latest(record: Record) -> dict[str, VerdictStatus]:
    """Each stage's status by its latest attempt."""
    return {stage["name"]: stage["status"] for stage in stages(record)}


def _acceptance(fields: dict[str, Any]) -> dict[str, Any]:
    names = (
        "decision", "wins", "losses", "ties", "items", "p_value", "e_value", "threshold", "futility",
        "uplift", "uplift_interval", "alpha", "margin",
    )  # fmt: skip
    return {name: fields[name] for name in names}


def _flag(flag: FlagRaised) -> dict[str, Any]:
    return {
        "job": flag.job_id,
        "step": flag.step,
        "budget_fraction": flag.budget_fraction,
        "score": flag.score,
        "threshold": flag.threshold,
        "action": flag.action,
    }


def _jobs(record: Record) -> list[dict[str, Any]]:
    started = {fact.value.job_id: fact.value for fact in record.facts(JobStarted)}
    return [
        {
            "id": job.job_id,
            "recipe": started[job.job_id].recipe,
            "strategy": started[job.job_id].strategy.model_dump(mode="json"),
            "status": job.status,
            "steps": job.steps,
            "parent": started[job.job_id].parent,
            "tokens": job.tokens,
            "supervised_tokens": job.supervised_tokens,
            "consumed_rows": job.consumed_rows,
            "distinct_rows": job.distinct_rows,
            "rollouts": job.rollouts,
            "policy_versions": job.policy_versions,
            "generated_tokens": job.generated_tokens,
            "usd": job.usd,
            "gpu_seconds": job.gpu_seconds,
            "train_loss_first": job.train_loss_first,
            "train_loss_last": job.train_loss_last,
            "probe_first": job.probe_first,
            "probe_last": job.probe_last,
        }
        for job in (fact.value for fact in record.facts(JobEnded))
    ]


def wall_seconds(entries: tuple[Entry, ...]) -> float:
    """From the first entry to the closing one, or to the last of an open delivery."""
    end = next((entry for entry in entries if entry.kind == "delivery_closed"), entries[-1])
    first, last = (datetime.fromisoformat(entry.recorded_at) for entry in (entries[0], end))
    return (last - first).total_seconds()


def scorecard(summary: dict[str, Any]) -> RenderableType:
    """A delivery's result as a person reads it."""
    table = Table(box=None, pad_edge=False)
    for column in ("stage", "class", "verdict", "rules", "what failed"):
        table.add_column(column)
    for stage in summary["stages"]:
        findings = stage["findings"]
        passed = sum(finding["status"] == "passed" for finding in findings)
        failed = [f["rule"].partition(".")[2] for f in findings if f["status"] != "passed"]
        name = stage["name"] if stage["attempt"] < 2 else f"{stage['name']} ({stage['attempt']})"
        table.add_row(
            name,
            stage["class"],
            Text(stage["status"].replace("_", " "), style=COLOURS[VerdictStatus(stage["status"])]),
            f"{passed}/{len(findings)}" if findings else "",
            Text(", ".join(failed), style="red"),
        )
    good = summary["outcome"] == "accepted"
    last = {stage["name"]: stage["status"] for stage in summary["stages"]}
    lines = [
        f"{sum(status == 'passed' for status in last.values())} of {len(STAGES)} stages passed",
        *_preflight_lines(summary),
        *_acceptance_line(summary),
        *(
            f"flag at step {flag['step']} ({flag['budget_fraction']:.0%} of the run): uplift at most"
            f" {flag['score']:.3f}, below {flag['threshold']:.3f}; job {flag['action']}"
            for flag in summary["flags"]
        ),
        *_meter_line(summary),
        f"ledger: {summary['ledger']['entries']} entries, "
        + ("verified" if summary["ledger"]["verified"] else "NOT VERIFIED"),
    ]
    title = f"{summary['delivery_id']}: {summary['outcome'] or 'open'}"
    return Panel(
        Group(table, Text(), *map(Text, lines)),
        title=Text(title, style="bold green" if good else "bold red"),
        title_align="left",
        expand=False,
    )


def _preflight_lines(summary: dict[str, Any]) -> list[str]:
    """What the latest preflight found wrong: each line says what to change."""
    latest = summary["preflights"][-1:]
    return [
        f"preflight {tried['attempt']}: {check['name'].replace('_', ' ')}: {check['message']}; change {check['field']}"
        for tried in latest
        for check in tried["failed"]
    ]


def _acceptance_line(summary: dict[str, Any]) -> list[str]:
    test = summary["acceptance"]
    if not test:
        return []
    low, high = test["uplift_interval"]
    return [
        f"acceptance: {test['decision'].replace('_', ' ')}: {test['wins']} wins, {test['losses']} losses,"
        f" {test['ties']} ties of {test['items']} sealed items; uplift {test['uplift']:.3f}"
        f" (95% {low:.3f} to {high:.3f}; contract {test['margin']:.2f}), p = {test['p_value']:.2g}"
    ]


def _meter_line(summary: dict[str, Any]) -> list[str]:
    used, budget = summary["meters"], summary["budget"]
    return [
        f"used {used['usd']:.4f} of {budget['usd']:.2f} USD, {used['gpu_seconds']:.0f} of"
        f" {budget['gpu_seconds']:.0f} device seconds, {used['tokens']:,} tokens,"
        f" {used['dev_evaluations']} dev looks; wall {summary['wall_seconds']:.0f} s"
    ]
