"""The mid-run look at a training job: can it still become what was promised? It flags, and never decides payment.

Everything about detection lies behind `look`. This first version reads the paired probe answers at three
points of the run and asks whether the uplift so far could still be half of what the contract promises.
"""

from dataclasses import dataclass

from delivery_plane.facts import ProbeObserved
from delivery_plane.verdicts import Flag
from oracle.stats import upper_bound


@dataclass(frozen=True)
class DetectorPolicy:
    """The detector's numbers."""

    sixteenths: int = 16
    """Parts a run is cut into, one probe after each. Source: `delivery_plane.compute.plane.PROBES`."""

    looks: tuple[int, ...] = (4, 8, 12)
    """Probes at which the paired answers are judged. Source: answers are generated, which costs 5 to 20
    times a loss, so at most 4 looks a run; the fourth would be the end, where the dev split takes over."""

    level: float = 0.99
    """Confidence of the one-sided bound at each look. Source: the goal of at most 1% false alarms for a run
    whose uplift is exactly at the threshold; for runs that reach the margin the tests enumerate far less."""

    margin_share: float = 0.5
    """Share of the contract margin that the bound must still reach. Source: the definition of a run that
    trains but does not learn ("Trains but Doesn't Learn", arXiv 2609.25237, as this project defines its
    truth: the 95% interval of uplift lies below half the contract margin)."""


POLICY = DetectorPolicy()


def look(probe: ProbeObserved, margin: float) -> Flag | None:
    """What the detector sees at one probe; None where it does not look.

    `margin`: the contract's uplift, as a share. A loss that is not finite raises the flag at any probe;
    otherwise it is raised at the looks of `POLICY` when the upper bound of the paired probe uplift lies
    below `margin_share` of the margin. Raises ValueError when the probe's counts are no paired table.
    """
    finite = probe.probe_loss is not None
    if finite and not _is_look(probe):
        return None
    ties = probe.probe_items - probe.wins - probe.losses
    bound = upper_bound(probe.wins, probe.losses, ties, POLICY.level)
    threshold = POLICY.margin_share * margin
    counts = f"{probe.wins} wins, {probe.losses} losses of {probe.probe_items} probe items"
    where = f"step {probe.step} ({probe.budget_fraction:.0%} of the run)"
    if finite:
        side = "below" if bound < threshold else "at or above"
        message = (
            f"{where}: {counts}: uplift is at most {bound:.3f} ({POLICY.level:.0%} confidence), "
            f"{side} {threshold:.3f}, half the contract margin"
        )
    else:
        message = f"{where}: probe loss is not finite; {counts}"
    return Flag(
        raised=not finite or bound < threshold,
        score=bound,
        threshold=threshold,
        items=probe.probe_items,
        message=message,
    )


def _is_look(probe: ProbeObserved) -> bool:
    """Whether this probe is one of the policy's: its step is a sixteenth of the run, rounded to a whole step."""
    if probe.budget_fraction <= 0:
        return False
    steps = probe.step / probe.budget_fraction
    # Half a step of rounding; runs have at least one step per sixteenth, so neighbours are further away.
    return any(abs(probe.step - steps * k / POLICY.sixteenths) <= 0.5 + 1e-6 for k in POLICY.looks)
