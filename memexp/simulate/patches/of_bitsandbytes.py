"""What is replaced in bitsandbytes. Its operators are those of `quantized`."""

from memexp.simulate import quantized
from memexp.simulate.patches.patch import Patch

BITSANDBYTES = "bitsandbytes 0.50"
PATCHES: tuple[Patch, ...] = (
    Patch(
        "bitsandbytes.functional",
        "name2qmap",
        quantized.own_tables,
        "tables of codes stay on the device that asked first; its operators are registered here too",
        BITSANDBYTES,
    ),
    *(
        Patch("bitsandbytes.functional", name, build, "managed memory needs a GPU", BITSANDBYTES)
        for name, build in (
            ("get_paged", quantized.get_paged),
            ("fill", quantized.nothing),
            ("prefetch_tensor", quantized.nothing),
        )
    ),
    Patch(
        "bitsandbytes.nn.modules",
        "Int8Params._quantize",
        quantized.quantize_int8,
        "a parameter cannot change to this device in place",
        BITSANDBYTES,
    ),
    Patch(
        "bitsandbytes.optim.optimizer",
        "sync_gpu",
        quantized.synchronize,
        "it asks whether the device is a cuda",
        BITSANDBYTES,
        is_branch=True,
    ),
)
