"""What is known of each card: memory, rates and links, from the makers' data sheets. No torch here.

Rates are peaks for dense matrices; how much of them a real kernel reaches is in `costs`. Left out: clocks that
throttle, power limits, and anything about more than one card.
"""

from dataclasses import dataclass

GIB = 1 << 30
MIB = 1 << 20


@dataclass(frozen=True)
class Card:
    """One card. Rates are in operations or bytes a second.

    `memory_bytes` is what CUDA reports as the total, which is less than the name says; `context_bytes` is what the CUDA
    context and its loaded kernels take of it. `half_flops` and `bfloat16_flops` are on tensor cores with fp32
    accumulation; `tf32_flops` is used for fp32 only where the code allows TF32. `link_bytes_per_second` is one
    direction of 16 lanes of PCIe less its 128b/130b coding: 15.75, 31.5 and 63 GB/s for generations 3, 4 and 5.
    """

    name: str
    memory_bytes: int
    context_bytes: int
    capability: tuple[int, int]
    multiprocessors: int
    half_flops: float
    bfloat16_flops: float
    tf32_flops: float
    float32_flops: float
    bytes_per_second: float
    link_bytes_per_second: float

    @property
    def cublas_workspace_bytes(self) -> int:
        """What one cuBLAS handle takes on one stream: ATen/cuda/CublasHandlePool.cpp, `parseChosenWorkspaceSize`."""
        return 32 * MIB if self.capability[0] in (9, 10, 12) else 2 * 4096 * 1024 + 8 * 16 * 1024


def card_named(name: str) -> Card:
    """The card of that name. Raises ValueError, with the names there are."""
    if name not in CARDS:
        raise ValueError(f"gpu={name} is not a card that can be simulated. Known: {', '.join(CARDS)}")
    return CARDS[name]


# Totals: "total capacity" in torch's own out-of-memory messages, as users post them for each card, rounded down.
# Contexts: measured values found are 256 MiB (RTX 3090, CUDA 12.8) and 426 MiB (RTX 6000 Ada, CUDA 13.0); none was
# found for A100 and H100, whose 512 MiB is an assumption on the safe side.
CARDS: dict[str, Card] = {
    card.name: card
    for card in (
        # NVIDIA H200 data sheet (SXM): 989 TFLOPS BF16, 494 TF32 without sparsity, 67 FP32, 4.8 TB/s, PCIe 5 x16.
        Card(
            "h200_141gb", int(139.8 * GIB), 512 * MIB, (9, 0), 132, 989.4e12, 989.4e12, 494.7e12, 66.9e12, 4.8e12, 63e9
        ),
        # NVIDIA H100 data sheet (SXM5): as H200, with 3.35 TB/s.
        Card(
            "h100_80gb", int(79.1 * GIB), 512 * MIB, (9, 0), 132, 989.4e12, 989.4e12, 494.7e12, 66.9e12, 3.35e12, 63e9
        ),
        # NVIDIA A100 data sheet (SXM4): 312 TFLOPS BF16, 156 TF32, 19.5 FP32, 2,039 and 1,555 GB/s, PCIe 4 x16.
        Card("a100_80gb", int(79.1 * GIB), 512 * MIB, (8, 0), 108, 312e12, 312e12, 156e12, 19.5e12, 2.039e12, 31.5e9),
        Card("a100_40gb", int(39.4 * GIB), 512 * MIB, (8, 0), 108, 312e12, 312e12, 156e12, 19.5e12, 1.555e12, 31.5e9),
        # NVIDIA L40S data sheet: 362 TFLOPS BF16, 183 TF32, 91.6 FP32, 864 GB/s, PCIe 4 x16.
        Card("l40s_48gb", int(44.4 * GIB), 426 * MIB, (8, 9), 142, 362e12, 362e12, 183e12, 91.6e12, 864e9, 31.5e9),
        # NVIDIA Ada architecture white paper, appendix A (RTX 4090): 165.2 TFLOPS with fp32 accumulation, 82.6 TF32 and
        # FP32, 1,008 GB/s, PCIe 4 x16.
        Card(
            "rtx4090_24gb",
            int(23.6 * GIB),
            426 * MIB,
            (8, 9),
            128,
            165.2e12,
            165.2e12,
            82.6e12,
            82.6e12,
            1.008e12,
            31.5e9,
        ),
        # NVIDIA GA102 white paper (RTX 3090): 71 TFLOPS with fp32 accumulation, 35.6 TF32 and FP32, 936 GB/s, PCIe 4.
        Card("rtx3090_24gb", int(23.7 * GIB), 256 * MIB, (8, 6), 82, 71e12, 71e12, 35.6e12, 35.6e12, 936e9, 31.5e9),
        # NVIDIA L4 data sheet: 121 TFLOPS BF16 (242 with sparsity), 60 TF32, 30.3 FP32, 300 GB/s, PCIe 4 x16.
        Card("l4_24gb", int(22.0 * GIB), 426 * MIB, (8, 9), 58, 121e12, 121e12, 60e12, 30.3e12, 300e9, 31.5e9),
        # NVIDIA T4 data sheet: 65 TFLOPS FP16, 8.1 FP32, 320 GB/s, PCIe 3 x16. No BF16 tensor cores: fp32's rate.
        Card("t4_16gb", int(14.6 * GIB), 256 * MIB, (7, 5), 40, 65e12, 8.1e12, 8.1e12, 8.1e12, 320e9, 15.75e9),
    )
}
