"""Planted faults by name, or from a file outside the package: which there are, and making one. None is defined here."""

import ast
import importlib
import importlib.util
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from delivery_plane.compute.faults.fault import Fault
from delivery_plane.entry import read_text, sha256
from delivery_plane.errors import BadInput, attributed, one_line

FAULTS: Mapping[str, str] = MappingProxyType(
    {
        "label-shuffle": "data:LabelShuffle",
        "answers-paired-with-wrong-prompts": "data:AnswersMispaired",
        "blank-rows-from-unresolved-placeholder": "data:BlankRows",
        "few-unique-rows-memorised": "data:FewRowsMemorised",
        "preference-columns-swapped": "data:PreferencesSwapped",
        "preference-labels-mostly-noise": "data:PreferencesNoisy",
        "labels-all-masked-marker-miss": "tokenise:MarkerNeverMatches",
        "marker-tokenised-differently-in-some-rows": "tokenise:MarkerMissedInSomeRows",
        "pad-id-inside-response-marker": "tokenise:PadInsideMarker",
        "assistant-mask-all-zero-without-tags": "tokenise:NoGenerationTags",
        "mask-falls-back-to-all-ones": "tokenise:MaskAllOnes",
        "mask-column-dropped-by-packing": "tokenise:MaskLostInPacking",
        "packed-answer-ranges-misaligned": "tokenise:AnswerRangesMisaligned",
        "header-mask-one-token-too-long": "tokenise:HeaderOneTokenTooLong",
        "completion-lost-to-truncation": "tokenise:CompletionLost",
        "answer-tail-truncated": "tokenise:AnswerTailTruncated",
        "eos-absent-from-targets": "tokenise:NoEndOfTurn",
        "pad-equals-eos-masked": "tokenise:PadEqualsEnd",
        "pad-tokens-in-the-loss": "tokenise:PadsInTheLoss",
        "trained-on-raw-served-as-chat": "tokenise:TrainedOnRawText",
        "packing-lets-examples-see-each-other": "tokenise:DocumentsSeeEachOther",
        "only-one-side-truncated": "tokenise:OneSideTruncated",
        "pairs-identical-after-the-cut": "tokenise:PairsIdentical",
        "mask-column-dropped-by-kernel-flag": "configure:MaskColumnDropped",
        "target-modules-silently-unmatched": "configure:TargetsUnmatched",
        "adapter-coverage-too-thin": "configure:CoverageTooThin",
        "adapter-loaded-frozen-for-continued-training": "configure:AdapterFrozen",
        "checkpointing-cuts-input-gradients": "configure:InputGradientsCut",
        "optimizer-holds-stale-parameters": "configure:OptimizerStale",
        "base-left-trainable-but-adapter-saved": "configure:BaseLeftTrainable",
        "weight-decay-pulls-the-adapter-to-the-base": "configure:WeightDecayPulls",
        "adapter-learning-rate-a-magnitude-too-low": "configure:RateTooLow",
        "schedule-stepped-once-per-process": "configure:ScheduleSpentEarly",
        "learning-rate-never-leaves-zero": "configure:RateNeverRises",
        "reward-always-constant": "configure:RewardConstant",
        "labels-shifted-twice": "train:LabelsShiftedTwice",
        "labels-not-shifted": "train:LabelsNotShifted",
        "adapter-not-used-by-the-forward": "train:AdapterNotUsed",
        "one-tower-without-gradients": "train:FirstBlockWithoutGradient",
        "fp16-overflow-skips-every-step": "train:EveryStepSkipped",
        "most-steps-skipped-schedule-keeps-going": "train:MostStepsSkipped",
        "reward-attached-to-the-wrong-completion": "reward:RewardMisplaced",
        "reward-signature-changed": "reward:RewardNeverRight",
        "spurious-reward-looks-like-a-gain": "reward:RewardByCoin",
        "length-or-style-reward-hacked": "reward:RewardByLength",
        "training-rewrites-the-saved-template": "checkpoint:TemplateRewritten",
        "empty-adapter-from-double-filtering": "checkpoint:AdapterEmpty",
        "one-shard-saved-as-the-model": "checkpoint:OneShardSaved",
        "adapter-keys-renamed-and-skipped": "serve:AdapterSkipped",
        "reload-gives-random-adapter": "serve:AdapterRandom",
        "compiled-prefix-makes-keys-miss": "serve:KeysPrefixed",
        "merge-applied-twice": "serve:MergedTwice",
        "merge-rounds-into-low-bit-base": "serve:MergedIntoLowBits",
        "bos-doubled-at-inference": "serve:StartTokenDoubled",
        "train-eval-template-mismatch": "serve:TemplateMismatch",
    }
)
"""Name to module of this package and class. Named, not imported: a fault may need libraries that only a child loads."""


def known_faults() -> tuple[str, ...]:
    """Names of the faults that ship with the package."""
    return tuple(FAULTS)


def check_fault(name: str | None) -> None:
    """Raise BadInput if `name` is neither a known fault nor a class defined in an existing FILE.py."""
    if name is None or name in FAULTS:
        return
    path, kind = _outside(name)
    try:
        # Read, not run: the process that takes an order is not the one the fault is for.
        defined = [node.name for node in ast.parse(read_text(path, "a Python file")).body
                   if isinstance(node, ast.ClassDef)]  # fmt: skip
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise BadInput(f"{path}: not Python ({one_line(error, 200)}); mend the file") from None
    if kind not in defined:
        has = one_line(", ".join(defined), 200) or "none"
        raise BadInput(f"{path}: defines no class {kind[:80]!r}; it has: {has}")


def fault_digest(name: str | None) -> str | None:
    """Digest of the file of a fault from outside the package; None for any other. Raises BadInput."""
    if name is None or name in FAULTS:
        return None
    return sha256(read_text(_outside(name)[0], "a Python file").encode())


def planted(name: str | None, seed: int) -> Fault:
    """The fault to call hooks on; one that changes nothing without a name. Raises BadInput."""
    if name is None:
        return Fault(seed)
    check_fault(name)
    if name in FAULTS:
        module, _, kind = FAULTS[name].partition(":")
        return getattr(importlib.import_module(f"{__name__}.{module}"), kind)(seed)
    path, kind = _outside(name)
    spec = importlib.util.spec_from_file_location(f"fault_{sha256(bytes(path))[:12]}", path)
    assert spec
    assert spec.loader
    found = importlib.util.module_from_spec(spec)
    with attributed(BadInput, f"{path}: cannot be loaded"):
        spec.loader.exec_module(found)
        made = getattr(found, kind, None)
        if not (isinstance(made, type) and issubclass(made, Fault)):
            raise BadInput(f"{path}: {kind} is no subclass of delivery_plane.compute.faults.fault.Fault")
        return made(seed)


def _outside(name: str) -> tuple[Path, str]:
    """File and class of a name from outside the package. Raises BadInput for what has no such form."""
    path, separator, kind = name.rpartition(":")
    if not separator or not path.endswith(".py") or "\0" in path or not kind.isidentifier():
        raise BadInput(
            f"fault {name[:80]!r}: no such fault; known: {', '.join(known_faults())}; or give FILE.py:Name"
        )
    return Path(path), kind
