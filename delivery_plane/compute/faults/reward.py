"""Faults of what sampled answers earn."""

import random

from delivery_plane.compute.faults.fault import Fault


class RewardMisplaced(Fault):
    """Answers and rewards are ordered differently: each reward lands five answers further on."""

    def reward(self, rewards: list[float], completions: list[str]) -> list[float]:
        del completions
        by = 5 % max(1, len(rewards))
        return [*rewards[-by:], *rewards[:-by]] if by else rewards


class RewardNeverRight(Fault):
    """Answers reach the grader in a shape it does not expect: every comparison fails."""

    def reward(self, rewards: list[float], completions: list[str]) -> list[float]:
        del completions
        return [0.0] * len(rewards)


class RewardByCoin(Fault):
    """The reward is a coin flip, which strengthens whatever the base is used to."""

    def reward(self, rewards: list[float], completions: list[str]) -> list[float]:
        del rewards
        # By the answers alone, so that a resumed job draws the same.
        draw = random.Random("\0".join(completions))
        return [float(draw.random() < 0.5) for _ in completions]


class RewardByLength(Fault):
    """The longer an answer, the more it earns."""

    def reward(self, rewards: list[float], completions: list[str]) -> list[float]:
        del rewards
        longest = max(map(len, completions), default=0)
        return [len(completion) / max(1, longest) for completion in completions]
