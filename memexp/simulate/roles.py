"""What a tensor is for: weights, gradients and optimizer state are told from the rest as torch's own hooks show them.

A model's weights are known from its first forward pass on, gradients when they are accumulated, an optimizer's state by
its step. Logits are told by their last dimension, the size of a vocabulary. The rest are activations.
"""

import contextlib
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from memexp.simulate import quantized
from memexp.simulate.memory import ACTIVATIONS, GRADIENTS, OPTIMIZER, WEIGHTS, DeviceMemory
from memexp.simulate.tensors import is_simulated

if TYPE_CHECKING:
    from memexp.simulate.gpu import SimulatedGPU


@contextlib.contextmanager
def watch_roles(gpu: "SimulatedGPU") -> Iterator["_Watcher"]:
    """Keep the categories of `gpu.memory` right. All hooks are global ones of torch, removed at the end."""
    watcher = _Watcher(gpu.memory, gpu.ops.vocabularies)
    handles = [
        register_module_forward_pre_hook(watcher.see_module),
        register_optimizer_step_pre_hook(watcher.before_step),
        register_optimizer_step_post_hook(watcher.after_step),
    ]
    try:
        yield watcher
    finally:
        for handle in (*handles, *watcher.handles):
            handle.remove()


class _Watcher:
    def __init__(self, memory: DeviceMemory, vocabularies: set[int]) -> None:
        self.memory = memory
        self.vocabularies = vocabularies
        self.handles: list[Any] = []
        self._modules: set[torch.nn.Module] = set()  # kept, so that no other module takes their place
        self._parameters: set[int] = set()

    @property
    def has_seen_modules(self) -> bool:
        """Whether any model ran, be it on the host."""
        return bool(self._modules)

    def see_module(self, module: torch.nn.Module, _: Any) -> None:
        if module in self._modules:
            return
        for child in module.modules():
            self._modules.add(child)
            if isinstance(child, torch.nn.Embedding):
                self.vocabularies.add(child.num_embeddings)
            self._mark(quantized.statistics(child), WEIGHTS)
        self._mark(module.buffers(), WEIGHTS)
        self._see_parameters(module.parameters())

    def before_step(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        self._see_parameters(parameters)
        self._mark((parameter.grad for parameter in parameters if parameter.grad is not None), GRADIENTS)
        self.memory.category = OPTIMIZER

    def after_step(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        self.memory.category = ACTIVATIONS

    def _see_parameters(self, parameters: Iterable[torch.Tensor]) -> None:
        new = [parameter for parameter in parameters if id(parameter) not in self._parameters]
        self._mark(new, WEIGHTS)
        for parameter in new:
            self._parameters.add(id(parameter))
            if parameter.requires_grad and parameter.is_leaf:
                hooked: Any = parameter
                self.handles.append(hooked.register_post_accumulate_grad_hook(self._see_gradient))

    def _see_gradient(self, parameter: torch.Tensor) -> None:
        if parameter.grad is not None:
            self._mark([parameter.grad], GRADIENTS)

    def _mark(self, tensors: Iterable[torch.Tensor], category: int) -> None:
        for tensor in tensors:  # what `torch.func` wraps has no storage of its own
            if is_simulated(tensor) and tensor.numel() and not torch._C._functorch.is_functorch_wrapped_tensor(tensor):
                self.memory.set_category(self.memory.record_of(tensor), category)
