"""Slot fillers and small talk of the Tidewell Parcels messages.

Not tied to any intent: every filler may appear under every label. Alternatives are separated by `|`.
"""

from __future__ import annotations

SLOTS: dict[str, str] = {
    "thing": (
        "lamp|coat|kettle|guitar|rug|clock|toaster|mirror|chair|printer|pair of boots|birthday cake tin|"
        "painting|tea set|camera|bike wheel|jigsaw|tent|speaker|box of books|wool blanket|plant pot|set "
        "of plates|radio"
    ),
    "other": "garden hose|bag of candles|football|pillow|desk fan|cookbook|frying pan|yoga mat",
    "item": "[parcel|package|box|order]|[parcel|package]|{thing}|[delivery|shipment]",
    "who": (
        "my sister|my mum|a friend|my son|my landlord|a client|my aunt|my cousin|our office|a neighbour|"
        "my nephew|a customer of mine"
    ),
    "day": "Monday|Tuesday|Wednesday|Thursday|Friday|Saturday|Sunday",
    "when": "on {day}|last {day}|yesterday|last week|three days ago|this morning|a week ago|on the {nth}",
    "soon": "on {day}|next {day}|tomorrow|next week|after the {nth}|this weekend",
    "nth": "2nd|3rd|5th|8th|11th|14th|17th|19th|21st|23rd|26th|28th",
    "ref": "TW{d}{d}{d}{d}|TW-{d}{d}{d}|order {d}{d}{d}{d}|number {d}{d}{d}{d}{d}",
    "d": "0|1|2|3|4|5|6|7|8|9",
    "town": (
        "Ashby|Corley|Fenwick|Harlow Bay|Kingsmere|Lower Denton|Millport|Norwood|Oakham|Penhurst|Redcliff|"
        "Stonebridge|Thornley|Westbrook"
    ),
    "street": "Mill Lane|High Street|Station Road|Elm Close|Park Row|Church Hill|Bridge Street|Orchard Way",
    "abroad": "Norway|Japan|Canada|Turkey|Brazil|Switzerland|Kenya|the States",
    "cash": "{n} pounds|{n} euros|{n}.50|about {n} pounds",
    "n": "3|4|6|7|9|12|15|18|24|35|40",
    "kg": "{n} kilos|{n} kg",
}

OPENERS = (
    "hi|hello|hey|good morning|dear team|hi there|sorry to bother you|quick question|hello Tidewell|"
    "excuse me|right|ok so|evening all|urgent|not happy|second time asking"
)
CLOSERS = (
    "thanks|thank you|please help|cheers|many thanks|please answer soon|what can be done|it is urgent|"
    "this is for {who}|I am in {town}|kind regards|any help is welcome|pls|I use the app|my ref is {ref}|"
    "ta|it matters to {who}"
)
CONTEXTS = (
    "it is a present for {who}|I sent a {thing} to {who} {when}|I use your service a lot|I ordered it "
    "{when}|{who} told me to ask you|I asked in the {town} shop {when}|I am new to this|this is about a "
    "{thing}|I tried the app {when}|I rang you {when}|I paid {cash} for it|it is for {who} in {town}|the "
    "chat bot was no help"
)
