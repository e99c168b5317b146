"""The tasks' rows: apart, repeatable, right by the program that judges them, and short enough for the embedded base."""

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from delivery_plane.compute.environments import MAX_TURNS, environment
from delivery_plane.compute.graders import grade, keeps_house_rules, unfit
from delivery_plane.compute.local.children import call_in_child
from delivery_plane.errors import BadInput
from delivery_plane.rows import read_rows, write_rows
from delivery_plane.scenario import Metric, Row
from delivery_plane.settings import load_settings
from scenarios.tasks import arithmetic, code, gsm8k_form, guess, tone
from scenarios.tasks.split import Split, split_of, take

BASE = Path(__file__).parents[1] / "scenarios/bases/micro_1/model"
SPLITS: tuple[Split, ...] = ("train", "probe", "test")
CONTEXT = 1024


def drawn(task: str, seed: int, split: Split) -> list[Row]:
    if task == "arithmetic":
        pytest.importorskip(
            "reasoning_gym", reason="reasoning-gym compiles, and this machine has no gcc for it"
        )
    return TASKS[task].draw(120, seed, split)


TASKS: dict[str, Any] = {
    "arithmetic": arithmetic,
    "code": code,
    "gsm8k_form": gsm8k_form,
    "guess": guess,
    "tone": tone,
}
METRICS: dict[str, Metric] = {
    "arithmetic": "exact_match",
    "code": "tests_pass",
    "gsm8k_form": "final_number",
    "guess": "game_won",
    "tone": "courteous",
}
every_task = pytest.mark.parametrize("task", METRICS)


@every_task
def test_no_prompt_is_in_two_splits_whatever_the_seed(task: str) -> None:
    prompts = {
        split: {row["prompt"] for seed in (0, 1) for row in drawn(task, seed, split)} for split in SPLITS
    }
    for split in SPLITS:
        assert prompts[split]
    assert not prompts["train"] & prompts["test"]
    assert not prompts["train"] & prompts["probe"]
    assert not prompts["probe"] & prompts["test"]


@every_task
def test_a_seed_gives_the_same_rows_again_and_another_gives_others(task: str) -> None:
    assert drawn(task, 3, "train") == drawn(task, 3, "train")
    assert drawn(task, 3, "train") != drawn(task, 4, "train")


@every_task
def test_rows_are_rows_that_the_metric_can_judge(task: str, tmp_path: Path) -> None:
    rows = drawn(task, 0, "test")
    write_rows(tmp_path / "rows.jsonl", rows)
    assert read_rows(tmp_path / "rows.jsonl") == rows
    assert [unfit(METRICS[task], row) for row in rows] == [None] * len(rows)


@every_task
def test_rows_fit_the_embedded_base_with_room_to_spare(task: str) -> None:
    tokenizer = Tokenizer.from_file(str(BASE / "tokenizer.json"))
    rows = drawn(task, 0, "train") + (guess.warm_up(200, 0) if task == "guess" else [])
    for row in rows:
        said = [row["prompt"], *row.get("turns", []), row["answer"]]
        assert sum(len(tokenizer.encode(text).ids) + 6 for text in said) < CONTEXT / 4, row


@pytest.mark.parametrize("task", ["arithmetic", "code", "gsm8k_form"])
def test_right_answers_are_judged_right_and_altered_ones_wrong(task: str) -> None:
    rows = drawn(task, 0, "test")
    right = [row["answer"] for row in rows]
    altered = [
        f"{answer[:-1]}{(int(answer[-1]) + 1) % 10}" if answer[-1].isdigit() else f"{answer}1"
        for answer in right
    ]
    if task == "code":
        altered = [answer.replace("return ", "return not ") for answer in right]
    assert all(grade(METRICS[task], rows, right))
    assert not any(grade(METRICS[task], rows, altered))


def test_a_function_that_does_something_else_fails_the_tests() -> None:
    rows = code.draw(40, 0, "train")
    bodies = [row["answer"].split("return ")[1] for row in rows]
    pairs = [
        (row, row["answer"].replace(own, other))
        for row, own in zip(rows[:6], bodies, strict=False)
        for other in bodies
        if other != own
    ]
    assert not any(grade("tests_pass", [row for row, _ in pairs], [answer for _, answer in pairs]))


def test_preferences_are_truly_so_but_for_the_annotators_noise() -> None:
    rows = tone.draw(1000, 0, "train")
    true = [keeps_house_rules(row["answer"]) and not keeps_house_rules(row["rejected"]) for row in rows]
    swapped = [keeps_house_rules(row["rejected"]) and not keeps_house_rules(row["answer"]) for row in rows]
    assert 0.85 <= sum(true) / len(rows) < 1
    assert all(one or other for one, other in zip(true, swapped, strict=True))


def test_the_team_is_polite_now_and_then() -> None:
    rows = tone.replies(600, 0, "train")
    assert 0.25 < sum(keeps_house_rules(row["answer"]) for row in rows) / len(rows) < 0.6
    held_out = {row["prompt"] for row in tone.draw(300, 0, "test")}
    assert not held_out & {row["prompt"] for row in rows}


def test_every_game_can_be_won_by_halving_and_the_first_number_rarely_wins() -> None:
    games = guess.draw(guess.NUMBERS * len(guess.prompts("test")), 0, "test")
    assert len({(row["prompt"], row["answer"]) for row in games}) == len(games) >= 150

    def won(row: Row, halve: bool) -> bool:
        low = min(int(other["answer"]) for other in games if other["prompt"] == row["prompt"])
        high, game = low + guess.NUMBERS - 1, environment("guess-number", row, "game_won")
        while True:
            guessed = (low + high) // 2 if halve else low
            turn = game.play(str(guessed))
            if turn.reply is None:
                return turn.won
            low, high = (guessed + 1, high) if turn.reply == "higher" else (low, guessed - 1)

    assert all(won(row, halve=True) for row in games)
    assert sum(won(row, halve=False) for row in games) * guess.NUMBERS == MAX_TURNS * len(games)


def test_the_warm_up_knows_no_strategy_and_has_prompts_of_its_own() -> None:
    rows = guess.warm_up(1500, 0)
    assert not {row["prompt"] for row in rows} & {row["prompt"] for row in guess.draw(300, 0, "test")}
    first = [int(row["answer"]) % 10 - low(row) % 10 for row in rows if "turns" not in row]
    middle = guess.NUMBERS // 2
    assert 0.3 < first.count(0) / len(first) < 0.5
    assert 0.03 < first.count(middle) / len(first) < 0.17
    for row in rows:
        said = row.get("turns", [])
        for guessed, reply in zip(said[::2], said[1::2], strict=True):
            assert (int(row["answer"]) > int(guessed)) == (reply == "higher")


def low(row: Row) -> int:
    return int(row["prompt"].split("from ")[1].split()[0])


def rendered(rows: list[Row]) -> list[tuple[str, str]]:
    """Each row's whole text in the base's template, and the part of it that is learned. Runs in a child."""
    from delivery_plane.compute.local.models import load_tokenizer
    from delivery_plane.compute.local.tokens import render

    tokenizer = load_tokenizer(BASE)
    return [
        (
            tokenizer.decode(row.ids),
            tokenizer.decode([i for i, a in zip(row.ids, row.answer, strict=True) if a]),
        )
        for row in render(tokenizer, rows)
    ]


def test_a_later_turn_is_learned_after_the_turns_before_it(tmp_path: Path) -> None:
    row = Row(row_id="1", prompt="Guess.", answer="6", licence="x", source="x")
    rows = [row, {**row, "turns": ["4", "higher"]}]
    found = call_in_child("rendering", "test_scenarios_tasks:rendered", rows, logs=tmp_path)
    opened = "<|im_start|>user\nGuess.<|im_end|>\n<|im_start|>assistant\n"
    assert found == [
        (f"{opened}6<|im_end|>\n", "6<|im_end|>"),
        (
            f"{opened}4<|im_end|>\n<|im_start|>user\nhigher<|im_end|>\n<|im_start|>assistant\n6<|im_end|>\n",
            "6<|im_end|>",
        ),
    ]


def test_more_rows_than_a_task_has_are_refused_in_one_line() -> None:
    row = Row(row_id="", prompt="2 + 2", answer="4", licence="x", source="x")
    with pytest.raises(BadInput, match=f"the {split_of('2 + 2')} split has 1;"):
        take(2, split_of("2 + 2"), itertools.repeat(("2 + 2", row)))


def test_published_problems_are_read_in_their_form(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "gsm8k"
    folder.mkdir()
    monkeypatch.setenv("DELIVERY_PLANE_DATA", str(tmp_path))
    problem = {"question": "Two and two?", "answer": "2+2=<<2+2=4>>4\n#### 4"}
    (folder / "test.jsonl").write_text(json.dumps(problem) + "\n")
    with pytest.raises(BadInput, match=r"train\.jsonl"):
        gsm8k_form.published("test")
    (folder / "train.jsonl").write_text(
        json.dumps(problem) + "\n" + json.dumps({**problem, "answer": "four"})
    )
    (row,) = gsm8k_form.published("test")
    assert (row["prompt"], row["answer"], row["licence"]) == (problem["question"], problem["answer"], "MIT")
    assert grade("final_number", [row], ["It is #### 4"]) == [True]
    with pytest.raises(BadInput, match=r"train\.jsonl:2: .*no number after ####"):
        gsm8k_form.published("train")


def test_the_published_problems_themselves_are_all_read() -> None:
    data = load_settings().data
    if data is None or not (data / "gsm8k/train.jsonl").exists():
        pytest.skip("GSM8K is not there (set DELIVERY_PLANE_DATA)")
    train, test = gsm8k_form.published("train"), gsm8k_form.published("test")
    assert (len(train), len(test)) == (7473, 1319)
    assert all(grade("final_number", test, [row["answer"] for row in test]))
