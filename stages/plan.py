"""Plan: run the selectors over the customer's rows and check what can be checked without training."""

from collections.abc import Iterable

from delivery_plane import meter
from delivery_plane.claims import AbortCriterion, IntakeClaim, PlanClaim
from delivery_plane.delivery import StageName
from delivery_plane.errors import LedgerFault
from delivery_plane.facts import DataProfiled, DataSelected, DeliveryOpened, FactBase, PlanChecked
from delivery_plane.rows import issues, read_rows, select, write_rows
from stages.jobs import BASE, dataset_path, parent_of, rows_to_train
from stages.stage import Facts, StageContext

KNOWN_MEASURES = (
    "train_loss",
    "probe_loss",
    "probe_accuracy",
    "probe_uplift",
    "grad_norm",
    "usd",
    "gpu_seconds",
)
"""What the platform records at every probe, so an abort criterion on it can be checked by machine."""


class Plan:
    """Stage 2."""

    name = StageName.PLAN

    def prepare(self, context: StageContext) -> Iterable[FactBase]:  # noqa: ARG002 - nothing to prepare
        """The profile of intake is what the seat plans from."""
        return ()

    def execute(self, context: StageContext, claim: PlanClaim) -> Facts:
        """Select the training rows; check base, abort criteria and dev-evaluation plan."""
        rows = read_rows(context.splits.public)
        profile = context.record.last(DataProfiled)
        intake = context.record.claim(IntakeClaim)
        opened = context.record.last(DeliveryOpened)
        if not (profile and intake and opened):
            raise LedgerFault("plan needs the intake on record")
        overlap = profile.value.issues["sealed_overlap"].row_ids
        # The seat's own statement of what is licensed drives its selector; the contract judges the rest.
        kept, removed = select(rows, claim.selectors, intake.value.permitted_licences, overlap)
        folder = context.folder / "datasets"
        digest = write_rows(folder / "selected.jsonl", kept)
        (folder / "selected.jsonl").replace(dataset_path(context, digest))
        selected = DataSelected(
            rows_in=len(rows),
            rows_out=len(kept),
            removed=removed,
            dataset_digest=digest,
            remaining=issues(kept, context.scenario.contract.permitted_licences, overlap),
            preference_rows=sum("rejected" in row for row in kept),
        )
        yield selected
        yield PlanChecked(
            base=claim.base,
            base_digest=opened.value.bases.get(claim.base),
            base_licence=opened.value.base_licences.get(claim.base),
            abort_criteria=len(claim.abort_criteria),
            uncheckable_criteria=tuple(
                f"{criterion.measure} at {criterion.at_fraction:g}"
                for criterion in claim.abort_criteria
                if not checkable(criterion)
            ),
            known_measures=KNOWN_MEASURES,
            dev_evaluations_planned=claim.dev_evaluations,
            dev_evaluations_left=meter.left(context.record).dev_evaluations,
            selection_split=claim.selection_split,
            parent=claim.parent,
            parent_known=claim.parent == BASE or parent_of(context, claim) is not None,
            rows_for_objective=rows_to_train(selected, claim),
        )


def checkable(criterion: AbortCriterion) -> bool:
    """Whether the platform can evaluate a criterion from what it records at probes."""
    return criterion.measure in KNOWN_MEASURES and 0 < criterion.at_fraction <= 1
