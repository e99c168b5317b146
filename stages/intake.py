"""Intake: profile the customer's data before the seat writes its statement of work."""

from collections import Counter
from collections.abc import Iterable

from delivery_plane.claims import IntakeClaim
from delivery_plane.delivery import StageName
from delivery_plane.facts import DataProfiled, FactBase
from delivery_plane.rows import OVERLAP_NGRAM_WORDS, file_digest, issues, read_rows
from stages.stage import Facts, StageContext


class Intake:
    """Stage 1."""

    name = StageName.INTAKE

    def prepare(self, context: StageContext) -> Iterable[FactBase]:
        """The profile of the drop: rows, digests, licences and every kind of trouble."""
        rows = read_rows(context.splits.public)
        lengths = sorted(len(row["prompt"]) for row in rows)
        overlap = context.sealed_overlap(context.splits.public, OVERLAP_NGRAM_WORDS)
        yield DataProfiled(
            rows=len(rows),
            dataset_digest=file_digest(context.splits.public),
            distinct_answers=len({row["answer"] for row in rows}),
            prompt_characters_p95=lengths[int(0.95 * (len(lengths) - 1))],
            licences=dict(Counter(row["licence"] for row in rows)),
            issues=issues(rows, context.scenario.contract.permitted_licences, overlap),
            overlap_ngram=OVERLAP_NGRAM_WORDS,
        )

    def execute(self, context: StageContext, claim: IntakeClaim) -> Facts:  # noqa: ARG002 - a claim alone
        """Nothing runs: the claim is judged against the profile."""
        yield from ()
