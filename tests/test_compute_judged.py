"""Rendering, pricing, evaluating, registering: what is measured of a job and of its result."""

import functools
import json
import re
import shutil
import sysconfig
from pathlib import Path

import pytest
from test_compute_tiny import job, plane, root

from delivery_plane.compute.local.digests import model_digest, weights_digest
from delivery_plane.compute.plane import ComputePlane, JobSpec, ModelRef, Suite
from delivery_plane.errors import BadInput, ComputeFault
from delivery_plane.hyperparameters import LoraSettings
from delivery_plane.rows import read_rows

pytestmark = pytest.mark.long

LORA = LoraSettings(rank=4, alpha=16)


@functools.cache
def finished(name: str) -> tuple[JobSpec, ModelRef]:
    """A trained job and the model it left."""
    spec = job(name, lora=LORA if "lora" in name else None, steps=120)
    list(plane().train(spec, None))
    return spec, ModelRef(base_path=spec.base_path, checkpoint_path=spec.checkpoint_path(spec.steps))


def items() -> Suite:
    return Suite(items=root() / "items.jsonl")


def test_the_plane_speaks_the_protocol() -> None:
    spoken: ComputePlane = plane()
    assert spoken.name == "local"


def test_weights_that_are_missing_are_a_fault_and_not_drawn_at_random(tmp_path: Path) -> None:
    base = tmp_path / "base"
    shutil.copytree(root() / "base", base)
    config = json.loads((base / "config.json").read_text())
    layers = config["num_hidden_layers"] + 1
    config.update(num_hidden_layers=layers, layer_types=["full_attention"] * layers)
    (base / "config.json").write_text(json.dumps(config))
    with pytest.raises(ComputeFault, match="missing keys"):
        plane().evaluate(ModelRef(base_path=base), items())


def test_a_base_with_pickled_weights_is_refused_and_not_loaded(tmp_path: Path) -> None:
    base = tmp_path / "base"
    shutil.copytree(root() / "base", base)
    (base / "pytorch_model.bin").write_bytes(
        b"cos\nsystem\n(S'touch " + str(tmp_path / "ran").encode() + b"'\ntR."
    )
    with pytest.raises(ComputeFault, match="pickled code"):
        plane().evaluate(ModelRef(base_path=base), items())
    assert not (tmp_path / "ran").exists()


def test_the_base_registered_is_the_base(tmp_path: Path) -> None:
    found = plane().register(ModelRef(base_path=root() / "base"), tmp_path / "out", root() / "items.jsonl")
    assert found.model_digest == found.base_digest == model_digest(root() / "base")
    assert found.tensors == found.tensors_equal_to_base
    assert found.checkpoint_digest_now is None
    assert found.reload_max_logit_difference == found.checkpoint_max_logit_difference == 0


@pytest.mark.parametrize(("name", "tolerance"), [("full", 0.0), ("lora", 1e-4)])
def test_a_registered_model_is_what_was_trained(tmp_path: Path, name: str, tolerance: float) -> None:
    spec, model = finished(name)
    out = tmp_path / "out"
    found = plane().register(model, out, root() / "items.jsonl")
    assert found.reload_max_logit_difference == 0
    assert found.checkpoint_max_logit_difference <= tolerance
    assert found.finite
    assert found.logit_positions > 100
    assert found.checkpoint_digest_now == weights_digest(spec.checkpoint_path(spec.steps))
    assert found.model_digest == model_digest(out) != found.base_digest
    assert found.tensors_equal_to_base < found.tensors
    assert found.template_equal_to_base
    assert found.tokenizer_equal_to_base
    assert set(found.files) == {path.name for path in out.iterdir()}
    assert "generation_config.json" not in found.files
    assert str(spec.base_path) not in (out / "config.json").read_text()
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    # A tied output layer is not written a second time.
    assert found.tensors == 24
    served = plane().evaluate(ModelRef(base_path=spec.base_path, checkpoint_path=out), items())
    assert served.correct == plane().evaluate(model, items()).correct
    # A retried activity finds its own work; another model does not take its place.
    assert plane().register(model, out, root() / "items.jsonl") == found
    with pytest.raises(ComputeFault, match="another model"):
        plane().register(ModelRef(base_path=spec.base_path), out, root() / "items.jsonl")


def test_a_fault_spoils_what_is_loaded_or_merged_and_what_is_registered_shows_it(tmp_path: Path) -> None:
    faults = tmp_path / "faults.py"
    faults.write_text(
        "from delivery_plane.compute.faults.fault import Fault\n"
        "class Lost(Fault):\n"
        "    def load(self, model):\n"
        "        for name, weight in model.named_parameters():\n"
        "            if 'lora_B' in name:\n"
        "                weight.data.zero_()\n"
        "        return model\n"
        "class Bent(Fault):\n"
        "    def merge(self, model):\n"
        "        model.get_input_embeddings().weight.data += 0.1\n"
        "        return model\n"
    )
    _, model = finished("lora")
    sound = plane().register(model, tmp_path / "sound", root() / "items.jsonl")
    lost = plane().register(model, tmp_path / "lost", root() / "items.jsonl", f"{faults}:Lost")
    assert lost.tensors_equal_to_base == lost.tensors > sound.tensors_equal_to_base
    assert lost.checkpoint_digest_now == sound.checkpoint_digest_now
    bent = plane().register(model, tmp_path / "bent", root() / "items.jsonl", f"{faults}:Bent")
    assert bent.checkpoint_max_logit_difference > 0.01 > sound.checkpoint_max_logit_difference
    with pytest.raises(BadInput, match="no such fault"):
        plane().register(model, tmp_path / "none", root() / "items.jsonl", "gremlins")


def test_rendering_counts_what_would_train() -> None:
    found = plane().render(job("rendered"))
    assert found.rows == found.rendered_rows == 96
    assert found.supervised_prompt_tokens == found.rows_without_answer == found.truncated_rows == 0
    assert found.end_of_turn_supervised_share == 1
    # One token a letter, and the end of turn.
    assert found.supervised_tokens == sum(len(row["answer"]) + 1 for row in read_rows(root() / "train.jsonl"))
    assert found.template_digest_train == found.template_digest_serve
    assert found.trainable_parameters == found.total_parameters > 20_000
    assert found.adapted_modules == 0
    assert found.epochs == pytest.approx(40 * 8 / 96)
    assert found.context_tokens == 128
    assert 0 < found.seconds_per_step < 1


def test_rendering_sees_masks_cuts_and_adapters() -> None:
    everything = plane().render(job("all", masking="all"))
    assert everything.supervised_prompt_tokens == everything.prompt_tokens > 0
    cut = plane().render(job("cut", max_tokens_per_row=20))
    assert cut.rows_without_answer == cut.truncated_rows == 96
    assert cut.supervised_tokens == 0
    adapter = plane().render(job("adapter", lora=LORA))
    assert adapter.adapted_modules == 14
    assert 0 < adapter.trainable_parameters < adapter.total_parameters
    some = plane().render(job("some", lora=LORA.model_copy(update={"targets": ("q_proj", "v_proj")})))
    assert some.adapted_modules == 4
    for targets in (("no_such_module",), ("lm_head",)):
        nothing = plane().render(job("nothing", lora=LORA.model_copy(update={"targets": targets})))
        assert nothing.adapted_modules == nothing.trainable_parameters == 0


def test_a_template_that_serves_something_else_is_seen(tmp_path: Path) -> None:
    base = tmp_path / "base"
    shutil.copytree(root() / "base", base)
    template = base / "chat_template.jinja"
    template.write_text(
        template.read_text().replace("{% if add_gen", "{% if true %}{{ ' ' }}{% endif %}{% if add_gen")
    )
    found = plane().render(job("other-template", base_path=base))
    assert found.template_digest_train != found.template_digest_serve


def test_a_template_that_marks_no_answer_is_seen_unless_its_family_is_known(tmp_path: Path) -> None:
    base = tmp_path / "base"
    shutil.copytree(root() / "base", base)
    template = base / "chat_template.jinja"
    template.write_text(re.sub(r"{% (end)?generation %}", "", template.read_text()))
    assert plane().render(job("unmarked", base_path=base)).rows_without_answer == 96
    known = Path(sysconfig.get_path("purelib")) / "trl" / "chat_templates" / "qwen2_5.jinja"
    shutil.copyfile(known, template)
    found = plane().render(job("known-family", base_path=base, max_tokens_per_row=200))
    assert found.rows_without_answer == found.supervised_prompt_tokens == 0
    assert found.end_of_turn_supervised_share == 1
    assert found.template_digest_train == found.template_digest_serve


def test_offers_price_time_and_say_why_not() -> None:
    spec = job("priced")
    rendered = plane().render(spec)
    one, two = plane().offers(spec, rendered, usd_left=1.0, wall_seconds_left=600.0)
    assert one.feasible
    assert one.gpu_kind == plane().price_book == "local-cpu"
    assert one.usd == pytest.approx(plane().usd(one.gpu_seconds))
    assert one.usd < two.usd
    assert not two.feasible
    assert two.why_not
    assert 0 < one.memory_bytes_needed < one.memory_bytes_available
    poor, _ = plane().offers(spec, rendered, usd_left=0.0, wall_seconds_left=0.1)
    assert not poor.feasible
    assert "USD" in poor.why_not
    assert "0 s are left" in poor.why_not
