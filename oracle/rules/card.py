"""Card: is every number supported, is the metadata complete, are the limits disclosed, does it name what it is of?"""

from delivery_plane.claims import CardClaim, PlanClaim
from delivery_plane.delivery import StageName
from delivery_plane.facts import ArtifactRegistered, CardChecked
from delivery_plane.record import Record
from oracle.rules.rule import Reading, Rule, Visit, claimed, in_force, known, listed, measured, passed_if

FEWEST_NUMBERS = 3
"""Source: chosen; a card states at least what was measured, how much better that is, and on how many items."""


def _numbers(record: Record, visit: Visit) -> Reading:
    checked = measured(record, visit, CardChecked)
    fact = checked.value
    return passed_if(
        fact.numbers >= FEWEST_NUMBERS and not fact.unsupported_numbers and not fact.uncited_numbers,
        f"{fact.numbers} cited numbers (at least {FEWEST_NUMBERS}); not supported by the fact they cite: "
        f"{listed(fact.unsupported_numbers)}; without citation: {listed(fact.uncited_numbers)}",
        checked,
    )


def _metadata(record: Record, visit: Visit) -> Reading:
    checked, plan = measured(record, visit, CardChecked), in_force(record, PlanClaim)
    metadata = checked.value.metadata
    base, licence = metadata.get("base_model", "").strip(), metadata.get("license", "").strip()
    return passed_if(
        not checked.value.missing_metadata and base == plan.value.base and bool(licence),
        f"{len(metadata)} metadata fields, missing: {listed(checked.value.missing_metadata)}; base_model "
        f"`{base}`, planned `{plan.value.base}`; license `{licence}`",
        checked,
        plan,
    )


def _limits(record: Record, visit: Visit) -> Reading:
    checked = measured(record, visit, CardChecked)
    missing = checked.value.missing_sections
    return passed_if(not missing, f"{len(missing)} sections missing: {listed(missing)}", checked)


def _names(record: Record, visit: Visit) -> Reading:
    claim, artifact = claimed(record, visit, CardClaim), known(record, ArtifactRegistered)
    checked = measured(record, visit, CardChecked)
    name, digest = artifact.value.artifact_name, artifact.value.model_digest
    text = claim.value.markdown.casefold()
    return passed_if(
        name.casefold() in text or digest in text,
        f"the card of {len(text)} characters {'names' if name.casefold() in text else 'does not name'} `{name}` and "
        f"{'gives' if digest in text else 'does not give'} its digest {digest[:12]}; one of the two is enough",
        claim,
        artifact,
        checked,
    )


RULES: tuple[Rule, ...] = (
    Rule(
        name="card.numbers_are_supported",
        stage=StageName.CARD,
        blocking=False,
        asks="Does every number on the card cite a fact that says the same?",
        flips="A number contradicts the fact it cites, carries no citation, or there are hardly any.",
        read=_numbers,
    ),
    Rule(
        name="card.metadata_is_complete",
        stage=StageName.CARD,
        blocking=False,
        asks="Is the front matter complete, with the planned base and a licence?",
        flips="A field is missing, or the base named is not the plan's.",
        read=_metadata,
    ),
    Rule(
        name="card.limits_are_disclosed",
        stage=StageName.CARD,
        blocking=False,
        asks="Does the card have all its sections, limits among them?",
        flips="A section is missing.",
        read=_limits,
    ),
    Rule(
        name="card.names_the_delivered",
        stage=StageName.CARD,
        blocking=False,
        asks="Does the card say which artifact it describes?",
        flips="Neither the artifact's name nor its digest is on the card.",
        read=_names,
    ),
)
