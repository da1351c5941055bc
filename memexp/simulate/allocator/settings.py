"""What PYTORCH_ALLOC_CONF sets, as plain data, and the two roundings that follow from it.

Constants and defaults are those of torch 2.13 (c10/core/AllocatorConfig.h). Settings for pinned host memory and CUDA
graphs are not modelled, nor is any that changes time but not memory; `AllocatorSettings.unmodelled` names those given.
"""

from dataclasses import dataclass

from memexp.simulate.allocator.keys import check_allocator_conf, divisions_list, split_allocator_conf

MIB = 1 << 20
MIN_BLOCK_BYTES = 512
SMALL_MAX_BYTES = 1 * MIB
SMALL_SEGMENT_BYTES = 2 * MIB
MIN_LARGE_ALLOC_BYTES = 10 * MIB
LARGE_ROUNDING_BYTES = 2 * MIB

DIVISION_INTERVALS = 16
_MAX_MB = (2**64 - 1) // MIB


@dataclass(frozen=True)
class AllocatorSettings:
    """The allocator's settings; the defaults are torch's own.

    `roundup_power2_divisions` holds a count for each power of two from 1 MiB to 32 GiB; smaller sizes use the first and
    larger ones the last. `max_split_size_bytes` None is unlimited. Garbage collection needs both its threshold and a
    memory fraction below 1, as in torch.
    """

    expandable_segments: bool = False
    large_segment_size_bytes: int = 20 * MIB
    max_split_size_bytes: int | None = None
    max_non_split_rounding_bytes: int = 20 * MIB
    roundup_power2_divisions: tuple[int, ...] = (0,) * DIVISION_INTERVALS
    garbage_collection_threshold: float = 0.0
    per_process_memory_fraction: float = 1.0
    unmodelled: tuple[str, ...] = ()

    @classmethod
    def parse(cls, text: str) -> "AllocatorSettings":
        """Read the value of PYTORCH_ALLOC_CONF. Empty text gives the defaults; of a key typed twice the last counts.

        Raises ValueError, one line, for what `check_allocator_conf` refuses.
        """
        if reason := check_allocator_conf(text):
            raise ValueError(reason)
        values = dict(split_allocator_conf(text))
        if values.get("backend") == "native":
            del values["backend"]
        large = _mb(values, "large_segment_size_mb") or 20 * MIB
        return cls(
            expandable_segments=values.get("expandable_segments") == "True",
            large_segment_size_bytes=large,
            max_split_size_bytes=_mb(values, "max_split_size_mb"),
            max_non_split_rounding_bytes=_mb(values, "max_non_split_rounding_mb") or large,
            roundup_power2_divisions=_divisions(divisions_list(values.get("roundup_power2_divisions", "[]"))),
            garbage_collection_threshold=float(values.get("garbage_collection_threshold", 0)),
            per_process_memory_fraction=float(values.get("per_process_memory_fraction", 1)),
            unmodelled=tuple(key for key in values if key not in _MODELLED),
        )

    def round_size(self, size: int) -> int:
        """The bytes that `size` takes in a block: the next multiple of 512, or division of its power of two."""
        if size < MIN_BLOCK_BYTES:
            return MIN_BLOCK_BYTES
        interval = size.bit_length() - MIB.bit_length()
        divisions = self.roundup_power2_divisions[0 if interval < 0 else min(interval, DIVISION_INTERVALS - 1)]
        if divisions > 1 and size > MIN_BLOCK_BYTES * divisions:
            return round_up(size, (1 << (size.bit_length() - 1)) // divisions)
        return round_up(size, MIN_BLOCK_BYTES)

    def segment_size(self, rounded_size: int) -> int:
        """The bytes of the new segment that cudaMalloc is asked for when no cached block holds `rounded_size`."""
        if rounded_size <= SMALL_MAX_BYTES:
            return SMALL_SEGMENT_BYTES
        if rounded_size < MIN_LARGE_ALLOC_BYTES:
            return self.large_segment_size_bytes
        return round_up(rounded_size, LARGE_ROUNDING_BYTES)


def round_up(size: int, multiple: int) -> int:
    """The smallest multiple of `multiple` that is not below `size`."""
    return -(-size // multiple) * multiple


_MODELLED = (
    "expandable_segments",
    "large_segment_size_mb",
    "max_split_size_mb",
    "max_non_split_rounding_mb",
    "roundup_power2_divisions",
    "garbage_collection_threshold",
    "per_process_memory_fraction",
)


def _mb(values: dict[str, str], key: str) -> int | None:
    return min(int(values[key]), _MAX_MB) * MIB if key in values else None


def _divisions(pairs: list[tuple[str, str]]) -> tuple[int, ...]:
    """As torch 2.13: later items win, sizes below the first start use its count, gaps between starts stay off."""
    counts = [0] * DIVISION_INTERVALS
    last, first_seen = 0, False
    for start, count in pairs:
        if start == ">":
            counts[last + 1 :] = [int(count)] * (DIVISION_INTERVALS - last - 1)
            continue
        last = min(int(start).bit_length() - 1, DIVISION_INTERVALS - 1)
        if not first_seen:
            counts[:last] = [int(count)] * last
            first_seen = True
        counts[last] = int(count)
    return tuple(counts)
