"""Config: does the job's arithmetic hold on real rendered rows, and does it train what the plan says?"""

from delivery_plane.claims import ConfigClaim, PlanClaim
from delivery_plane.delivery import StageName
from delivery_plane.facts import ConfigRendered, PreflightChecked
from delivery_plane.record import Record
from oracle.rules.rule import Reading, Rule, Visit, claimed, in_force, listed, measured, passed_if

EPOCHS_TOLERANCE_SHARE = 0.01
"""Source: a last batch that is not full, and epochs printed with few decimals, differ by less."""


def _mask(record: Record, visit: Visit) -> Reading:
    rendered = measured(record, visit, ConfigRendered)
    fact = rendered.value
    return passed_if(
        fact.rendered_rows > 0
        and fact.supervised_prompt_tokens == 0
        and fact.supervised_tokens > 0
        and fact.rows_without_answer == 0,
        f"{fact.rendered_rows} rows rendered: {fact.supervised_tokens} supervised tokens, of them "
        f"{fact.supervised_prompt_tokens} of {fact.prompt_tokens} prompt tokens; "
        f"{fact.rows_without_answer} rows without a supervised answer",
        rendered,
    )


def _end_of_turn(record: Record, visit: Visit) -> Reading:
    rendered = measured(record, visit, ConfigRendered)
    share = rendered.value.end_of_turn_supervised_share
    return passed_if(
        share == 1,
        f"the end of the turn is supervised in {share:.1%} of {rendered.value.rendered_rows} rendered rows",
        rendered,
    )


def _templates(record: Record, visit: Visit) -> Reading:
    rendered = measured(record, visit, ConfigRendered)
    train, serve = rendered.value.template_digest_train, rendered.value.template_digest_serve
    return passed_if(
        train == serve, f"template digest in training {train[:12]}, in serving {serve[:12]}", rendered
    )


def _trains(record: Record, visit: Visit) -> Reading:
    rendered = measured(record, visit, ConfigRendered)
    fact = rendered.value
    if fact.mechanism == "lora":
        holds = 0 < fact.trainable_parameters < fact.total_parameters and fact.adapted_modules > 0
    else:
        holds = 0 < fact.trainable_parameters == fact.total_parameters
    return passed_if(
        holds,
        f"{fact.mechanism}: {fact.trainable_parameters} of {fact.total_parameters} parameters would train, "
        f"{fact.adapted_modules} adapted modules",
        rendered,
    )


def _fit(record: Record, visit: Visit) -> Reading:
    rendered = measured(record, visit, ConfigRendered)
    fact = rendered.value
    return passed_if(
        fact.truncated_rows == 0 and fact.max_tokens_per_row <= fact.context_tokens,
        f"{fact.truncated_rows} of {fact.rendered_rows} rows cut at {fact.max_tokens_per_row} tokens; longest row "
        f"{fact.longest_row_tokens}, context {fact.context_tokens} tokens",
        rendered,
    )


def _plan(record: Record, visit: Visit) -> Reading:
    claim, rendered = claimed(record, visit, ConfigClaim), measured(record, visit, ConfigRendered)
    plan = in_force(record, PlanClaim)
    wants_lora = plan.value.mechanism == "lora"
    same_recipe = rendered.value.recipe == plan.value.objective
    recipes = (
        "" if same_recipe else f"; plan says {plan.value.objective}, the recipe is {rendered.value.recipe}"
    )
    return passed_if(
        same_recipe
        and rendered.value.mechanism == plan.value.mechanism
        and (claim.value.lora is not None) == wants_lora,
        f"plan says {plan.value.mechanism}, the rendered job is {rendered.value.mechanism}, "
        f"{f'rank {claim.value.lora.rank}' if claim.value.lora else 'no'} adapter settings claimed, "
        f"{rendered.value.adapted_modules} modules adapted{recipes}",
        claim,
        rendered,
        plan,
    )


def _steps(record: Record, visit: Visit) -> Reading:
    claim, rendered = claimed(record, visit, ConfigClaim), measured(record, visit, ConfigRendered)
    fact = rendered.value
    seen, epochs_rows = fact.steps * fact.batch_rows, fact.epochs * fact.rows
    as_claimed = (fact.steps, fact.batch_rows, fact.max_tokens_per_row) == (
        claim.value.steps,
        claim.value.batch_rows,
        claim.value.max_tokens_per_row,
    )
    return passed_if(
        as_claimed and abs(seen - epochs_rows) <= EPOCHS_TOLERANCE_SHARE * seen,
        f"{fact.steps} steps x {fact.batch_rows} rows = {seen} rows; {fact.epochs:.3f} epochs x {fact.rows} rows = "
        f"{epochs_rows:.0f} rows; the job {'is' if as_claimed else 'is not'} the one claimed",
        claim,
        rendered,
    )


def _preflight(record: Record, visit: Visit) -> Reading:
    rendered = measured(record, visit, ConfigRendered)
    checked = measured(record, visit, PreflightChecked)
    fact = checked.value
    wrong = listed(f"{check.name} (change {check.field}): {check.message}" for check in fact.failed)
    return passed_if(
        bool(fact.checks) and not fact.failed and fact.job_digest == rendered.value.job_digest,
        f"{len(fact.checks) - len(fact.failed)} of {len(fact.checks)} checks held; failed: {wrong}",
        rendered,
        checked,
    )


RULES: tuple[Rule, ...] = (
    Rule(
        name="config.mask_covers_exactly_the_answer",
        stage=StageName.CONFIG,
        blocking=False,
        asks="Is the loss taken on the answer's tokens, on all rows, and on nothing else?",
        flips="A prompt token is supervised, no token is, or a row's answer is not.",
        read=_mask,
    ),
    Rule(
        name="config.end_of_turn_is_supervised",
        stage=StageName.CONFIG,
        blocking=False,
        asks="Does every rendered row teach the model to end its turn?",
        flips="The end-of-turn token is left out of the loss in at least one row.",
        read=_end_of_turn,
    ),
    Rule(
        name="config.templates_match",
        stage=StageName.CONFIG,
        blocking=False,
        asks="Is the chat template in training the one used in serving?",
        flips="The two template digests differ.",
        read=_templates,
    ),
    Rule(
        name="config.something_trains",
        stage=StageName.CONFIG,
        blocking=False,
        asks="Would parameters train, and as many as the mechanism says?",
        flips="No parameter trains, no module is adapted, or full training leaves some out.",
        read=_trains,
    ),
    Rule(
        name="config.rows_fit",
        stage=StageName.CONFIG,
        blocking=False,
        asks="Do all rows fit, untruncated, into a length the model can read?",
        flips="A row is cut, or the length exceeds the model's context.",
        read=_fit,
    ),
    Rule(
        name="config.config_trains_the_plan",
        stage=StageName.CONFIG,
        blocking=False,
        asks="Are recipe and mechanism the plan's, with adapter settings exactly when it needs them?",
        flips="The rendered recipe or mechanism is not the plan's, or adapter settings are missing or unneeded.",
        read=_plan,
    ),
    Rule(
        name="config.steps_make_the_epochs",
        stage=StageName.CONFIG,
        blocking=False,
        asks="Do steps times batch give the rows and epochs, with the numbers claimed?",
        flips="Steps, batch or row length are not those claimed, or do not give the epochs.",
        read=_steps,
    ),
    Rule(
        name="config.preflight_holds",
        stage=StageName.CONFIG,
        blocking=False,
        asks="Does the job, tried out on a few rows before anything is metered, do what it is meant to?",
        flips="One check of the preflight fails, or what was tried is not the job that was rendered.",
        read=_preflight,
        since="0.3.0",
    ),
)
