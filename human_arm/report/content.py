"""What the report says, taken from the record: jobs, meters, gates, findings, entries. No layout, no judgement."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import Any

from delivery_plane import meter
from delivery_plane.delivery import STAGES, Amounts
from delivery_plane.entry import Checkpoint, Entry, Verification
from delivery_plane.errors import BadInput
from delivery_plane.facts import (
    AcceptanceTested,
    AcceptanceUnmeasured,
    CandidateEvaluated,
    DeliveryClosed,
    DeliveryOpened,
    FaultPlanted,
    FlagRaised,
    FlagResolved,
    GateDecided,
    GateDecisionRefused,
    GateOpened,
    JobEnded,
    JobStarted,
    PlantedTruth,
    PreflightChecked,
    ProbeObserved,
    ScheduleQuoted,
)
from delivery_plane.record import Cited, Record
from delivery_plane.verdicts import StageVerdict
from human_arm.report.moments import Span, spans
from human_arm.report.outcomes import Ending, ending, open_gates

UNITS = {
    "usd": "US dollars",
    "gpu_seconds": "device seconds",
    "wall_seconds": "wall seconds",
    "tokens": "tokens",
    "dev_evaluations": "dev evaluations",
    "bytes": "artifact bytes",
}


@dataclass(frozen=True)
class Mark:
    """A step of a job that a picture points at."""

    step: int
    label: str
    kind: str


@dataclass(frozen=True)
class Job:
    """One training job, over all its starts."""

    job_id: str
    starts: list[Cited[JobStarted]]
    probes: list[Cited[ProbeObserved]]
    flags: list[Cited[FlagRaised]]
    resolved: dict[str, Cited[FlagResolved]]
    ended: Cited[JobEnded] | None
    margin: float | None
    """The contract's, as a share; None: not recorded."""

    @property
    def steps(self) -> int:
        """Planned."""
        return max(start.value.steps for start in self.starts)

    @property
    def seen(self) -> list[str]:
        """What the probes say besides their curves: answers generated, rows consumed, answers sampled and rewarded."""
        lines = []
        generated = [probe.value for probe in self.probes if probe.value.generated_items]
        if generated:
            last = generated[-1]
            lines.append(
                f"Generated greedily at step {last.step}: {last.generated_correct} of {last.generated_items} held-out "
                f"answers right; {last.end_of_turn_share or 0:.0%} ended their turn, "
                f"{last.generated_tokens_mean or 0:.1f} tokens on average."
            )
        newest = self.probes[-1].value
        if newest.consumed_rows:
            lines.append(
                f"Trained on {newest.consumed_rows} rows, {newest.distinct_rows} of them different, "
                f"{newest.supervised_tokens} of {newest.tokens} tokens supervised."
            )
        if policy := newest.policy:
            lines.append(
                f"{policy.rollouts} answers sampled from {policy.policy_versions} versions of the policy; lately they "
                f"earned {_number(policy.reward_mean)} on average (standard deviation {_number(policy.reward_std)}), "
                f"and {_share(policy.zero_std_share)} of groups earned all the same."
            )
        if preference := newest.preference:
            lines.append(
                f"Of pairs seen lately the better answer gained more in {_share(preference.accuracy)}; margin "
                f"{_number(preference.margin)}, change of the better answer {_number(preference.chosen_shift)} nats."
            )
        return lines

    @property
    def marks(self) -> list[Mark]:
        """Flags and resumes. A lone flag says what was done, several are numbered as in the table."""
        lone = len(self.flags) == 1
        found = [
            Mark(flag.value.step, f"flag: {flag.value.action}" if lone else f"F{number}", "flag")
            for number, flag in enumerate(self.flags, start=1)
        ]
        resumes = [start.value.resume_step for start in self.starts[1:]]
        return found + [Mark(step, "resumed", "resume") for step in dict.fromkeys(resumes)]


@dataclass(frozen=True)
class Meter:
    """One unit: amounts and ceiling, and the first two as shares of the ceiling."""

    name: str
    used: float
    reserved: float
    budget: float

    @property
    def used_share(self) -> float:
        """0 to 1, above when over budget; of a zero budget anything is all of it."""
        return self._share(self.used)

    @property
    def reserved_share(self) -> float:
        """As `used_share`, for what is set aside."""
        return self._share(self.reserved)

    def _share(self, amount: float) -> float:
        return amount / self.budget if self.budget else float(amount > 0)


@dataclass(frozen=True)
class Gate:
    """One gate: opened, decided or waiting, and who was refused in between."""

    opened: Cited[GateOpened]
    decided: Cited[GateDecided] | None
    refused: list[Cited[GateDecisionRefused]]


def _number(value: float | None) -> str:
    return "nothing that was measured" if value is None else f"{value:.3f}"


def _share(value: float | None) -> str:
    return "an unmeasured share" if value is None else f"{value:.0%}"


def readable(entries: Sequence[Entry]) -> tuple[list[Entry], list[int]]:
    """Entries whose content is what they say they are, and the numbers of the others: a damaged record has some."""
    found = [(entry, _reads(entry)) for entry in entries]
    return [entry for entry, reads in found if reads], [entry.number for entry, reads in found if not reads]


def _reads(entry: Entry) -> bool:
    try:
        if datetime.fromisoformat(entry.recorded_at).tzinfo is None:
            return False
        if entry.type == "fact":
            entry.fact()
        elif entry.type == "claim":
            entry.claim()
        elif entry.kind == "stage":
            StageVerdict.model_validate(entry.payload)
        else:
            Record([entry]).acceptance()
    except (ValueError, BadInput):  # ValidationError is a ValueError
        return False
    return True


class Content:
    """Everything the page shows. Only what can be read is drawn; every entry is listed."""

    def __init__(
        self,
        entries: Sequence[Entry],
        checkpoints: Sequence[Checkpoint],
        verification: Verification,
    ) -> None:
        self.all_entries = list(entries)
        good, self.unreadable = readable(entries)
        self.record = Record(good)
        self.checkpoints = list(checkpoints)
        self.verification = verification
        self.delivery_id = entries[0].delivery_id

    @cached_property
    def opened(self) -> DeliveryOpened | None:
        """The order; None: the delivery never opened."""
        found = self.record.last(DeliveryOpened)
        return found.value if found else None

    @cached_property
    def is_open(self) -> bool:
        """Whether it goes on."""
        return self.record.last(DeliveryClosed) is None

    @cached_property
    def ending(self) -> Ending:
        """The headline."""
        return ending(self.record)

    @cached_property
    def open_gates(self) -> list[GateOpened]:
        """Gates that wait."""
        return open_gates(self.record)

    @cached_property
    def spans(self) -> list[Span]:
        """The timeline."""
        return spans(self.record)

    @cached_property
    def device(self) -> str:
        """The device asked for, and the one quoted."""
        quoted = self.record.last(ScheduleQuoted)
        asked = f"device {self.opened.device}" if self.opened else "device not recorded"
        return f"{asked}, quoted {quoted.value.offer.gpu_kind}" if quoted and quoted.value.offer else asked

    @cached_property
    def planted_fault(self) -> str | None:
        """What the platform was told to plant, if anything."""
        found = self.record.last(FaultPlanted)
        return found.value.fault if found else None

    @cached_property
    def wall_seconds(self) -> float:
        """From the first entry to the last."""
        first, last = (datetime.fromisoformat(self.record.entries[at].recorded_at) for at in (0, -1))
        return (last - first).total_seconds()

    @cached_property
    def contract(self) -> PlantedTruth | None:
        """What was agreed; None: not recorded."""
        found = self.record.last(PlantedTruth)
        return found.value if found else None

    @cached_property
    def jobs(self) -> list[Job]:
        """Every training job in the order they began."""
        starts: dict[str, list[Cited[JobStarted]]] = {}
        for fact in self.record.facts(JobStarted):
            starts.setdefault(fact.value.job_id, []).append(fact)
        ended = {fact.value.job_id: fact for fact in self.record.facts(JobEnded)}
        resolved = {fact.value.flag_id: fact for fact in self.record.facts(FlagResolved)}
        return [
            Job(
                job_id=job_id,
                starts=found,
                probes=[f for f in self.record.facts(ProbeObserved) if f.value.job_id == job_id],
                flags=[f for f in self.record.facts(FlagRaised) if f.value.job_id == job_id],
                resolved=resolved,
                ended=ended.get(job_id),
                margin=self.contract.contract_margin if self.contract else None,
            )
            for job_id, found in starts.items()
        ]

    @cached_property
    def preflights(self) -> list[Cited[PreflightChecked]]:
        """Every configuration tried out, in order."""
        return self.record.facts(PreflightChecked)

    @cached_property
    def looks(self) -> list[Cited[CandidateEvaluated]]:
        """Dev evaluations."""
        return self.record.facts(CandidateEvaluated)

    @cached_property
    def acceptance_tested(self) -> Cited[AcceptanceTested] | None:
        """Counts of the sealed test."""
        return self.record.last(AcceptanceTested)

    @cached_property
    def acceptance_unmeasured(self) -> Cited[AcceptanceUnmeasured] | None:
        """Why there are none."""
        return self.record.last(AcceptanceUnmeasured)

    @cached_property
    def meters(self) -> list[Meter]:
        """All six units; none when the delivery never opened."""
        if self.opened is None:
            return []
        used, reserved, budget = meter.used(self.record), meter.reserved(self.record), self.opened.budget
        return [
            Meter(UNITS[unit], getattr(used, unit), getattr(reserved, unit), getattr(budget, unit))
            for unit in Amounts.model_fields
        ]

    @cached_property
    def gates(self) -> list[Gate]:
        """In the order they opened."""
        decided = {fact.value.gate_id: fact for fact in self.record.facts(GateDecided)}
        refused = self.record.facts(GateDecisionRefused)
        return [
            Gate(
                fact,
                decided.get(fact.value.gate_id),
                [one for one in refused if one.value.gate_id == fact.value.gate_id],
            )
            for fact in self.record.facts(GateOpened)
        ]

    @cached_property
    def verdicts(self) -> list[Cited[StageVerdict]]:
        """Stage verdicts in order."""
        return self.record.verdicts()

    @cached_property
    def not_reached(self) -> list[str]:
        """Stages without a verdict."""
        judged = {verdict.value.stage for verdict in self.verdicts}
        return [stage.value for stage in STAGES if stage not in judged]

    @cached_property
    def numbers(self) -> frozenset[int]:
        """Of the entries that can be linked to."""
        return frozenset(entry.number for entry in self.all_entries)


def flattened(payload: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """A payload as a list of names and values, nothing left out; names of nested values are joined by dots."""
    for name, value in payload.items():
        yield from _flat(name, value)


def _flat(name: str, value: Any) -> Iterator[tuple[str, str]]:
    if isinstance(value, dict) and value:
        for key, inner in value.items():
            yield from _flat(f"{name}.{key}", inner)
    elif isinstance(value, list) and any(isinstance(item, dict | list) for item in value):
        for place, inner in enumerate(value, start=1):
            yield from _flat(f"{name}.{place}", inner)
    elif isinstance(value, list):
        yield name, ", ".join(map(_said, value)) if value else "none"
    else:
        yield name, _said(value)


def _said(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    return "(empty)" if value in ("", {}) else str(value)
