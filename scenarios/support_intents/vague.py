"""Messages that fit two intents of Tidewell Parcels equally well.

Not an error: such a row carries one of its two labels, which keeps the ceiling of any model below 100%.
"""

from __future__ import annotations

VAGUE: list[tuple[tuple[str, str], list[str]]] = [
    (
        ("track_my_parcel", "parcel_running_late"),
        [
            "[any news|any update|anything new] on {ref}",
            "what is going on with [my|the] {item}",
        ],
    ),
    (
        ("marked_delivered_not_here", "wrong_parcel_received"),
        [
            "[I do not have|never saw] the {thing} from {ref}",
            "{ref} went to the wrong [house|person]",
        ],
    ),
    (
        ("damaged_on_arrival", "claim_progress"),
        [
            "[the broken|about the broken] {thing}, [what now|what next]",
            "how do I get paid for the [ruined|cracked] {thing}",
        ],
    ),
    (
        ("move_delivery_day", "new_delivery_address"),
        [
            "[change|I need to change] [the|my] delivery [details|plan] for {ref}",
            "I will not be home {soon}",
        ],
    ),
    (
        ("locker_will_not_open", "pickup_code_missing"),
        [
            "[can't|cannot] get my {item} out of the locker",
            "the code [for|at] {town} [is no good|does not work]",
        ],
    ),
    (
        ("missed_home_collection", "book_home_collection"),
        [
            "[when will|when does] the van come for my {item}",
            "my {thing} still needs [picking up|collecting]",
        ],
    ),
    (
        ("postage_refund", "charged_two_times"),
        [
            "[there is|you made] a mistake [with|in] my [payment|bill] of {cash}",
            "I paid [too much|more than I should] for {ref}",
        ],
    ),
    (
        ("postage_refund", "cancel_my_order"),
        [
            "I do not want {ref} any more, [money back|refund] please",
        ],
    ),
    (
        ("price_estimate", "customs_fee_question"),
        [
            "[what are|tell me] the costs for a {thing} to {abroad}",
        ],
    ),
    (
        ("size_and_weight_limits", "price_estimate"),
        [
            "I [have|want to send] a {kg} {thing}, [what then|how does that work]",
        ],
    ),
    (
        ("banned_goods_question", "size_and_weight_limits"),
        [
            "do you [accept|take] a {thing}",
            "is a {thing} [fine|ok] to send",
        ],
    ),
    (
        ("cannot_sign_in", "update_contact_details"),
        [
            "[my account|the app] [has|uses] my old [mail|number]",
            "problem with my [profile|login details]",
        ],
    ),
    (
        ("driver_behaviour", "marked_delivered_not_here"),
        [
            "the driver [left|dumped] my {item} [in the rain|in the road|by the bins]",
        ],
    ),
    (
        ("label_will_not_print", "business_account_setup"),
        [
            "how do I [make|get] {n} labels at once",
        ],
    ),
]
