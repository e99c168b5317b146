"""What the Tidewell Parcels customers ask, as templates per intent.

Not a sampler: `generator.py` expands these. `[a|b|]` picks one alternative, `{slot}` picks a filler.
"""

from __future__ import annotations

INTENTS: dict[str, list[str]] = {
    "track_my_parcel": [
        "where is [my|the] {item} [now|right now|at the moment]",
        "[can you|could you|please] tell me where {ref} [is|has got to]",
        "how do I [follow|see the progress of] [my|the] {item} [online|on the map|in the app|]",
        "which depot is {ref} [in|at] [today|now|]",
        "[is|has] my {item} [out with the driver|left the depot|reached {town}] yet",
        "I want to [check|know] the [status|whereabouts|position] of {ref}",
        "the {thing} I sent to {who}, [how far has it got|what stage is it at]",
        "[I need|do you have|send me] a [tracking link|live map] for [the {thing}|{ref}|my box]",
        "[has anyone|did they] [scanned|logged] {ref} [since {town}|today|at the hub]",
    ],
    "parcel_running_late": [
        (
            "my {item} [was due|should have come|was promised] {when} and [still nothing|it is not here|"
            "no sign of it]"
        ),
        "[you said|I was told] {day}, [it is now|today is] {day}, [what is the hold up|why the delay]",
        "{ref} is [days|a week|{n} days] [behind|overdue|late]",
        "how much longer [must I wait|do I have to wait|will it be] for [the|my] {item}",
        "[still|I am still] waiting [for|on] a {thing} [ordered|sent|posted] {when}",
        "why [has|is] {ref} [not arrived|taking so long|stuck at {town} for days|not moved for {n} days]",
        "the {item} never [came|turned up|showed up] {when} [like|as] [promised|planned]",
        "your [estimate|delivery date] keeps [slipping|moving back], {who} [needs|wants] the {thing}",
        "it has been {n} days [and no {item}|with no {thing}], [this is too slow|that is not next day]",
    ],
    "damaged_on_arrival": [
        "the {thing} [arrived|came|turned up] [smashed|cracked|broken|in bits|bent|dented]",
        (
            "[my|the] {item} [was|is] [crushed|soaked|ripped open|squashed|torn] when [I got it|it came|"
            "it reached me]"
        ),
        "[there is|I found] a [big|huge|] [crack|dent|hole|tear] in [my|the] {thing} [you brought|from you|]",
        "opened the box and the {thing} [is|was] [in pieces|ruined|wrecked|snapped]",
        "water [got into|leaked through] the [box|wrapping] and [spoiled|ruined] the {thing}",
        (
            "[who pays|what happens now], the {thing} [does not work|is broken] after [your trip|shipping|"
            "delivery]"
        ),
        (
            "the [corner|side|lid] of the {thing} is [bashed|chipped|scratched|crushed], [bad handling|"
            "poor packing on your side]"
        ),
        "{who} [got|received] a {thing} [with a broken leg|all bent|covered in dents|full of glass bits]",
    ],
    "wrong_parcel_received": [
        "I [got|was given|received] [someone else's|a stranger's|another person's] {item}",
        (
            "this is not [mine|my {item}|what I ordered], I [ordered|expected] a {thing} and [got|found] "
            "a {other}"
        ),
        "the name on the [box|label] is [not me|for a person in {town}|somebody else]",
        (
            "[you|your van] [swapped|mixed up] [two boxes|our parcels], I have the {other} of [a "
            "neighbour|a stranger]"
        ),
        "a {other} came [instead of|rather than] [my|the] {thing}",
        "[there is|I have] a box here [meant|addressed] to {street} and I live [on|in] {street}",
        "[what do I do with|can you fetch] a {item} that [is not for me|belongs to another house]",
        "inside was a {other}, [nothing to do with my order|not the {thing} from {ref}]",
    ],
    "marked_delivered_not_here": [
        (
            "[the app|your site|tracking] says [delivered|handed over] but [I have nothing|nobody came|"
            "there is no {item}]"
        ),
        "{ref} is [marked|shown] as [delivered|complete] [and|yet] [my porch is empty|it is not here]",
        (
            "[supposedly|apparently] [signed for|left with a neighbour] {when}, [no neighbour has it|I "
            "signed nothing]"
        ),
        "the photo [shows|is of] a door that is not [mine|ours], [so where did you leave it|no {item} here]",
        (
            "[someone|a thief] [took|must have taken] the {item} [from the step|off the porch] after you "
            "[left|dropped] it"
        ),
        "you [claim|say] you [dropped it off|left it] {when}, [I was home all day|I looked everywhere]",
        "it [was not|is not] in the [shed|porch|safe place] [where|that] your note [says|mentions]",
        "got a [delivered|all done] [text|mail] for the {thing} [but it is nowhere|and found an empty step]",
    ],
    "move_delivery_day": [
        "[can|could] you [bring|deliver] [it|the {item}] {soon} instead",
        "I [am away|will be out|am at work] {soon}, [please come later|can it come another time]",
        "[change|move|push|shift] [the drop|my slot|delivery] [to|back to] {day} [please|]",
        "[hold|keep] [my|the] {item} [until|till] {day}",
        "[is a later date|is {day}] possible for {ref}",
        "{day} [does not suit|is no good for] me, [pick|give me] [another|a different] date",
        "please [do not come|no van] {soon}, nobody [is|will be] [home|in]",
        "[I would like|is it ok to have] [the {thing}|{ref}] a [day|few days|week] [later|earlier]",
    ],
    "new_delivery_address": [
        "[send|take|redirect] [it|the {item}] to {street} [instead|not {street}]",
        "I [moved|have moved|am moving] to {town}, [please update the drop|where will my {item} go]",
        "I [typed|put|gave] the wrong [street|house number|postcode] for {ref}",
        "[can|could] the {thing} go to [my office|{who}|my work] [in {town}|] [rather than my house|instead]",
        "[we live|the house is] at number {n} not {n}, [please fix it|correct {ref}]",
        "the flat number [is missing|was left off] on {ref}, it is flat {n}",
        "[reroute|divert] {ref} to {town}",
        "[wrong destination|bad address] on my order, it should [say|be] {street}",
    ],
    "locker_will_not_open": [
        "the [door|hatch|box] [at|of] the {town} [locker|station] [is stuck|stays shut|is jammed]",
        "I [typed|entered] the [code|digits] and [nothing happened|the hatch did not move|it just beeps]",
        "the [screen|keypad|touch screen] on the [locker|wall unit] is [dead|frozen|black|broken]",
        "[standing|I am] at [the locker|{town} station] and [it will not unlock|the flap does not pop]",
        "compartment {n} [won't|does not] [release|open|unlock], my {thing} is [inside|trapped]",
        "the [metal|little] door [opened half way|clicked but did not open] [and jammed|]",
        "[locker|the unit] [rejects|refuses] [my code|a valid pin], [how do I reach my {item}|help]",
        (
            "[scanner|reader] at the {street} locker [will not read|ignores] my phone so the [door|hatch] "
            "is shut"
        ),
    ],
    "pickup_code_missing": [
        "I [never|did not] [get|receive] the [pin|code|digits] for [my pick up|the locker|{ref}]",
        "[send|text|resend] me the [code|pin|pickup digits] [again|please|once more]",
        "[deleted|lost|I cleared] the [text|message|mail] with [my|the] [pin|code]",
        "[where|how] do I [find|get] the [number|digits|code] to [collect|fetch] my {item}",
        (
            "no [text|message] came [with|about] the [pin|code], the {item} [is waiting|has been there] "
            "since {day}"
        ),
        "[the shop|the clerk] in {town} asks for a [code|pin] and I [have none|was not given one]",
        "my [pin|code] [expired|ran out] {when}, [need a new one|can I have a fresh one]",
        "[what is|tell me] the [collection|pick up] [code|pin] for {ref}",
    ],
    "missed_home_collection": [
        "[nobody|no one|no driver] [came|showed up] to [pick up|collect|fetch] my {item} {when}",
        "I [waited in|stayed home] all [day|morning] for the pick up and [no van came|nobody rang]",
        "your [driver|van] [skipped|missed] [us|my house|our pick up] {when}",
        (
            "the {thing} I am [sending|returning] is still [in my hall|here by the door], you were to "
            "take it {when}"
        ),
        "[booked|I paid for] a pick up {when}, [it never happened|still sitting here]",
        "collection [failed|did not take place] {when}, [why|what went wrong]",
        "[was|were] you not meant to [take|collect] {ref} from me {when}",
        "the pick up slot [passed|came and went] [without|with no] [a van|any driver]",
    ],
    "book_home_collection": [
        "[can|could] someone [pick up|collect|fetch] a {thing} from [my house|{street}|my flat] {soon}",
        "I [want|need|would like] to [arrange|set up|schedule] a pick up {soon}",
        "[send a van|have a driver come] to {town} {soon} to [get|take] my {item}",
        "how do I [ask|arrange] for you to [come and get|collect] [a box|a {thing}] from home",
        "[are there|any] [free|open] [slots|times] {soon} for [a pick up|collecting a {thing}]",
        "I have {n} boxes to [send|post] and [no car|cannot carry them], [can you come|please come]",
        "[book|reserve] me a [driver|van|pick up] {soon} [please|for a {thing}]",
        "do you [come to|collect from] [homes|people] in {town} [on {day}|]",
    ],
    "postage_refund": [
        "I [want|would like] my [money|postage|{cash}] back for {ref}",
        "[please|can you] [refund|return|give back] the [postage|fee|{cash}] I paid",
        "you [owe|should pay] me {cash} [because|as] it [came late|was never sent]",
        "the [next day|express] [fee|charge] [should be returned|must come back], it took {n} days",
        "when [will|does] my [refund|money] [arrive|show up|land], you agreed to it {when}",
        "[unused|I did not use the] [label|postage] for the {thing}, [pay me back|can I get the cost back]",
        "[am I|are we] [entitled to|due] [any money|something] back [for the slow service|on {ref}]",
        "[reimburse|credit] [me|my card] for the {thing} [shipping|postage]",
    ],
    "charged_two_times": [
        "you [took|have taken] {cash} [twice|two times] [for {ref}|]",
        "[two|double] [payments|charges] [of {cash}|] on my [statement|card|bank account]",
        "I [paid|was billed] for one [label|{thing}] and see [two|a second] [payment|bill]",
        "the same [amount|bill|fee] [appears|left my account] [again|two times|once more] {when}",
        "why [is there|do I see] a second [payment|debit] of {cash}",
        "[my card|the bank] was [hit|debited] [twice|double] {when}",
        "the [page|app] froze, I pressed pay again and [both went through|now I have paid double]",
        "[billed|invoiced] {cash} and then {cash} more for [the same thing|one box]",
    ],
    "customs_fee_question": [
        "[how much|what] [duty|tax|import tax] [will there be|do I pay] on a {thing} from {abroad}",
        "[why|what for] [is there|do I owe] a [border|duty|customs] [charge|fee] on {ref}",
        "{ref} is [held|stopped] at the border, [which form|what paper] do [they|you] need",
        "do I [need|have to fill in] a [form|declaration] [for|to send a {thing} to] {abroad}",
        "[are gifts|is a gift] to {abroad} [free of|exempt from] [tax|duty]",
        "who [pays|covers] the [import|border|duty] [costs|fee] for {abroad}, me or {who}",
        "the [card|letter] says pay {cash} [tax|duty] before you [hand over|release] my {item}",
        "what [value|code] [goes|do I write] on the [declaration|export form] for a {thing}",
    ],
    "price_estimate": [
        "how much [to send|does it cost to send|is it to ship] a {thing} to [{town}|{abroad}]",
        "what [is the price|would I pay] for a {kg} box to [{town}|{abroad}]",
        "[give|can I have] a [quote|price|rough cost] for {n} boxes [to {town}|]",
        "[is express|is next day] much [dearer|more expensive] than [normal|standard]",
        "[what are|where are] your [rates|prices|tariffs] for [small|big|heavy] [boxes|items]",
        "[cheapest|the cheapest] way to [get|ship] a {thing} to {who} in [{town}|{abroad}]",
        "[will {cash}|is {cash} enough to] cover [postage|shipping] of a {thing}",
        "[do you do|any] [discounts|cheaper rates] if I [post|send] {n} at once",
    ],
    "label_will_not_print": [
        "the [label|sticker|barcode] [will not|does not|won't] [print|come out of the printer]",
        (
            "[my printer|the printer] [spits out|gives] a [blank|empty|white] [page|sheet] instead of the "
            "[label|barcode]"
        ),
        "the [label|barcode] [prints|comes out] [too small|cut off|blurred|sideways]",
        "I [have no|do not own a] printer, [how do I put a label on|what about the label for] my {item}",
        "the [pdf|label file|download] [is broken|will not open|is empty] for {ref}",
        "[paid|I paid] but [there is no|I cannot find the] [label|sheet] to [stick on|print]",
        "[can|could] the [shop|driver] [print|bring] [it|the label|the sticker] for me",
        (
            "the [sticker|code sheet] [came out|is] [smudged|unreadable], [can I get|need] [a new file|"
            "another copy]"
        ),
    ],
    "size_and_weight_limits": [
        "is {kg} [too heavy|over the limit|ok]",
        "[what is|tell me] the [largest|biggest|longest] [box|thing] you [take|carry]",
        "[will|would] a {thing} [fit in|be too big for] [a locker|a medium box|the small locker]",
        "how [heavy|wide|long|tall] [can|may] a [box|{item}] be",
        "my {thing} is {n}0 cm [long|tall|wide], [do you take that|is it allowed]",
        "[max|top|upper] [weight|size|length] for [lockers|home drop|one box]",
        "[do you measure|how do you count] [round tubes|odd shapes|the box with padding]",
        "the box is [a bit|slightly] [over|above] {kg}, [will you still carry it|is that a problem]",
    ],
    "banned_goods_question": [
        (
            "[can|may] I [send|post|ship] [perfume|a battery|wine|knives|medicine|plants|paint|cash|"
            "fireworks|lighter gas]"
        ),
        (
            "[is it|are we] [legal|allowed|ok] to [put|pack] [a phone battery|alcohol|nail polish|cheese|"
            "seeds] in [a box|my {item}]"
        ),
        (
            "[are|is] [candles|aerosols|live fish|fresh meat|jewels|petrol cans|bleach] [allowed|"
            "permitted|forbidden]"
        ),
        "what [goods|things|items] do you [refuse|not accept|not carry]",
        "do you [take|carry] [perfume|batteries|wine|glue|knives|medicine|plants] to [{town}|{abroad}]",
        "[list|where is the list] of [things|stuff] I [must not|cannot] [send|pack]",
        (
            "[you|the clerk] [turned away|refused] my {thing} because of [the battery|the fuel|the gas], "
            "[is that right|why]"
        ),
        "[any rule|rules] [against|about] [sending|shipping] [a sword|old ammunition|chemicals|food|spirits]",
    ],
    "cancel_my_order": [
        "[please|] [cancel|scrap|drop|stop] [{ref}|my order|the {thing} booking]",
        "I [changed my mind|no longer want to send it|do not need it now], [call it off|stop {ref}]",
        "[how|where] do I [undo|call off|cancel] [a booking|an order|{ref}]",
        "[is it too late|can I still] [to stop|pull out of|to call off] {ref}",
        "I [booked|ordered] [by mistake|by accident], [remove it|please delete {ref}]",
        "[do not|please don't] [ship|send] the {thing}, {who} [already has one|does not want it]",
        (
            "[made|I made] the same [booking|order] [by accident|in error] {when}, [take one off|drop one "
            "of them]"
        ),
        "[withdraw|end] my [order|booking] for {day}, [not needed|plans changed]",
    ],
    "claim_progress": [
        "[any news|what is new|any decision] on my [claim|case] [about|for] the {thing}",
        "I [filed|sent in|opened] a [claim|case] {when} and [heard nothing|no reply]",
        "[how long|how many days] [does|will] [a claim|the compensation] take",
        "[did you|have you] [get|seen|got] the photos [I sent|] for my [claim|case]",
        "[my case|the claim] has been [under review|open] [since {day}|for {n} weeks]",
        "[who|which person] [is looking at|handles] my [compensation|claim|case] for {ref}",
        "[what more|which papers] do you need to [settle|decide] the {thing} [case|claim]",
        (
            "you [asked|wanted] me to [wait {n} days|send a receipt], [I did|done], [what is the outcome|"
            "so what now]"
        ),
    ],
    "driver_behaviour": [
        "[your|the] [driver|courier|van man] was [rude|very rude|shouting] [at|to] [me|{who}] {when}",
        "the [courier|driver] [threw|kicked|tossed] [the box|my {item}] [over the fence|onto the step]",
        "[your van|one of your vans] [blocked|parked across] [my drive|the school gate] {when}",
        "[the man|he|she] [swore|yelled] at {who} and [drove off|slammed the gate]",
        "[I want|this is] to [complain|report] [about|] [a driver|the courier] [in {town}|on {street}]",
        "your [driver|courier] [drove over my lawn|scared my dog|nearly hit my car|was smoking at my door]",
        "he did not [even knock|ring], just [threw a card|ran off], [so lazy|bad manners]",
        (
            "[please thank|lovely manners from] [the driver|your courier] [in|on] [{town}|{street}], [so "
            "kind|very helpful] {when}"
        ),
    ],
    "cannot_sign_in": [
        "I [can't|cannot|am unable to] [log in|sign in|get into my account]",
        "[forgot|lost|I do not know] my password [and the reset does nothing|]",
        "the [site|app] [says|tells me] [wrong password|unknown user] [every time|again and again]",
        "my account [is locked|got blocked] after {n} [tries|attempts]",
        "the reset [link|mail] [never comes|is dead|has expired]",
        "[keeps|the app keeps] [throwing|logging] me out [when I open it|]",
        "[how do I|where can I] [reset|change] my [password|login]",
        "[new phone|changed phone], [now|and] the app [does not know me|will not let me in]",
    ],
    "update_contact_details": [
        "I have a new [phone|mobile] number, [where do I change it|please update it]",
        (
            "[change|update|correct] [my|the] [mail address|phone|surname|contact number] [on file|in my "
            "profile|]"
        ),
        "my [texts|messages] go to [an old|my old] [phone|number|inbox]",
        "I got married and my [name|surname] [is different|has changed]",
        "[the profile|my profile] has the wrong [name|birthday|phone], [how do I edit it|fix please]",
        "[stop|please stop] [mailing|texting] [my old number|my ex], use [the new one|mine]",
        "you [spell|have] my name [wrong|badly] in [your mails|the app]",
        "[add|can I add] a second [number|mail] to my [profile|account] [for alerts|]",
    ],
    "business_account_setup": [
        (
            "[I run|we run|we own] a [small shop|bakery|web shop|studio] in {town}, [can we open a trade "
            "account|how do we join]"
        ),
        "[do you have|is there] [an account|a plan] for [companies|firms|sellers]",
        "we [ship|post|send] {n}0 boxes a [week|month], [can we get a contract|who do I talk to]",
        "[need|we need] [monthly|one] invoice [for our firm|with our tax number|instead of card payments]",
        "[set up|open] [a trade|a company|a business] [login|account] for [our team|my firm]",
        (
            "[how does|can] [my company|our shop] [pay at the end of the month|get daily pick ups|join "
            "your scheme]"
        ),
        "[does|do] your [system|labels] [connect|work] with our [web shop|stock software]",
        "[which papers|what] do you need from [a firm|our company] to [become a client|get terms]",
    ],
}
