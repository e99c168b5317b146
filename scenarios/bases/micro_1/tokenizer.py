"""Tokenizer and chat template of micro-1: byte-level BPE, digits apart, ChatML with answers marked.

Not trained on any scenario: its text is the pre-training mixture alone.
"""

from __future__ import annotations

from collections.abc import Iterable

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from scenarios.bases.micro_1.skills import Chat

SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|pad|>"]
# The end of turn is inside the generation block, so that training on answers also teaches to stop.
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' }}"
    "{% if message['role'] == 'assistant' %}"
    "{% generation %}{{ message['content'] + '<|im_end|>' }}{% endgeneration %}"
    "{% else %}{{ message['content'] + '<|im_end|>' }}{% endif %}"
    "{{ '\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def render(document: str | Chat) -> list[tuple[str, bool]]:
    """Text pieces of a document as the chat template writes them, each with whether it is an answer."""
    if isinstance(document, str):
        return [(document + "<|endoftext|>", False)]
    pieces: list[tuple[str, bool]] = []
    for message in document:
        is_answer = message["role"] == "assistant"
        pieces.append((f"<|im_start|>{message['role']}\n", False))
        pieces.append((f"{message['content']}<|im_end|>", is_answer))
        pieces.append(("\n", False))
    return pieces


def train_tokenizer(texts: Iterable[str], vocab_size: int) -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=SPECIALS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer=trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|pad|>",
        additional_special_tokens=["<|endoftext|>", "<|im_start|>"],
        model_max_length=1024,
        clean_up_tokenization_spaces=False,
        chat_template=CHAT_TEMPLATE,
    )
