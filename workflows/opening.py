"""Opening a delivery: its data made ready, the engagement and its planted truth recorded."""

from pathlib import Path

from delivery_plane import __version__
from delivery_plane.compute.faults import known_faults
from delivery_plane.compute.local.digests import model_digest
from delivery_plane.delivery import DeliverySpec, OnFlag
from delivery_plane.entry import sha256
from delivery_plane.facts import DeliveryOpened, FaultPlanted, PlantedTruth
from delivery_plane.files import write_whole
from delivery_plane.rows import file_digest
from scenarios.catalog import load_scenario, materialise
from workflows.platform import Platform
from workflows.visit import bases


def open_delivery(platform: Platform, spec: DeliverySpec) -> None:
    """Lay out the splits, make the seat's identity, store the order, and record what the delivery rests on."""
    scenario = load_scenario(spec.scenario)
    splits, planted = materialise(scenario, platform.home)
    seat = platform.identities.get_or_new(f"seat-{spec.seat}", "seat")
    folder = platform.home.delivery(spec.delivery_id)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    fault, digest = _kept(spec.fault, folder)
    write_whole(folder / "spec.json", spec.model_copy(update={"fault": fault}).model_dump_json().encode())
    offered = bases(spec)
    opened = DeliveryOpened(
        scenario=scenario.name,
        scenario_version=scenario.version,
        scenario_digest=scenario.digest,
        certificate=None,
        brief_digest=sha256(scenario.brief.encode()),
        seat=spec.seat,
        seat_public_key=seat.public_key,
        plane=spec.plane,
        device=spec.device,
        seed=spec.seed,
        bases={name: model_digest(path) for name, (path, _) in offered.items()},
        base_licences={name: licence for name, (_, licence) in offered.items()},
        budget=scenario.budget,
        detector_mode="observe" if spec.on_flag is OnFlag.OBSERVE else "act",
        platform_version=__version__,
    )
    truth = PlantedTruth(
        metric=scenario.contract.metric,
        metric_synonyms=scenario.contract.metric_synonyms,
        contract_margin=scenario.contract.margin,
        alpha=scenario.contract.alpha,
        feasible=scenario.contract.feasible,
        permitted_licences=scenario.contract.permitted_licences,
        planted_rows=planted.rows,
        sealed_items=scenario.splits.sealed,
        sealed_digest=file_digest(splits.sealed),
        dev_digest=file_digest(splits.dev),
        probe_digest=file_digest(splits.probe),
    )
    with platform.ledger.writing(spec.delivery_id) as writer:
        writer.fact(opened)
        writer.fact(truth)
        if spec.fault:
            named = spec.fault if digest is None else Path(spec.fault).name
            writer.fact(FaultPlanted(fault=named, digest=digest))
    platform.ledger.checkpoint(spec.delivery_id)


def _kept(fault: str | None, folder: Path) -> tuple[str | None, str | None]:
    """A fault as the delivery will use it, and its file's digest if it came as one.

    The file is copied, once: what its author changes later must not change a delivery that is under way.
    """
    if fault is None or fault in known_faults():
        return fault, None
    path, _, kind = fault.rpartition(":")
    copy = folder / "fault.py"
    if not copy.exists():
        write_whole(copy, Path(path).read_bytes())
    return f"{copy}:{kind}", file_digest(copy)
