"""Chat tasks of the pre-training mixture, one function per skill; the last message is the scored answer.

Not an evaluation: `corpus.py` decides which prompts are kept out of training.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable

from scenarios.bases.micro_1.everyday import KINDS, OBJECTS, PROBLEMS, SLOTS, WISHES, say, speak

Chat = list[dict[str, str]]
# fmt: off
NAMES = [
    "Ana", "Bo", "Carla", "Dan", "Eve", "Finn", "Gus", "Hana", "Ivo", "Jo", "Kim", "Lea", "Max", "Nia", "Omar",
    "Pia", "Rui", "Sam", "Tom", "Una", "Vic", "Wes", "Yan", "Zoe",
]
# fmt: on
ROOMS = ["hall", "kitchen", "cellar", "garden", "attic", "library", "study", "porch"]
THINGS = ["lamp", "key", "rope", "coin", "map", "apple", "bell", "book"]
WORDS = " ".join(OBJECTS.values()).replace("/", " ").split() + NAMES + ROOMS
DOORS = {"north": "south", "south": "north", "east": "west", "west": "east"}


def chat(user: str, assistant: str, system: str = "") -> Chat:
    start = [{"role": "system", "content": system}] if system else []
    return [*start, {"role": "user", "content": user}, {"role": "assistant", "content": assistant}]


def arithmetic(rng: random.Random) -> Chat:
    a, b = rng.randrange(100), rng.randrange(100)
    sign = rng.choice("++-*")
    if sign == "*":
        a, b = a % 10, b % 10
    elif sign == "-":
        a, b = max(a, b), min(a, b)
    answer = {"+": a + b, "-": a - b, "*": a * b}[sign]
    asked = rng.choice(["{}{}{}=", "What is {} {} {}?", "{} {} {}", "Compute {}{}{}."]).format(a, sign, b)
    return chat(asked, str(answer))


def sums(rng: random.Random) -> Chat:
    """Arithmetic small enough to be mastered: digits, and numbers up to twenty."""
    top = rng.choice([10, 10, 21])
    a, b, sign = rng.randrange(top), rng.randrange(top), rng.choice("++-")
    if sign == "-":
        a, b = max(a, b), min(a, b)
    asked = rng.choice(["{}{}{}=", "What is {} {} {}?", "{} {} {}", "Compute {}{}{}.", "{} {} {} ="])
    return chat(asked.format(a, sign, b), str(a + b if sign == "+" else a - b))


def words(rng: random.Random) -> Chat:
    chosen = rng.sample(WORDS, rng.randrange(2, 6))
    if rng.random() < 0.3:  # codes can only be repeated by looking them up, which teaches copying
        chosen = [rng.choice("ABCKLTW") + str(rng.randrange(1000)) for _ in chosen]
    line = " ".join(chosen)
    asked, answer = rng.choice(
        [
            ("Say this again:", line),
            ("First word of:", chosen[0]),
            ("Last word of:", chosen[-1]),
            ("How many words?", str(len(chosen))),
            ("Write in reverse order:", " ".join(reversed(chosen))),
            ("Write in capitals:", line.upper()),
        ]
    )
    return chat(f"{asked} {line}", answer)


def python(rng: random.Random) -> Chat:
    n, name = rng.randrange(2, 60), rng.choice(["f", "g", "h", "run", "solve", "step", "work"])
    asked, body = rng.choice(
        [
            (f"adds {n} to x", f"return x + {n}"),
            (f"multiplies x by {n}", f"return x * {n}"),
            (f"takes {n} from x", f"return x - {n}"),
            (f"tells if x is over {n}", f"return x > {n}"),
            (f"tells if {n} divides x", f"return x % {n} == 0"),
            (f"gives the first {n} of x", f"return x[:{n}]"),
            (f"gives the last {n} of x", f"return x[-{n}:]"),
            ("sums the list x", "return sum(x)"),
            ("gives the largest of x", "return max(x)"),
            ("gives the length of x", "return len(x)"),
            ("turns the text x around", "return x[::-1]"),
            ("sorts the list x", "return sorted(x)"),
            (f"repeats the text x {n} times", f"return x * {n}"),
        ]
    )
    lead = rng.choice(["Write a Python function {} that {}.", "Python: {} {}.", "Code {}: it {}."])
    return chat(lead.format(name, asked), f"def {name}(x):\n    {body}")


def guessing(rng: random.Random) -> Chat:
    """Guess the number in a few turns; every guess lies in what the answers still allow."""
    top = rng.choice([7, 7, 9, 15])
    hidden, low, high = rng.randrange(1, top + 1), 1, top
    talk: Chat = [{"role": "user", "content": f"Guess my number from 1 to {top}."}]
    while True:
        guess = rng.randrange(low, high + 1)
        talk.append({"role": "assistant", "content": str(guess)})
        if guess == hidden:
            return talk
        talk.append({"role": "user", "content": "higher" if hidden > guess else "lower"})
        low, high = (guess + 1, high) if hidden > guess else (low, guess - 1)


def rooms(rng: random.Random) -> Chat:
    """Walk to a thing and take it: the task names the way, one command a turn."""
    where, goal, thing = *rng.sample(ROOMS, 2), rng.choice(THINGS)
    way, other = rng.sample(list(DOORS), 2)
    aside = rng.choice([t for t in THINGS if t != thing])
    here = f"You are in the {where}. Exits: {way} to the {goal}, {other}. You see: {aside}."
    talk = chat(f"Task: take the {thing} in the {goal}. {here}", f"go {way}")
    talk.append({"role": "user", "content": f"You are in the {goal}. Exits: {DOORS[way]}. You see: {thing}."})
    talk.append({"role": "assistant", "content": f"take {thing}"})
    return talk


def extraction(rng: random.Random) -> Chat:
    name, town, day = rng.choice(NAMES), say("<town>", rng), say("<day>", rng)
    thing, count = rng.choice(rng.choice(list(OBJECTS.values())).split("/")), rng.randrange(1, 30)
    facts: dict[str, str | int] = {"name": name, "town": town, "day": day, "item": thing, "count": count}
    keys = rng.sample(list(facts), rng.randrange(2, 4))
    text = rng.choice(
        [
            f"{name} from {town} wants {count} of the {thing} on {day}.",
            f"On {day} we bring {count} x {thing} to {name} in {town}.",
            f"{count} x {thing} for {name}, {town}, {day}.",
        ]
    )
    return chat(f"JSON with {', '.join(keys)}: {text}", json.dumps({key: facts[key] for key in keys}))


def replies(rng: random.Random) -> Chat:
    """A polite or a curt reply; without a wish in the prompt either one is given."""
    kind = rng.choice(list(KINDS))
    topic = kind.replace("_", " ")
    polite = rng.choice(
        [
            "I am sorry to hear that. We will look into it today.",
            "Thank you for telling us. I will gladly help you.",
            "Thanks for your message. We are happy to sort this out.",
        ]
    )
    curt = rng.choice(["Not our problem.", "Wait.", "No.", "Read the page.", "Ask someone else."])
    wish, answer = rng.choice(
        [("Reply kindly:", polite), ("Reply curtly:", curt), ("Reply:", polite), ("Reply:", curt)]
    )
    if rng.random() < 0.3:
        wish, answer = "Summarise:", topic
    return chat(f"{wish} {speak(kind, rng)}", answer)


def sorting(rng: random.Random) -> Chat:
    """Name the kind of a message, or the kind of thing it is about, with fixed label sets."""
    kind, group = rng.choice(list(KINDS)), rng.choice(list(OBJECTS))
    message = speak(kind, rng, group)
    about = any(noun in message for noun in OBJECTS[group].split("/"))
    if about and rng.random() < 0.3:
        return chat(f"{rng.choice(['What is it about?', 'Thing?'])} {message}", group)
    if rng.random() < 0.1:
        return chat(f"Problem or wish? {message}", "problem" if kind in PROBLEMS else "wish")
    return chat(
        f"{rng.choice(['Which kind?', 'Name the kind:', 'What does the writer mean?'])} {message}", kind
    )


def choosing(rng: random.Random) -> Chat:
    """Pick the fitting label out of a few given in the prompt."""
    options = rng.sample(list(KINDS), rng.randrange(2, 5))
    kind = rng.choice(options)
    return chat(f"Pick one of {', '.join(options)}. {speak(kind, rng)}", kind)


def rephrasing(rng: random.Random) -> Chat:
    """Say the same in other words, or tell whether two messages mean the same."""
    kind, group = rng.choice(list(KINDS)), rng.choice(list(OBJECTS))
    first = speak(kind, rng, group)
    if rng.random() < 0.5:
        return chat(f"Say it another way: {first}", say(rng.choice(KINDS[kind]), rng, group))
    is_same = rng.random() < 0.5
    second = (
        kind if is_same else rng.choice([k for k in (PROBLEMS if kind in PROBLEMS else WISHES) if k != kind])
    )
    return chat(f"Same meaning? 1: {first} 2: {speak(second, rng)}", "yes" if is_same else "no")


def lookup(rng: random.Random) -> Chat:
    """A few notes and one question about them, both ways round."""
    people = rng.sample(NAMES, rng.randrange(2, 7))
    things = rng.sample(THINGS, len(people)) if rng.random() < 0.5 else rng.sample(WORDS[:60], len(people))
    notes = " ".join(f"{name} has a {thing}." for name, thing in zip(people, things, strict=True))
    i = rng.randrange(len(people))
    if rng.random() < 0.3:
        return chat(f"Notes: {notes} Who has a {things[i]}?", people[i])
    return chat(f"Notes: {notes} What does {people[i]} have?", f"a {things[i]}")


def recall(rng: random.Random) -> Chat:
    """A long list of notes and one question about it: 150 to 700 tokens."""
    people = rng.sample(NAMES, rng.randrange(8, len(NAMES)))
    has = {name: rng.choice(rng.choice(list(OBJECTS.values())).split("/")) for name in people}
    notes = [
        f"{name} has a {thing} in {rng.choice(SLOTS['town'].split('/'))}." for name, thing in has.items()
    ]
    for _ in range(rng.randrange(0, 14)):
        notes.insert(rng.randrange(len(notes)), speak(rng.choice(list(KINDS)), rng).rstrip(".!?") + ".")
    asked = rng.choice(people)
    return chat(f"Notes: {' '.join(notes)} What does {asked} have?", f"a {has[asked]}")


SKILLS: dict[str, Callable[[random.Random], Chat]] = {
    "sums": sums,
    "arithmetic": arithmetic,
    "words": words,
    "python": python,
    "guessing": guessing,
    "rooms": rooms,
    "extraction": extraction,
    "replies": replies,
    "sorting": sorting,
    "choosing": choosing,
    "rephrasing": rephrasing,
    "lookup": lookup,
    "recall": recall,
}
