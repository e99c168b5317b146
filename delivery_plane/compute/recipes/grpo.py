"""Group relative policy optimisation: TRL's trainer and loss, on answers played against an environment."""

from typing import Any

import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer
from trl.trainer.utils import RepeatSampler

from delivery_plane.compute.environments import environment
from delivery_plane.compute.faults.fault import Fault
from delivery_plane.compute.local.tokens import asking
from delivery_plane.compute.plane import JobSpec
from delivery_plane.compute.recipes.episodes import Episode, play
from delivery_plane.compute.recipes.governed import Governed, shared_settings
from delivery_plane.scenario import Row


class Grpo(Governed, GRPOTrainer):  # type: ignore[misc,unused-ignore]
    """TRL's trainer, whose rollouts are this platform's episodes."""

    at_hand: list[int]
    """Places of the rows whose answers are being sampled, one for each answer."""

    def _get_train_sampler(self, dataset: Dataset | None = None) -> "RowOrder":
        return RowOrder.like(super()._get_train_sampler(dataset))

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        self.at_hand = [example["place"] for example in inputs]
        batch = super()._generate_and_score_completions(inputs)
        return self.fault.collate(batch, self.processing_class)


class RowOrder(RepeatSampler):  # type: ignore[misc,unused-ignore]
    """TRL's order of rows, which a resumed job finds again in any epoch; TRL's own starts over with the first's."""

    @classmethod
    def like(cls, sampler: RepeatSampler) -> "RowOrder":
        """The same order."""
        names = ("data_source", "mini_repeat_count", "batch_size", "repeat_count", "shuffle", "seed")
        return cls(**{name: getattr(sampler, name) for name in names})

    def set_epoch(self, epoch: int) -> None:
        """Be about to begin an epoch, whichever were gone through before."""
        self.generator.manual_seed(self.seed)
        for _ in range(epoch):
            torch.randperm(self.num_samples, generator=self.generator)


def grpo_trainer(
    job: JobSpec,
    model: Any,
    reference: Any,
    tokenizer: Any,
    rows: list[Row],
    fault: Fault,
    callbacks: list[Any],
) -> Grpo:
    """The trainer over prompts. Held to `reference` if `beta` is set, or to the model without its adapter."""
    assert job.grpo
    settings = job.grpo
    room = job.max_tokens_per_row - settings.max_new_tokens
    prompts = [
        # The opening of the answer is last, and must stay.
        fault.render(row, ids, [0] * len(ids), tokenizer)[0][-room:]
        for row, ids in zip(rows, asking(tokenizer, rows), strict=True)
    ]

    def rollouts(_prompts: list[str], trainer: Grpo) -> dict[str, Any]:
        places = trainer.at_hand
        episodes = [
            Episode(
                prompts[place],
                environment(settings.environment, rows[place], job.metric, i % settings.group_rows),
            )
            for i, place in enumerate(places)
        ]
        play(
            trainer.model,
            tokenizer,
            episodes,
            settings.max_new_tokens,
            job.max_tokens_per_row,
            settings.temperature,
        )
        own = sum(sum(episode.own) for episode in episodes)
        trainer.used.take(
            places[:: settings.group_rows],
            sum(len(episode.prompt) + len(episode.tokens) for episode in episodes),
            own,
        )
        trainer.used.rollouts += len(episodes)
        trainer.used.generated_tokens += own
        trainer.used.policy_versions += 1
        return {
            "prompt_ids": [episode.prompt for episode in episodes],
            "completion_ids": [episode.tokens for episode in episodes],
            "logprobs": None,
            "env_mask": [episode.own for episode in episodes],
            "earned": [episode.reward for episode in episodes],
        }

    def reward(completions: list[str], earned: list[float], **_: Any) -> list[float]:
        return fault.reward(earned, completions)

    trainer = Grpo(
        model=model,
        reward_funcs=[reward],
        args=GRPOConfig(
            **shared_settings(job, model),
            num_generations=settings.group_rows,
            # All answers of a step come from the weights before it, so a resumed job samples the same ones.
            steps_per_generation=job.accumulation,
            num_iterations=1,
            temperature=settings.temperature,
            max_completion_length=settings.max_new_tokens,
            beta=settings.beta,
        ),
        train_dataset=Dataset.from_dict(
            {"prompt": [row["prompt"] for row in rows], "place": list(range(len(rows)))}
        ),
        processing_class=tokenizer,
        rollout_func=rollouts,
        callbacks=callbacks,
    )
    if reference is not None:
        # TRL loads its reference from the base's folder; the job may have started elsewhere.
        trainer.ref_model.load_state_dict(reference.state_dict())
    return trainer
