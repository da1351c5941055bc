"""Pretrained models whose own code fails on its first forward, as their config says: faults from outside."""

import json
import shutil
from pathlib import Path

CODE = """
import ctypes
import os
import resource
import signal

import torch
from transformers import Qwen2Config, Qwen2ForCausalLM


class FaultyConfig(Qwen2Config):
    model_type = "faulty"
    fault: str | None = None


class FaultyForCausalLM(Qwen2ForCausalLM):
    config_class = FaultyConfig

    def __init__(self, config):
        super().__init__(config)
        # TRL puts a forward of its own over this class's, so the fault sits one module further in.
        self.model.register_forward_pre_hook(self.fail)

    def fail(self, *args):
        fault = self.config.fault
        if fault == "raises":
            raise ArithmeticError("the model cannot count")
        if fault == "exits":
            raise SystemExit(3)
        if fault == "is_killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if fault == "runs_out_of_memory":
            raise torch.OutOfMemoryError(
                "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 23.60 GiB of which "
                "512.00 MiB is free."
            )
        if fault == "segfaults":
            ctypes.string_at(0)
        if fault == "fills_the_host":
            soft, hard = resource.getrlimit(resource.RLIMIT_AS)
            held = int(open("/proc/self/statm").read().split()[0]) * 4096
            resource.setrlimit(resource.RLIMIT_AS, (held + 2**28, hard))
            try:
                torch.zeros(2**28)
            finally:
                resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
        if fault == "fills_the_disk":
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
        if fault == "prints_its_environment":
            # A library that kept what it was given, a key among it.
            kept = open("/proc/self/environ").read()
            print("WHOLE ENVIRONMENT", dict(os.environ), kept)
"""


def write_sound_model(folder: Path) -> Path:
    """A tiny model on disk that works, with the shipped tokenizer: what `model.weights=pretrained` loads."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    from memexp.run.data import ASSETS

    config = Qwen2Config(
        vocab_size=4096,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
    )
    Qwen2ForCausalLM(config).save_pretrained(folder)
    shutil.copytree(ASSETS / "tokenizer", folder, dirs_exist_ok=True)
    (folder / "modeling_faulty.py").write_text(CODE, encoding="utf-8")
    return folder


def write_faulty_model(folder: Path, sound: Path, fault: str) -> Path:
    """A copy of a sound model that fails as `fault` says once `model.trust_remote_code=true` lets its code run."""
    shutil.copytree(sound, folder)
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    config |= {
        "model_type": "faulty",
        "architectures": ["FaultyForCausalLM"],
        "auto_map": {
            "AutoConfig": "modeling_faulty.FaultyConfig",
            "AutoModelForCausalLM": "modeling_faulty.FaultyForCausalLM",
        },
        "fault": fault,
    }
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder
