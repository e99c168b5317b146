"""Judging answers by program: numbers, manners, and code that would rather not be judged."""

import os
import signal
import subprocess
import sys
import time
from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from delivery_plane.compute import confined, confined_runner
from delivery_plane.compute.graders import final_number, grade, keeps_house_rules, unfit
from delivery_plane.errors import ComputeFault
from delivery_plane.scenario import Metric, Row


def row(answer: str = "", **more: str) -> Row:
    return Row(row_id="r", prompt="p", answer=answer, licence="cc0", source="test", **more)  # type: ignore[typeddict-item]


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("2 + 2 = 4\n#### 4", 4),
        ("####1,234.", 1234),
        ("#### 3\n#### 5 apples", 5),
        ("#### -7.50", Decimal("-7.5")),
        ("####\n+12", 12),
        ("the answer is 4", None),
        ("#### four", None),
        ("#### 5 ####", None),
        ("#### 1,23", None),
        ("#### 1e9999999", None),
        ("#### nan", None),
        ("#### ٣", None),
        ("#### 4..", None),
        ("#### " + "9" * 65, None),
        ("", None),
    ],
)
def test_the_final_number_is_what_follows_the_last_marker(text: str, number: Decimal | int | None) -> None:
    assert final_number(text) == number


@given(
    st.text(),
    st.integers(-(10**12), 10**12),
    st.sampled_from(["", " ", "\n", "  "]),
    st.sampled_from(["", ".", ". So."]),
)
def test_any_number_is_found_whatever_stands_before_it(
    before: str, number: int, gap: str, after: str
) -> None:
    assert final_number(f"{before}####{gap}{number:,}{after}") == number
    assert grade(
        "final_number", [row(f"worked out\n#### {number}"), row(str(number))], [f"#### {number}"] * 2
    ) == [
        True,
        True,
    ]


@given(st.text(alphabet=st.sampled_from("#0123456789,.+- \nx"), max_size=200))
def test_what_has_no_marker_is_wrong_and_nothing_is_an_error(text: str) -> None:
    found = final_number(text)
    assert "####" in text or found is None
    assert grade("final_number", [row("#### 1")], [text]) == [found == 1]


def test_endless_texts_are_judged_at_once() -> None:
    started = time.monotonic()
    for text in ("####" * 500_000, "#### " + "9" * 2_000_000, "#### " + "1," * 1_000_000, "#" * 2_000_000):
        assert grade("final_number", [row("7")], [text]) == [False]
        assert not keeps_house_rules(f"Thank you. {text}.")
    assert time.monotonic() - started < 5


@pytest.mark.parametrize(
    ("reply", "kept"),
    [
        ("Thank you for telling us. I will gladly help you.", True),
        ("i am sorry to hear that. shall we look into it today?", True),
        ("  Thanks for your message.\n", True),
        ("We will look into it today.", False),
        ("Thank you. It is your own fault.", False),
        ("Sorry, you must wait.", False),
        ("Thank you for telling us", False),
        ("Thanks a lot!", False),
        ("Thank you.", False),
        ("Thank " * 3 + ".", False),
        ("Thankyou for your message.", False),
        ("Thank you " + "very " * 29 + "much.", False),
        ("", False),
    ],
)
def test_a_reply_keeps_the_house_rules_or_does_not(reply: str, kept: bool) -> None:
    assert keeps_house_rules(reply) is kept
    assert grade("courteous", [row()], [reply]) == [kept]


def test_a_game_is_not_judged_by_its_text() -> None:
    with pytest.raises(ValueError, match="game_won"):
        grade("game_won", [row("4")], ["4"])


@pytest.mark.parametrize(
    ("metric", "given_row", "why"),
    [
        ("tests_pass", row("def f(): pass"), "no tests"),
        ("tests_pass", row("", tests="assert f()"), None),
        ("final_number", row("#### about five"), "no number"),
        ("final_number", row("12"), None),
        ("game_won", row("many"), "number to guess"),
        ("exact_match", row(""), None),
    ],
)
def test_rows_that_cannot_be_judged_say_why(metric: Metric, given_row: Row, why: str | None) -> None:
    found = unfit(metric, given_row)
    assert found is None if why is None else why in str(found)


TESTS = "assert f(3) == 5\nassert sorted([f(2), f(1)]) == [3, 4]\nassert all(f(i) == i + 2 for i in range(5))"
RIGHT = "def f(x):\n    return x + 2"
WRONG = "def f(x):\n    return 0"

HONEST = {
    "plain": RIGHT,
    "with imports": f"import math, collections.abc\nfrom functools import reduce\n{RIGHT}",
    "with helpers": "def g(x):\n    return x + 1\ndef f(x):\n    print('busy')\n    return g(g(x))",
    "catching what is refused": f"try:\n    open('/etc/passwd')\nexcept OSError:\n    pass\n{RIGHT}",
}

HOSTILE = {
    "wrong": WRONG,
    "no code": "The answer is x + 2.",
    "nothing": "",
    "loops": "while True: pass",
    "loops when called": "def f(x):\n    while True: pass",
    "loops on, whatever it is told": "import signal\nsignal.signal(signal.SIGXCPU, signal.SIG_IGN)\nwhile True: pass",
    "waits for ever": f"import _thread\nlock = _thread.allocate_lock()\nlock.acquire()\nlock.acquire()\n{RIGHT}",
    "forks": f"import os\nos.fork()\n{RIGHT}",
    "fork bomb": "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass",
    "starts a thread": f"import _thread\n_thread.start_new_thread(print, ())\n{RIGHT}",
    "starts a program": f"import os\nos.execv('/bin/true', ['true'])\n{RIGHT}",
    "allocates at once": f"x = 'a' * 10**11\n{RIGHT}",
    "allocates bit by bit": f"x = []\nwhile True: x.append('a' * 10**6)\n{RIGHT}",
    "writes without end": "while True: print('x' * 100_000)",
    "exits": f"import sys\nsys.exit(0)\n{RIGHT}",
    "exits hard": f"import os\nos._exit(0)\n{RIGHT}",
    "exits as if unconfined": f"import os\nos._exit(3)\n{RIGHT}",
    "exits when called": "import os\ndef f(x): os._exit(0)",
    "crashes": "import ctypes\nctypes.string_at(0)",
    "shadows what tests use": f"def sorted(x): return [3, 4]\ndef all(x): return True\n{WRONG}",
    "patches what tests use": f"import builtins\nbuiltins.sorted = lambda x: [3, 4]\nbuiltins.all = bool\n{WRONG}",
    "is equal to everything": "class A(int):\n    def __eq__(self, other): return True\ndef f(x): return A(x)",
    "shows itself as code": "class A:\n    def __repr__(self): return 'exit(0)'\ndef f(x): return A()",
    "replies without end": "class A:\n    def __repr__(self): return '[' * 10**6\ndef f(x): return A()",
    "forges verdicts": "import os\nfor fd in range(3, 64):\n    try: os.write(fd, b'1\\n')\n"
    f"    except OSError: pass\n{WRONG}",
    "forges replies": "import os\nfor fd in range(3, 64):\n    try: os.write(fd, b\"('value', 5)\\n\" * 9)\n"
    f"    except OSError: pass\n{WRONG}",
    "reads files": f"open('/etc/passwd').read()\n{RIGHT}",
    "reads its process": f"open('/proc/self/environ').read()\n{RIGHT}",
    "lists files": f"import os\nos.listdir('/')\n{RIGHT}",
    "writes files": f"open('left-behind', 'w').write('x')\n{RIGHT}",
    "opens a socket": f"import socket\nsocket.socket()\n{RIGHT}",
    "kills its parent": f"import os\nos.kill(os.getppid(), 9)\n{RIGHT}",
    "kills everything": f"import os\nos.kill(-1, 9)\n{RIGHT}",
    "looks for tests up the stack": "import sys\nframe, seen = sys._getframe(), ''\n"
    f"while frame:\n    seen += repr(frame.f_locals)\n    frame = frame.f_back\nassert 'assert f(3)' in seen\n{RIGHT}",
    "looks for tests in memory": "import gc\n"
    f"assert any(chr(97) + 'ssert f' + chr(40) in repr(x) for x in gc.get_objects())\n{RIGHT}",
    "looks for its environment": f"import os\nassert 'PATH' in os.environ\n{RIGHT}",
}  # fmt: skip


def test_code_is_right_only_when_it_does_what_is_asked() -> None:
    started = time.monotonic()
    answers = [*HONEST.values(), *HOSTILE.values(), RIGHT]
    found = grade("tests_pass", [row(tests=TESTS)] * len(answers), answers)
    judged = dict(zip([*HONEST, *HOSTILE, "after all that"], found, strict=True))
    assert {name for name, right in judged.items() if right} == {*HONEST, "after all that"}
    assert time.monotonic() - started < 90


def test_tests_see_values_and_exceptions_and_prove_nothing_unless_they_ask() -> None:
    echo = "def echo(*args, **kwargs):\n    return args, kwargs, None, {1, 2}, b'x', 1.5, True, 'é\\n'"
    cases = [
        (
            echo,
            "assert echo(1, [2], b=3) == ((1, [2]), {'b': 3}, None, {1, 2}, b'x', 1.5, True, 'é\\n')",
            True,
        ),
        ("LIMIT = 5", "assert LIMIT == 5", True),
        ("LIMIT = 5", "assert LIMIT == 6", False),
        (
            "def f(x):\n    raise KeyError(x)",
            "try:\n    f(1)\nexcept KeyError:\n    pass\nelse:\n    assert False",
            True,
        ),
        (
            "def f(x):\n    return x",
            "try:\n    f(1)\nexcept KeyError:\n    pass\nelse:\n    assert False",
            False,
        ),
        (
            "def f(x):\n    return x",
            "def check(n):\n    return f(n) == n\nassert check(1) and check('a')",
            True,
        ),
        ("def f(x):\n    raise StopIteration", "assert all(map(f, [1, 2]))", False),
        ("def f(x):\n    return x", "assert True", False),
        ("def f(x):\n    return x", "import sys\nsys.exit(0)", False),
        ("def f(x):\n    return x", "this is no test", False),
    ]
    found = confined.passed([(code, tests) for code, tests, _ in cases])
    assert found == [right for *_, right in cases]


def test_an_answer_that_draws_or_orders_a_set_is_judged_the_same_each_time() -> None:
    drawing = "import random\ndef f():\n    return random.random(), list({'a', 'b', 'c', 'd', 'e'})"
    asks = [(drawing, f"assert f()[0] * 16 // 1 == {n}") for n in range(16)]
    asks += [(drawing, f"assert f()[1][0] == {letter!r}") for letter in "abcde"]
    first = confined.passed(asks)
    assert sum(first) == 2
    assert confined.passed(asks[::-1]) == first[::-1]


def test_a_machine_that_cannot_confine_runs_no_code(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert confined_runner._try_out()
    with monkeypatch.context() as patched:
        patched.setattr(confined_runner, "ALLOWED", {})
        assert not confined_runner._try_out()
    runner = tmp_path / "runner.py"
    monkeypatch.setattr(confined, "RUNNER", runner)
    monkeypatch.setattr(confined, "_runners", {})
    for script, why in (
        ("raise SystemExit(3)", "cannot confine"),
        ("print('?')", "ended"),
        ("1/0", "ZeroDiv"),
    ):
        runner.write_text(script)
        with pytest.raises(ComputeFault, match=why):
            confined.passed([(RIGHT, TESTS)])


def test_a_runner_that_was_killed_is_a_fault_once() -> None:
    assert confined.passed([(RIGHT, TESTS)] * 2) == [True, True]
    os.killpg(confined._runners[os.getpid()].pid, signal.SIGKILL)
    with pytest.raises(ComputeFault, match="ended"):
        confined.passed([(RIGHT, TESTS)])
    assert confined.passed([(WRONG, TESTS), (RIGHT, TESTS)]) == [False, True]


def descendants(pid: int) -> set[int]:
    try:
        children = {int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()}
    except OSError:
        return set()
    return children.union(*(descendants(child) for child in children))


def test_nothing_runs_on_when_whoever_judges_is_killed() -> None:
    waits = "import _thread\nlock = _thread.allocate_lock()\nlock.acquire()\nlock.acquire()"
    script = f"from delivery_plane.compute.confined import passed\npassed([({waits!r}, 'f()')] * 9)"
    judging = subprocess.Popen([sys.executable, "-c", script], cwd=Path(__file__).parents[1])
    deadline = time.monotonic() + 30
    # The runner, the process that starts answers, the tests and the answer.
    while len(started := descendants(judging.pid)) < 4 and time.monotonic() < deadline:
        time.sleep(0.02)
    assert len(started) == 4
    os.kill(judging.pid, signal.SIGKILL)
    judging.wait()
    while left := [pid for pid in started if Path(f"/proc/{pid}/cmdline").exists() and _alive(pid)]:
        assert time.monotonic() < deadline, left
        time.sleep(0.02)


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False
