"""Loading models and tokenizers, and greedy decoding. Runs in child processes: imports torch.

The tokenizer, its chat template and the decoding always come from the base and the platform, never from
what is being judged: a candidate's own could be made to answer for it.
"""

import os
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GenerationConfig

from delivery_plane.compute.local.digests import ADAPTER_CONFIG, refuse_unsafe
from delivery_plane.compute.plane import ModelRef
from delivery_plane.errors import ComputeFault


def use_device(name: str) -> torch.device:
    """The torch device for "cpu" or "cuda", with this process limited to one thread."""
    torch.set_num_threads(1)
    if name == "cuda" and not torch.cuda.is_available():
        raise ComputeFault("device cuda was asked for, and torch finds none")
    return torch.device(name)


def load_tokenizer(base: Path) -> Any:
    """The base's tokenizer, padding on the left, as decoding needs."""
    refuse_unsafe(base)
    tokenizer = AutoTokenizer.from_pretrained(base, local_files_only=True, padding_side="left")
    if tokenizer.chat_template is None or tokenizer.eos_token_id is None:
        raise ComputeFault(f"{base}: the tokenizer needs a chat template and an end-of-turn token")
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def load_base(base: Path, device: torch.device) -> Any:
    """A base model in float32, from safetensors only."""
    refuse_unsafe(base)
    return _load(base, base).to(device)


def load_model(model: ModelRef, device: torch.device) -> Any:
    """A base with its checkpoints applied in order: full weights replace it, adapters are merged, the last is not."""
    refuse_unsafe(model.base_path)
    weights, adapters = model.base_path, list[Path]()
    for checkpoint in model.checkpoints:
        if (checkpoint / ADAPTER_CONFIG).exists():
            adapters.append(checkpoint)
        else:
            weights, adapters = checkpoint, []
    loaded = _load(weights, model.base_path)
    for adapter in adapters:
        loaded = PeftModel.from_pretrained(merged(loaded), adapter, local_files_only=True)
    return loaded.to(device).eval()


def merged(model: Any) -> Any:
    """The model with its adapter, if it has one, in its weights, which an adapter froze."""
    return model.merge_and_unload().requires_grad_(True).eval() if isinstance(model, PeftModel) else model


def context_tokens(model: Any) -> int:
    """Longest sequence the model was made for."""
    return int(getattr(model.config.get_text_config(), "max_position_embeddings", 0) or 2048)


def greedy(model: Any, tokenizer: Any, input_ids: Any, attention_mask: Any, max_new_tokens: int) -> Any:
    """Token ids after the prompts, greedily decoded to the end of turn; (batch, new tokens), right-padded.

    `input_ids` and `attention_mask` are (batch, prompt tokens), padded on the left.
    """
    return _decoded(model, tokenizer, input_ids, attention_mask, max_new_tokens, {"do_sample": False})


def sampled(
    model: Any, tokenizer: Any, input_ids: Any, attention_mask: Any, max_new_tokens: int, temperature: float
) -> Any:
    """As `greedy`, drawn from the model's whole distribution at a temperature, with torch's own generator."""
    how = {"do_sample": True, "temperature": temperature, "top_k": 0, "top_p": 1.0}
    return _decoded(model, tokenizer, input_ids, attention_mask, max_new_tokens, how)


def _decoded(
    model: Any, tokenizer: Any, input_ids: Any, attention_mask: Any, max_new_tokens: int, how: dict[str, Any]
) -> Any:
    settings = GenerationConfig(
        **how,
        max_new_tokens=max_new_tokens,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        use_cache=True,
    )
    # Replaced, not only passed: generate() fills what a passed configuration leaves open from the model's own.
    model.generation_config = settings
    found = model.generate(input_ids=input_ids, attention_mask=attention_mask, generation_config=settings)
    return found[:, input_ids.shape[1] :]


def _load(weights: Path, configured_by: Path) -> Any:
    config = AutoConfig.from_pretrained(configured_by, local_files_only=True)
    model, loading = AutoModelForCausalLM.from_pretrained(
        weights,
        config=config,
        dtype=torch.float32,
        use_safetensors=True,
        local_files_only=True,
        output_loading_info=True,
    )
    # A missing tensor would be drawn at random, with no more than a log line.
    for problem in ("missing_keys", "unexpected_keys", "mismatched_keys", "error_msgs"):
        if loading.get(problem):
            raise ComputeFault(
                f"{weights}: {problem.replace('_', ' ')}: {sorted(map(str, loading[problem]))[:3]}"
            )
    model.generation_config = GenerationConfig()
    return model.eval()


def peak_memory_bytes(device: torch.device) -> int:
    """Most memory this process has held: on the device, or resident."""
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    # The kernel's high-water mark of this process alone; ru_maxrss would start from the fork server's.
    for line in Path(f"/proc/{os.getpid()}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return 0
