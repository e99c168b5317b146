"""Rendering, pricing, evaluating, registering: what is measured of a job and of its result."""

import functools
import json
import re
import shutil
import sysconfig
from pathlib import Path

import pytest
from test_compute_tiny import job, plane, root

from delivery_plane.compute.local.children import call_in_child
from delivery_plane.compute.local.digests import model_digest, weights_digest
from delivery_plane.compute.local.plane import LocalPlane
from delivery_plane.compute.plane import ComputePlane, JobSpec, ModelRef
from delivery_plane.errors import ComputeFault
from delivery_plane.hyperparameters import LoraSettings
from delivery_plane.rows import read_rows

LORA = LoraSettings(rank=4, alpha=16)


@functools.cache
def finished(name: str) -> tuple[JobSpec, ModelRef]:
    """A trained job and the model it left."""
    spec = job(name, lora=LORA if "lora" in name else None, steps=120)
    list(plane().train(spec, None))
    return spec, ModelRef(base_path=spec.base_path, checkpoint_path=spec.checkpoint_path(spec.steps))


def test_the_plane_speaks_the_protocol() -> None:
    spoken: ComputePlane = plane()
    assert spoken.name == "local"


def answers_one_by_one(base: str, checkpoint: str, items: str) -> list[str]:
    """Greedy answers by plain `generate`, without any of this project's code. Runs in a child."""
    import json

    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(base)
    model = AutoModelForCausalLM.from_pretrained(checkpoint)
    found = []
    for line in Path(items).read_text().splitlines():
        messages = [{"role": "user", "content": json.loads(line)["prompt"]}]
        text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        given = tokenizer(text, return_tensors="pt", add_special_tokens=False)
        with torch.no_grad():
            new = model.generate(**given, do_sample=False, max_new_tokens=12)
        found.append(tokenizer.decode(new[0, given["input_ids"].shape[1] :], skip_special_tokens=True))
    return found


def test_evaluation_judges_each_item_in_order_as_plain_generation_does() -> None:
    spec, model = finished("full")
    scored = plane().evaluate(model, root() / "items.jsonl")
    direct = call_in_child(
        "direct answers",
        "test_compute_judged:answers_one_by_one",
        str(spec.base_path),
        str(model.checkpoint_path),
        str(root() / "items.jsonl"),
        logs=root() / "logs",
    )
    rows = read_rows(root() / "items.jsonl")
    assert scored.correct == tuple(a.strip() == row["answer"] for a, row in zip(direct, rows, strict=True))
    assert 0 < sum(scored.correct) < len(rows)
    assert scored.empty_answers == sum(not answer.strip() for answer in direct)
    assert scored.generated_tokens > 0
    assert scored.model_digest == weights_digest(spec.checkpoint_path(spec.steps))


def test_a_candidate_brings_neither_tokenizer_nor_template_nor_decoding(tmp_path: Path) -> None:
    _, model = finished("full")
    assert model.checkpoint_path is not None
    tampered = tmp_path / "tampered"
    shutil.copytree(model.checkpoint_path, tampered)
    (tampered / "chat_template.jinja").write_text("the answer is red")
    (tampered / "generation_config.json").write_text('{"forced_eos_token_id": 5, "min_new_tokens": 9}')
    config = json.loads((tampered / "config.json").read_text())
    (tampered / "config.json").write_text(json.dumps({**config, "rope_theta": 1.0, "rms_norm_eps": 1.0}))
    honest = plane().evaluate(model, root() / "items.jsonl")
    other = plane().evaluate(
        ModelRef(base_path=model.base_path, checkpoint_path=tampered), root() / "items.jsonl"
    )
    assert other.model_dump(exclude={"device_seconds"}) == honest.model_dump(exclude={"device_seconds"})


def test_an_equal_evaluation_is_reused_and_a_changed_one_is_not(tmp_path: Path) -> None:
    fresh = LocalPlane(cache=tmp_path / "cache", logs=tmp_path / "logs", device="cpu")
    _, model = finished("lora")
    items = tmp_path / "items.jsonl"
    shutil.copyfile(root() / "items.jsonl", items)
    first = fresh.evaluate(model, items, cached=True)
    ran = len(list((tmp_path / "logs").iterdir()))
    assert fresh.evaluate(model, items, cached=True) == first
    assert len(list((tmp_path / "logs").iterdir())) == ran
    items.write_text("".join(items.read_text().splitlines(keepends=True)[1:]))
    assert fresh.evaluate(model, items, cached=True).correct == first.correct[1:]
    assert len(list((tmp_path / "logs").iterdir())) == ran + 1
    base = fresh.evaluate(ModelRef(base_path=model.base_path), items, cached=True)
    assert (
        len({first.model_digest, base.model_digest, weights_digest(Path(model.checkpoint_path or ""))}) == 3
    )
    assert base.decoding_digest == first.decoding_digest
    assert base.template_digest == first.template_digest


def test_weights_that_are_missing_are_a_fault_and_not_drawn_at_random(tmp_path: Path) -> None:
    base = tmp_path / "base"
    shutil.copytree(root() / "base", base)
    config = json.loads((base / "config.json").read_text())
    layers = config["num_hidden_layers"] + 1
    config.update(num_hidden_layers=layers, layer_types=["full_attention"] * layers)
    (base / "config.json").write_text(json.dumps(config))
    with pytest.raises(ComputeFault, match="missing keys"):
        plane().evaluate(ModelRef(base_path=base), root() / "items.jsonl")


def test_a_base_with_pickled_weights_is_refused_and_not_loaded(tmp_path: Path) -> None:
    base = tmp_path / "base"
    shutil.copytree(root() / "base", base)
    (base / "pytorch_model.bin").write_bytes(
        b"cos\nsystem\n(S'touch " + str(tmp_path / "ran").encode() + b"'\ntR."
    )
    with pytest.raises(ComputeFault, match="pickled code"):
        plane().evaluate(ModelRef(base_path=base), root() / "items.jsonl")
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
    served = plane().evaluate(ModelRef(base_path=spec.base_path, checkpoint_path=out), root() / "items.jsonl")
    assert served.correct == plane().evaluate(model, root() / "items.jsonl").correct
    # A retried activity finds its own work; another model does not take its place.
    assert plane().register(model, out, root() / "items.jsonl") == found
    with pytest.raises(ComputeFault, match="another model"):
        plane().register(ModelRef(base_path=spec.base_path), out, root() / "items.jsonl")


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
