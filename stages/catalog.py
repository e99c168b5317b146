"""The ten stages by name, in order."""

from delivery_plane.delivery import StageName
from stages.card import Card
from stages.config import Config
from stages.cost import Cost
from stages.deploy import Deploy
from stages.eval import Eval
from stages.intake import Intake
from stages.plan import Plan
from stages.register import Register
from stages.schedule import Schedule
from stages.stage import Stage
from stages.train import Train

STAGE_OF: dict[StageName, Stage] = {
    stage.name: stage
    for stage in (
        Intake(),
        Plan(),
        Config(),
        Schedule(),
        Train(),
        Eval(),
        Register(),
        Deploy(),
        Cost(),
        Card(),
    )
}
