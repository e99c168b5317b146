"""Which rules judge which stage, in delivery order. Explicit: no registry, no discovery."""

from collections.abc import Mapping

from delivery_plane.delivery import StageName
from oracle.rules import card, config, cost, deploy, intake, plan, register, schedule, train
from oracle.rules import eval as eval_rules
from oracle.rules.rule import Rule

RULES: Mapping[StageName, tuple[Rule, ...]] = {
    StageName.INTAKE: intake.RULES,
    StageName.PLAN: plan.RULES,
    StageName.CONFIG: config.RULES,
    StageName.SCHEDULE: schedule.RULES,
    StageName.TRAIN: train.RULES,
    StageName.EVAL: eval_rules.RULES,
    StageName.REGISTER: register.RULES,
    StageName.DEPLOY: deploy.RULES,
    StageName.COST: cost.RULES,
    StageName.CARD: card.RULES,
}
