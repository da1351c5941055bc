"""What loading a pretrained model does to the allocator, for a model that is only built.

transformers 5.24 (`modeling_utils.caching_allocator_warmup`) asks for one block of the model's bytes, no more than the
card has less 1.2 GiB, and gives it back, so that the weights then lie in one large segment. Left out: quantised
weights, and a process in which something else was on the card before.
"""

from typing import Any

import torch

from memexp.simulate.tensors import device

_KEPT_FREE_BYTES = 1.2 * (1 << 30)


def warm_up_allocator(skeleton: Any) -> None:
    """`skeleton` is the model on the meta device. Raises torch.OutOfMemoryError where the card is too small."""
    from transformers.modeling_utils import get_total_byte_count

    card = device()
    nbytes = get_total_byte_count(skeleton, dict.fromkeys(skeleton.state_dict(), card))[card]
    _, total_bytes = torch.get_device_module(card).mem_get_info()
    torch.empty(int(min(nbytes, total_bytes - _KEPT_FREE_BYTES) // 2), dtype=torch.float16, device=card)
