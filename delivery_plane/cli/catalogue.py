"""`scenarios`: what there is to deliver."""

from cyclopts import App
from rich.table import Table

from delivery_plane.cli.shared import out, print_json, say
from delivery_plane.scenario import Scenario
from scenarios.catalog import expected, load_scenario, names
from scenarios.data import data_digest, where_from

scenarios = App(name="scenarios", help="The catalogue of scenarios.")


@scenarios.command(name="list")
def list_(*, json: bool = False) -> int:
    """Every scenario that ships with the package.

    Parameters
    ----------
    json
        Print a JSON list.
    """
    found = [load_scenario(name) for name in names()]
    if json:
        print_json([_fields(scenario.name) for scenario in found])
        return 0
    table = Table(box=None, pad_edge=False)
    for column in ("name", "version", "certificate", "data", "title"):
        table.add_column(column)
    for scenario in found:
        data = "needs data" if _needs_data(scenario) else "found" if scenario.data else "ships"
        table.add_row(scenario.name, str(scenario.version), "uncertified", data, scenario.title)
    out.print(table)
    return 0


@scenarios.command
def show(name: str, /, *, json: bool = False) -> int:
    """One scenario: brief, contract, budget and what each seat must come to.

    Parameters
    ----------
    json
        Print a JSON object.
    """
    fields = _fields(name)
    if json:
        print_json(fields)
        return 0
    scenario = load_scenario(name)
    say(scenario.brief)
    contract, budget = scenario.contract, scenario.budget
    say(f"contract: {contract.metric} at least {contract.margin:.0%} above the base, alpha {contract.alpha}")
    say("budget: " + ", ".join(f"{v:g} {unit}" for unit, v in budget.model_dump().items()))
    if scenario.data and _needs_data(scenario):
        say(f"needs data: give {where_from(scenario.data)}")
    say("bases: " + ", ".join(f"{base.name} ({base.licence})" for base in scenario.bases))
    for seat, declared in expected(scenario).items():
        say(f"{seat}: {declared.outcome}, caught by {declared.caught_by}")
    return 0


def _fields(name: str) -> dict[str, object]:
    scenario = load_scenario(name)
    return {
        **scenario.model_dump(mode="json", exclude={"folder", "bases"}),
        "certificate": "uncertified",
        "needs_data": _needs_data(scenario),
        "bases": [base.name for base in scenario.bases],
        "expected": {seat: declared.model_dump(mode="json") for seat, declared in expected(scenario).items()},
    }


def _needs_data(scenario: Scenario) -> bool:
    """Whether data that does not ship is missing."""
    return scenario.data is not None and data_digest(scenario.data) is None
