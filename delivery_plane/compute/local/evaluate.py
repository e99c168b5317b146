"""Exact match on a split, by lm-eval over greedy answers. Caches nothing and compares no models."""

import logging
import time
from typing import Any

import torch
from datasets import Dataset
from lm_eval.evaluator import simple_evaluate
from lm_eval.models.huggingface import HFLM
from lm_eval.tasks import TaskManager

from delivery_plane.compute.local.decoding import BATCH, SPARE_TOKENS, decoding_digest
from delivery_plane.compute.local.digests import file_digest, reference_digest, tokenizer_digest
from delivery_plane.compute.local.models import (
    context_tokens,
    greedy,
    load_model,
    load_tokenizer,
    use_device,
)
from delivery_plane.compute.local.tokens import serving_prompts
from delivery_plane.compute.plane import ModelRef, Scored, Suite
from delivery_plane.errors import ComputeFault
from delivery_plane.rows import read_rows
from delivery_plane.scenario import Row

TASK = "exact_match_split"


def score(model: ModelRef, suite: Suite, device_name: str) -> Scored:
    """Every item answered and judged, in the suite's order."""
    items = suite.items
    started = time.perf_counter()
    device = use_device(device_name)
    rows = read_rows(items)
    tokenizer = load_tokenizer(model.base_path)
    language_model = _Greedy(load_model(model, device), tokenizer)
    results = simple_evaluate(
        model=language_model,
        tasks=[_task(rows, tokenizer.eos_token, longest_answer(tokenizer, rows))],
        # The default task index takes twenty seconds to read, and none of its tasks is wanted.
        task_manager=TaskManager(include_defaults=False),
        apply_chat_template=True,
        log_samples=True,
        bootstrap_iters=0,
    )
    samples = sorted(results["samples"][TASK], key=lambda sample: sample["doc_id"])
    if [sample["doc_id"] for sample in samples] != list(range(len(rows))):
        raise ComputeFault(f"{items}: {len(samples)} of {len(rows)} items were scored")
    return Scored(
        model_digest=reference_digest(model),
        items_digest=file_digest(items),
        metric=suite.metric,
        indices=suite.indices,
        answers=tuple(sample["filtered_resps"][0] for sample in samples),
        correct=tuple(sample["exact_match"] == 1.0 for sample in samples),
        empty_answers=sum(not sample["filtered_resps"][0].strip() for sample in samples),
        generated_tokens=language_model.generated_tokens,
        device_seconds=time.perf_counter() - started,
        decoding_digest=decoding_digest(),
        template_digest=tokenizer_digest(model.base_path),
    )


def answers(model: ModelRef, prompts: list[str], max_new_tokens: int, device_name: str) -> list[str]:
    """Greedy answers one by one, each in a batch of its own: the very shapes that serving uses."""
    device = use_device(device_name)
    tokenizer = load_tokenizer(model.base_path)
    loaded = load_model(model, device)
    found = []
    for ids in serving_prompts(tokenizer, prompts):
        tokens = torch.tensor([ids], device=device)
        new = greedy(loaded, tokenizer, tokens, torch.ones_like(tokens), max_new_tokens)
        found.append(tokenizer.decode(new[0], skip_special_tokens=True).strip())
    return found


def longest_answer(tokenizer: Any, rows: list[Row]) -> int:
    """New tokens to allow: the longest right answer, its end of turn, and a few to spare."""
    encoded = tokenizer([row["answer"] for row in rows], add_special_tokens=False)["input_ids"]
    return max(len(ids) for ids in encoded) + 1 + SPARE_TOKENS


class _Greedy(HFLM):  # type: ignore[misc,unused-ignore]
    """lm-eval's model, decoding as this platform does, and counting what it generates."""

    def __init__(self, model: Any, tokenizer: Any) -> None:
        super().__init__(
            pretrained=model,
            tokenizer=tokenizer,
            backend="causal",
            batch_size=BATCH,
            max_length=context_tokens(model),
            device=str(model.device),
        )
        self.generated_tokens = 0

    def _model_generate(
        self, context: Any, max_length: int, stop: list[str], attention_mask: Any, **_: Any
    ) -> Any:
        # lm-eval would decode the tail of every row after every token to look for the stop string. Here that
        # string is the end-of-turn token, at which generation ends by itself.
        if stop != [self.tokenizer.eos_token]:
            raise ComputeFault(f"decoding stops at {self.tokenizer.eos_token}, the task asks for {stop}")
        length = context.shape[1]
        new = greedy(self.model, self.tokenizer, context, attention_mask, max_length - length)
        self.generated_tokens += int((new != self.tokenizer.pad_token_id).sum())
        return torch.cat([context, new], dim=1)


def _task(rows: list[Row], end_of_turn: str, max_new_tokens: int) -> dict[str, Any]:
    logging.getLogger("lm_eval").setLevel(logging.ERROR)
    return {
        "task": TASK,
        # In memory: the loader for JSON files would copy each split into a cache below the home folder.
        "custom_dataset": lambda **_: {
            "test": Dataset.from_dict(
                {"prompt": [row["prompt"] for row in rows], "answer": [row["answer"] for row in rows]}
            )
        },
        "test_split": "test",
        "output_type": "generate_until",
        # Functions, not templates: a prompt may hold what a template engine would act on.
        "doc_to_text": lambda doc: doc["prompt"],
        "doc_to_target": lambda doc: doc["answer"],
        "process_results": lambda doc, found: {
            "exact_match": float(found[0].strip() == doc["answer"].strip())
        },
        "target_delimiter": "",
        "num_fewshot": 0,
        "generation_kwargs": {"until": [end_of_turn], "max_gen_toks": max_new_tokens, "do_sample": False},
        "metric_list": [{"metric": "exact_match", "aggregation": "mean", "higher_is_better": True}],
    }
