"""The settings that PYTORCH_ALLOC_CONF takes in torch 2.13, and what is wrong with a text meant for it.

Stricter than torch, on purpose. Torch never looks at the separators, reads `20MB` as 20 and `-1` as unlimited, and a
build without CUDA keeps a misspelt key without a word, so that a typo costs a sweep. What torch refuses is refused here
too. Left out: what each setting does, and whether the platform can honour it.
"""

import difflib
import re
from dataclasses import dataclass
from typing import Protocol

DEFAULT_LARGE_SEGMENT_MB = 20


def check_allocator_conf(text: str) -> str | None:
    """Why torch 2.13 would not do what `text` says, in one line; None if it would. Empty text is fine: the defaults."""
    try:
        pairs = split_allocator_conf(text)
    except ValueError as error:
        return str(error)
    for key, value in pairs:
        if key not in ALLOCATOR_KEYS:
            return _unknown_key(key)
        if not ALLOCATOR_KEYS[key].accepts(value):
            return f"{key} takes {ALLOCATOR_KEYS[key].description}, not {value!r}"
    return _below_the_large_segment(pairs)


def split_allocator_conf(text: str) -> list[tuple[str, str]]:
    """`key:value,key:[value,value]` as pairs in the order typed, blanks dropped wherever they stand, as torch does.

    Keys and values are not checked. Raises ValueError, one line, where a key, a colon, a value or a comma is missing.
    """
    rest = "".join(text.split())
    pairs = []
    while rest:
        setting = _SETTING.match(rest)
        if setting is None:
            typed = rest.split(",")[0] or rest
            wanted = typed.replace("=", ":", 1) if "=" in typed else "key:value,key:value"
            raise ValueError(f"cannot read {typed!r} in the allocator settings; write {wanted}")
        pairs.append((setting[1], setting[2]))
        rest = rest[setting.end() :]
    return pairs


def divisions_list(value: str) -> list[tuple[str, str]]:
    """The (start, count) pairs of a list such as `[256:1,>:8]`, unchecked; torch lets one comma trail.

    A plain count is the same for every size: `8` stands for `[1:8,>:8]`.
    """
    if not value.startswith("["):
        return [("1", value), (">", value)]
    inner = value.removeprefix("[").removesuffix("]").removesuffix(",")
    return [(start, count) for start, _, count in (item.partition(":") for item in inner.split(",") if inner)]


_SETTING = re.compile(r"([^,:\[\]=]+):(\[[^\[\]]*\]|[^,:\[\]]+)(?:,|$)")
_DIGITS = re.compile(r"[0-9]+")
_DECIMAL = re.compile(r"[0-9]*\.?[0-9]+(?:[eE][-+]?[0-9]+)?|[0-9]+\.")
_SIZE_MAX = 2**64 - 1


class ValueKind(Protocol):
    """What a value may look like. `description` completes the sentence "KEY takes …"."""

    @property
    def description(self) -> str: ...

    def accepts(self, value: str) -> bool: ...


@dataclass(frozen=True)
class Flag:
    """Torch knows these two spellings only: `true` and `1` are errors."""

    description: str = "True or False, so spelt"

    def accepts(self, value: str) -> bool:
        return value in ("True", "False")


@dataclass(frozen=True)
class Choice:
    options: tuple[str, ...]

    @property
    def description(self) -> str:
        return " or ".join(self.options)

    def accepts(self, value: str) -> bool:
        return value in self.options


@dataclass(frozen=True)
class WholeNumber:
    """A count, or a size in MiB where the key ends in `_mb`. Torch reads it into 64 bits."""

    minimum: int = 0
    maximum: int = _SIZE_MAX
    power_of_two: bool = False

    @property
    def description(self) -> str:
        kind = "a power of two" if self.power_of_two else "a whole number"
        upper = "" if self.maximum == _SIZE_MAX else f" and at most {self.maximum}"
        return f"{kind}, at least {self.minimum}{upper}"

    def accepts(self, value: str) -> bool:
        if not _DIGITS.fullmatch(value):
            return False
        number = int(value)
        return self.minimum <= number <= self.maximum and (not self.power_of_two or number.bit_count() == 1)


@dataclass(frozen=True)
class Fraction:
    """A share of 1. `ends` says whether 0 and 1 themselves are values."""

    ends: bool

    @property
    def description(self) -> str:
        return "a number from 0 to 1" if self.ends else "a number above 0 and below 1"

    def accepts(self, value: str) -> bool:
        if not _DECIMAL.fullmatch(value):
            return False
        number = float(value)
        return 0 <= number <= 1 if self.ends else 0 < number < 1


@dataclass(frozen=True)
class Divisions:
    """One count for every size, or a list by the size in MiB at which an interval starts: `[256:1,512:2,>:8]`."""

    description: str = "a power of two, or a list such as [256:1,512:2,>:8] of powers of two (a count may be 0)"

    def accepts(self, value: str) -> bool:
        power = WholeNumber(minimum=1, power_of_two=True)
        if not value.startswith("["):
            return power.accepts(value)
        return all(
            (start == ">" or power.accepts(start)) and (count == "0" or power.accepts(count))
            for start, count in divisions_list(value)
        )


# Names: getKeys() in c10/core/AllocatorConfig.cpp (the first nine) and in c10/cuda/CUDAAllocatorConfig.h.
ALLOCATOR_KEYS: dict[str, ValueKind] = {
    "expandable_segments": Flag(),
    "max_split_size_mb": WholeNumber(),
    "max_non_split_rounding_mb": WholeNumber(),
    "large_segment_size_mb": WholeNumber(minimum=11),
    "garbage_collection_threshold": Fraction(ends=False),
    "roundup_power2_divisions": Divisions(),
    "pinned_use_background_threads": Flag(),
    "pinned_max_round_threshold_mb": WholeNumber(),
    "pinned_max_cached_size_mb": WholeNumber(),
    "backend": Choice(("native", "cudaMallocAsync")),
    "per_process_memory_fraction": Fraction(ends=True),
    "throw_on_cudamalloc_oom": Flag(),
    "release_lock_on_cudamalloc": Flag(),
    "release_lock_on_hipmalloc": Flag(),
    "graph_capture_record_stream_reuse": Flag(),
    "pinned_use_cuda_host_register": Flag(),
    "pinned_use_hip_host_register": Flag(),
    "pinned_num_register_threads": WholeNumber(minimum=1, maximum=128, power_of_two=True),
    "pinned_reserve_segment_size_mb": WholeNumber(minimum=1),
    "pinned_free_catch_all": Flag(),
}


def _unknown_key(key: str) -> str:
    near = difflib.get_close_matches(key.lower(), ALLOCATOR_KEYS, n=1)
    hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(ALLOCATOR_KEYS)}"
    return f"torch has no allocator setting {key!r}; {hint}"


def _below_the_large_segment(pairs: list[tuple[str, str]]) -> str | None:
    large = int(dict(pairs).get("large_segment_size_mb", DEFAULT_LARGE_SEGMENT_MB))
    for key, value in pairs:
        if key in ("max_split_size_mb", "max_non_split_rounding_mb") and int(value) < large:
            return f"{key} takes a whole number, at least {large} (large_segment_size_mb), not {value!r}"
    return None
