"""Tensors of the simulated device: real `torch.Tensor` objects, with a shape, a storage and an address, but no data.

They are of torch's PrivateUse1 device type, which a CPU build has too, so that autograd, views and `type(t)` are what
they would be on a GPU. Their address is the one that the simulated allocator gave; nothing is there, so no kernel may
ever read it. Version notes: `torch._C._acc` and `_construct_storage_from_data_pointer` as in torch 2.13.
"""

import functools
from typing import cast

import torch
from torch._C import DispatchKey, DispatchKeySet

DEVICE_TYPE = "simgpu"

# The CPU kernels of these two ops touch no data and take tensors of any device.
CPU_KERNELS = DispatchKeySet(DispatchKey.CPU)
_set = torch.ops.aten.set_.source_Storage_storage_offset.redispatch
_as_strided = torch.ops.aten.as_strided.default.redispatch
_create_empty = torch._C._acc.create_empty_tensor
_construct_storage = torch._C._construct_storage_from_data_pointer

Shape = tuple[int, ...]


@functools.cache
def device() -> torch.device:
    """The simulated device. Its name exists once `backend.register` has run."""
    return torch.device(DEVICE_TYPE, 0)


def is_simulated(tensor: torch.Tensor) -> bool:
    return tensor.device.type == DEVICE_TYPE


def storage_at(address: int, nbytes: int) -> torch.UntypedStorage:
    return cast(torch.UntypedStorage, _construct_storage(address, device(), nbytes))


def tensor_on(
    storage: torch.UntypedStorage, size: Shape, stride: Shape, offset: int, dtype: torch.dtype
) -> torch.Tensor:
    """A tensor that lies in `storage`, which must be large enough."""
    tensor: torch.Tensor = _create_empty((0,), dtype)
    _set(CPU_KERNELS, tensor, storage, offset, size, stride)
    return tensor


def view_of(tensor: torch.Tensor, size: Shape, stride: Shape, offset: int) -> torch.Tensor:
    """Another tensor of the same dtype in the same storage."""
    view: torch.Tensor = _as_strided(CPU_KERNELS, tensor, size, stride, offset)
    return view


def move_to_storage(tensor: torch.Tensor, storage: torch.UntypedStorage, size: Shape, stride: Shape) -> None:
    """Let an existing tensor lie in another storage, as `resize_` does when the old one is too small."""
    _set(CPU_KERNELS, tensor, storage, 0, size, stride)
