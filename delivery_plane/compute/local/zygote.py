"""Imports every training library once, in the fork server, so that a job's process starts in milliseconds.

It computes nothing: a process forked from one that has run torch operators on threads can hang. Only the
fork server imports this module (see `children`); a worker that did would load torch itself.
"""

import atexit
import gc
import os
import sys
import threading
from importlib import import_module
from multiprocessing import spawn

from delivery_plane.compute.local.children import prepare_environment

LIBRARIES = {
    "torch": (),
    "transformers": ("AutoConfig", "AutoModelForCausalLM", "AutoTokenizer", "Trainer", "TrainerCallback"),
    "transformers.models.qwen3.modeling_qwen3": (),
    "trl": ("DPOConfig", "DPOTrainer", "GRPOConfig", "GRPOTrainer", "SFTConfig", "SFTTrainer"),
    "peft": ("LoraConfig", "PeftModel"),
    "datasets": ("Dataset",),
    "trl.chat_template_utils": (),
    "lm_eval.evaluator": (),
    "lm_eval.models.huggingface": (),
    "lm_eval.tasks": (),
    "uvicorn": (),
    "starlette.applications": (),
    # Ours: what every job is described in takes half a second to define.
    "delivery_plane.compute.plane": (),
    "delivery_plane.rows": (),
}
"""Modules to load and, where imports are lazy, the names that must be resolved to really load them."""


def _silence() -> None:
    # The libraries talk while they load; a worker's terminal is not theirs. Jobs have log files.
    nowhere = os.open(os.devnull, os.O_RDWR)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    os.close(nowhere)


def _leave_main_alone() -> None:
    # Children of this server run functions of this package only, by name. Running the worker's main module
    # once more in each of them, as multiprocessing would, costs time and could repeat its side effects.
    for name in ("_fixup_main_from_name", "_fixup_main_from_path"):
        setattr(spawn, name, lambda _main: None)


def _load() -> None:
    prepare_environment()
    for module, names in LIBRARIES.items():
        loaded = import_module(module)
        for name in names:
            getattr(loaded, name)
    sys.modules["torch"].set_num_threads(1)


def _settle() -> None:
    # What is loaded stays loaded: collectors of the jobs need not walk it again, half a second each time.
    gc.collect()
    gc.freeze()
    # Taking these libraries down in order costs seconds of a core and frees nothing the system would not.
    atexit.register(os._exit, 0)
    # tqdm's own lock is a named semaphore, which a killed job would leave behind for the worker to report.
    sys.modules["tqdm"].tqdm.set_lock(threading.RLock())


_silence()
_leave_main_alone()
_load()
_settle()
