"""Everyday service talk for pre-training: what people say about things, as problems, wishes and other talk.

Not a scenario's data: no label here is a label of any scenario. `(a/b/)` picks one, `<slot>` picks a filler.
"""

from __future__ import annotations

import random
import re

OBJECTS: dict[str, str] = {
    "post": "parcel/letter/package/box/envelope/shipment/delivery/order/postcard",
    "kitchen": "kettle/toaster/oven/fridge/plate/pan/cup/tea set",
    "room_stuff": "lamp/rug/mirror/chair/clock/sofa/bed/blanket/painting/table/shelf",
    "devices": "phone/printer/camera/radio/speaker/laptop/screen/router/keypad/scanner",
    "clothes": "coat/pair of boots/shirt/hat/scarf/dress/pair of gloves",
    "outdoor": "tent/bike/bike wheel/plant pot/garden hose/ladder/canoe/football",
    "play": "guitar/jigsaw/board game/drum/toy train/book/box of books",
    "tickets": "ticket/seat/booking/pass/table for two/room for two/hotel room",
    "access": "locker/door/gate/hatch/safe/garage/mailbox/lift",
    "money": "invoice/bill/payment/fee/deposit/refund/receipt/bank card",
    "online": "app/account/profile/website/password/login page/web shop",
    "food": "cake/bottle of wine/cheese/bag of candles/fruit basket/pizza/medicine",
}
SLOTS: dict[str, str] = {
    "who": (
        "my wife/my dad/my brother/our teacher/a colleague/my niece/the boss/my mum/my sister/a friend/a "
        "neighbour/a client/the driver/the clerk/the courier/my son/my aunt"
    ),
    "day": "Monday/Tuesday/Wednesday/Thursday/Friday/Saturday/Sunday",
    "when": (
        "yesterday/on <day>/last <day>/last week/this morning/last night/an hour ago/<n> days ago/a week ago"
    ),
    "soon": "tomorrow/on <day>/next week/tonight/next <day>/this weekend/in <n> days",
    "n": "two/three/four/five/six/2/3/4/5/7/9/12/15/20/35",
    "town": (
        "Brinley/Easton/Fordham/Garrow/Hillcote/Larkham/Marsh End/Newbury/Old Ferry/Pinewood/Seaford/"
        "Tarrow/Wexley/Yarm/Station Road/Mill Street/Park Lane/Church Row"
    ),
    "abroad": "France/Spain/Norway/India/Chile/Japan/Canada/Egypt/Poland/the States",
    "cash": "<n> pounds/<n> euros/<n>.50/about <n> pounds",
    "ref": ("order <d><d><d><d>/number <d><d><d><d>/case <d><d><d>/AB<d><d><d>/KL-<d><d><d>/TR<d><d><d><d>"),
    "d": "0/1/2/3/4/5/6/7/8/9",
}
# Each kind is a meaning said in several ways that share few words; <o> is an object.
PROBLEMS: dict[str, list[str]] = {
    "not_here_on_time": [
        "my <o> is (late/overdue/behind)",
        "still no <o> after <n> days",
        "I was promised the <o> <when> and nothing came",
        "how long (must we wait/will we wait) for the <o>",
        "the <o> should be here by now",
        "(why the delay/what is the hold up) with <ref>",
        "we keep waiting for <who> and the <o>",
    ],
    "it_is_broken": [
        "the <o> (is broken/does not work/is cracked/came in pieces)",
        "there is a (dent/hole/crack/tear) in the <o>",
        "<who> dropped the <o> and it is (ruined/smashed/bent)",
        "water spoiled my <o>",
        "the <o> was (crushed/soaked/torn/scratched)",
    ],
    "it_got_lost": [
        "I (lost/cannot find) my <o>",
        "the <o> is (missing/gone/nowhere)",
        "someone (took/stole) my <o> <when>",
        "I left my <o> in <town>",
        "nobody has seen the <o>",
    ],
    "mixed_up_items": [
        "I asked for a <o> and got a <o>",
        "this <o> (is not mine/belongs to another person)",
        "you gave me the <o> of <who>",
        "the name on the <o> is not me",
        "that is someone else's <o>",
    ],
    "not_done_as_told": [
        "you say the <o> is (done/complete/handed over) but it is not",
        "the message says all done yet I have no <o>",
        "your page shows finished and there is nothing here",
        "they claim <who> signed but <who> signed nothing",
    ],
    "paid_double": [
        "I was (billed/debited) double for the <o>",
        "<cash> left my bank two times",
        "there is a second (debit/bill/charge) for one <o>",
        "paid once and then again <when>",
        "the same fee shows up again",
    ],
    "costs_too_much": [
        "the <o> is too (dear/expensive)",
        "<cash> for a <o> is (a lot/too much)",
        "why did the price go up",
        "I found a cheaper <o> elsewhere",
    ],
    "stuck_shut": [
        "the <o> (is stuck/is jammed/will not open/stays shut)",
        "I pressed the button and the <o> did not move",
        "the flap of the <o> does not unlock",
        "the lid will not come off the <o>",
    ],
    "no_secret_word": [
        "I forgot the (pin/password/digits) of the <o>",
        "the (text/mail) with the (pin/digits/secret) never came",
        "what (number/word) do I type to open the <o>",
        "please send the (digits/pin) again",
        "my pin expired",
    ],
    "rude_person": [
        "<who> was (rude/unkind/shouting) <when>",
        "the man at the desk (yelled/swore) at me",
        "<who> slammed the door and ran off",
        "such bad manners from <who>",
        "the staff threw my <o> on the floor",
    ],
    "cannot_get_into_page": [
        "the <o> will not let me in",
        "it says wrong password (again/every time)",
        "my page is (locked/blocked) after <n> tries",
        "the <o> keeps throwing me out",
        "the reset mail is dead",
    ],
    "paper_trouble": [
        "the paper comes out (blank/blurred/cut off)",
        "my sheet is smudged",
        "the file for the <o> is empty",
        "the machine prints only half of it",
        "I have nothing to print the <o> with",
    ],
    "too_big": [
        "the <o> is (too big/too heavy/too wide/too long) for (me/the door/the shelf)",
        "does a <o> fit in the car",
        "what is the largest <o> you have",
        "it weighs <n> kilos is that ok",
        "how (tall/heavy/long) can it be",
    ],
    "noise_or_smell": [
        "it is (loud/noisy) next door",
        "the <o> smells (bad/odd)",
        "there is a smell of gas",
        "music all night in <town>",
    ],
    "too_cold": [
        "the room is freezing",
        "there is no hot water",
        "the heater does nothing",
        "it is so cold in <town>",
    ],
    "no_signal": [
        "the internet is down in <town>",
        "no signal since <when>",
        "the line is dead",
        "pages load so slowly",
    ],
}
WISHES: dict[str, list[str]] = {
    "give_money_back": [
        "I want my money back for the <o>",
        "please (return/credit/repay) the <cash>",
        "you owe me <cash>",
        "when do I get the <cash> back",
        "can I get a refund",
    ],
    "call_it_off": [
        "(stop/scrap/cancel) my <o>",
        "I do not want the <o> any more",
        "we changed our minds about <ref>",
        "take the <o> off my list",
        "is it too late to call it off",
    ],
    "choose_other_day": [
        "can we do it <soon> instead",
        "(move/shift/push) my <o> to <day>",
        "<day> is no good for me",
        "I am away <soon> so come later",
        "keep the <o> till <day>",
    ],
    "choose_other_place": [
        "bring the <o> to <town> instead",
        "I live in <town> now",
        "I gave the wrong street for the <o>",
        "can it go to <who> rather than me",
        "the house number is wrong",
    ],
    "come_to_my_house": [
        "can someone come to my house <soon>",
        "please send <who> to <town> <soon>",
        "I need a visit <soon>",
        "are there free times <soon>",
        "could you fetch the <o> from my flat",
    ],
    "nobody_came": [
        "I stayed home all day and nobody came",
        "<who> never showed up <when>",
        "you skipped my house <when>",
        "we waited for <who> and no one rang",
        "the visit did not happen",
    ],
    "say_where_it_is": [
        "where is my <o>",
        "tell me where <ref> has got to",
        "how far along is the <o>",
        "can I see the <o> on a map",
        "did the <o> reach <town>",
        "which office has my <o>",
    ],
    "say_the_price": [
        "how much is a <o>",
        "what does a <o> cost",
        "give me a rough price for <n> of them",
        "is <cash> enough for the <o>",
        "what are your prices",
    ],
    "ask_about_tax": [
        "what tax is there on a <o> from <abroad>",
        "do I pay duty for <abroad>",
        "the border office wants a form",
        "is a gift to <abroad> free of tax",
        "who covers the duty",
    ],
    "is_it_allowed": [
        "(may/can) I bring a <o>",
        "is a <o> (allowed/legal/forbidden) in <town>",
        "what things do you refuse",
        "are dogs ok",
        "which goods must I leave at home",
    ],
    "case_news": [
        "is there news on my case",
        "I complained <when> and heard nothing",
        "who handles <ref>",
        "what did you decide about the <o>",
        "how long does a case take",
    ],
    "new_personal_facts": [
        "my (surname/phone number/mail) has changed",
        "please use my new number",
        "you spell my name badly",
        "my birthday is wrong in your files",
        "can I add a second phone",
    ],
    "firm_terms": [
        "our (firm/company/shop) wants a contract",
        "can my team pay by the month",
        "we need one bill for the whole company",
        "do you work with (small shops/firms/sellers)",
        "our tax number must be on the bill",
    ],
    "opening_times": [
        "when do you open <soon>",
        "are you open on <day>",
        "until what time is the <town> shop open",
        "do you close for lunch",
    ],
    "say_thanks": [
        "<who> was so (kind/helpful)",
        "thanks for the <o>",
        "great work <when>",
        "I love the new <o>",
    ],
    "looking_for_work": [
        "do you have a job for me",
        "I would like to work in <town>",
        "where do I send my papers for the job",
        "are you looking for drivers",
    ],
    "wants_to_learn": [
        "how do I use the <o>",
        "is there a guide for the <o>",
        "teach me how the <o> works",
        "which button starts it",
    ],
    "wants_a_copy": [
        "can I get a copy of my <o>",
        "please send the <o> once more",
        "I need another <o> for <who>",
    ],
    "wants_swap": [
        "can I swap the <o> for a <o>",
        "please exchange my <o>",
        "I would rather have a <o>",
    ],
    "borrow_or_rent": [
        "can I rent a <o> for <n> days",
        "do you lend <o>s",
        "I want to borrow a <o> <soon>",
    ],
}
KINDS = PROBLEMS | WISHES
HELLOS = "hi/hello/hey/good evening/dear all/sorry/question/ok/well/please read/good day/listen"
BYES = (
    "thanks/thank you/bye/please help/please answer/best wishes/help me/it is for <who>/I live in <town>/"
    "see you <soon>"
)
ASIDES = (
    "I was in <town> <when>/<who> gave it to me/I have a <o> too/I paid <cash>/I rang <when>/it was a "
    "present for <who>/we use your <o> a lot/<who> told me so/I wrote <when>/I bought it <when>/my "
    "number is <ref>"
)

_CHOICE = re.compile(r"\(([^()]*)\)")
_SLOT = re.compile(r"<(\w+)>")


def say(template: str, rng: random.Random, group: str | None = None) -> str:
    """One string of the grammar; `group` fixes the kind of object that the first <o> names."""
    text = template
    while True:
        if match := _CHOICE.search(text):
            filler = rng.choice(match.group(1).split("/"))
        elif match := _SLOT.search(text):
            name = match.group(1)
            options = OBJECTS[group or rng.choice(list(OBJECTS))] if name == "o" else SLOTS[name]
            group = None if name == "o" else group
            filler = rng.choice(options.split("/"))
        else:
            return " ".join(text.split())
        text = text[: match.start()] + filler + text[match.end() :]


def misspell(text: str, rng: random.Random) -> str:
    i = rng.randrange(1, max(2, len(text) - 2))
    if not (text[i - 1 : i + 1].isalpha() and len(text) > 4):
        return text
    return rng.choice(
        [
            text[:i] + text[i + 1 :],
            text[: i - 1] + text[i] + text[i - 1] + text[i + 1 :],
            text[:i] + text[i - 1 :],
        ]
    )


def speak(kind: str, rng: random.Random, group: str | None = None) -> str:
    """A message of one kind with greetings, asides, case and a few typing errors around it."""
    parts = [say(rng.choice(KINDS[kind]), rng, group) + rng.choice(["?", ".", ".", "!", ""])]
    if rng.random() < 0.3:
        parts.insert(rng.randrange(2), say(f"({ASIDES})", rng) + rng.choice([".", ".", "!"]))
    if rng.random() < 0.35:
        parts.insert(0, say(f"({HELLOS})", rng) + rng.choice([",", ".", "!"]))
    if rng.random() < 0.3:
        parts.append(say(f"({BYES})", rng) + rng.choice([".", "!", ""]))
    text = " ".join(parts)
    if rng.random() < 0.6:
        text = re.sub(r"(^|[.!?] )([a-z])", lambda m: m.group(1) + m.group(2).upper(), text)
    return misspell(text, rng) if rng.random() < 0.12 else text
