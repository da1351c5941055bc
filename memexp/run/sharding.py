"""How the processes of a cell share the work, read from the built trainer: who holds which weights, and when.

The one place that knows DeepSpeed's attributes (0.19). Nothing in here imports it: what it built is looked at.
"""

from typing import Any

import torch

from memexp.run.quantize import true_size


def launch_settings(trainer: Any) -> dict[str, Any]:
    """`launch` by what the model was wrapped in: DeepSpeed's engine with split weights, DDP, or nothing."""
    split = any(is_split(parameter) for parameter in trainer.model.parameters())
    parallel = isinstance(trainer.model_wrapped, torch.nn.parallel.DistributedDataParallel)
    return {
        "launch": "zero3" if split else "torchrun" if parallel else "single",
        "processes": trainer.accelerator.num_processes,
    }


def is_split(parameter: Any) -> bool:
    """Whether ZeRO-3 holds a part of it on each process."""
    return hasattr(parameter, "ds_id")


def whole_size(parameter: Any) -> int:
    """Weights in a parameter, of all processes: what is split is empty here while nobody uses it."""
    return int(parameter.ds_numel) if is_split(parameter) else true_size(parameter)


def innermost(optimizer: Any) -> Any:
    """The optimizer that steps, within what accelerate and DeepSpeed put around it."""
    while hasattr(optimizer, "optimizer"):
        optimizer = optimizer.optimizer
    return optimizer


def master_dtypes(optimizer: Any) -> list[torch.dtype]:
    """Of the weights that a DeepSpeed optimizer steps on, beside those that the modules compute with; else empty."""
    engine = getattr(optimizer, "optimizer", None)
    return [part.dtype for part in getattr(engine, "fp32_partitioned_groups_flat", None) or []]


class SamplingWatch:
    """Whether all weights are there when completions are sampled: looked at in the first forward of `generate`.

    `gathered` is None until that was seen, and stays None where no weight is split.
    """

    def __init__(self, model: Any) -> None:
        self.gathered: bool | None = None
        # The adapters' model generates with the one below it. Here first, so before DeepSpeed gathers for a module.
        base = model.get_base_model() if hasattr(model, "get_base_model") else model
        self._hook = base.register_forward_pre_hook(self._look, with_kwargs=True)

    def settings(self) -> dict[str, Any]:
        """`ds3_gather`, where there was something to see."""
        return {} if self.gathered is None else {"ds3_gather": self.gathered}

    def _look(self, model: Any, args: Any, kwargs: dict[str, Any]) -> None:
        split = [parameter for parameter in model.parameters() if is_split(parameter)]
        # Only sampling keeps keys and values.
        if split and kwargs.get("use_cache") and not torch.is_grad_enabled():
            self.gathered = all(parameter.numel() == parameter.ds_numel for parameter in split)
            self._hook.remove()
