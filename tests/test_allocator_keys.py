"""The table of allocator settings, held against the installed torch: its header, its library and what it refuses."""

import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from memexp.simulate.allocator import AllocatorSettings
from memexp.simulate.allocator import settings as constants
from memexp.simulate.allocator.keys import ALLOCATOR_KEYS, check_allocator_conf

TORCH = Path(str(importlib.util.find_spec("torch").submodule_search_locations[0]))  # type: ignore[union-attr, index]

TAKEN = [
    "",
    "expandable_segments:True",
    " expandable_segments : False ,",
    "max_split_size_mb:20",
    "max_split_size_mb:18446744073709551615",
    "max_split_size_mb:128,expandable_segments:True",
    "large_segment_size_mb:11,max_split_size_mb:11",
    "max_non_split_rounding_mb:22,large_segment_size_mb:22",
    "large_segment_size_mb:30",
    "garbage_collection_threshold:0.8",
    "garbage_collection_threshold:8e-1",
    "roundup_power2_divisions:4",
    "roundup_power2_divisions:1",
    "roundup_power2_divisions:[256:1,512:2,1024:4,>:8]",
    "roundup_power2_divisions:[>:8]",
    "roundup_power2_divisions:[16:4,4:2,]",
    "roundup_power2_divisions:[131072:2]",
    "roundup_power2_divisions:[32768:2,>:4]",
    "roundup_power2_divisions:[4:2,>:8,64:16,32:0]",
    "roundup_power2_divisions:[]",
    "pinned_use_background_threads:True",
    "pinned_max_round_threshold_mb:1,pinned_max_cached_size_mb:64",
    "max_split_size_mb:64,max_split_size_mb:32",
    "backend:native,per_process_memory_fraction:0.5,throw_on_cudamalloc_oom:True,release_lock_on_cudamalloc:False",
    "pinned_num_register_threads:8,pinned_reserve_segment_size_mb:1,pinned_free_catch_all:True",
]
REFUSED = [
    "expandable_segments:true",
    "expandable_segments:1",
    "expandable_segments",
    "expandable_segments:",
    "expandable_segments=True",
    "expandable_segments:True max_split_size_mb:40",
    "expandable_segments:True;max_split_size_mb:40",
    "max_split_size_mb:19",
    "max_split_size_mb:abc",
    "max_split_size_mb:18446744073709551616",
    "max_split_size_mb:[128]",
    "max_split_size_mb:19,max_split_size_mb:32",
    "large_segment_size_mb:10",
    "max_split_size_mb:20,large_segment_size_mb:30",
    "max_non_split_rounding_mb:19",
    "garbage_collection_threshold:0",
    "garbage_collection_threshold:1",
    "garbage_collection_threshold:nan",
    "garbage_collection_threshold:inf",
    "roundup_power2_divisions:3",
    "roundup_power2_divisions:0",
    "roundup_power2_divisions:[256:3]",
    "roundup_power2_divisions:[255:4]",
    "roundup_power2_divisions:[0:4]",
    "roundup_power2_divisions:[x:2]",
    "roundup_power2_divisions:[256]",
    "roundup_power2_divisions:[256:1,512:2",
    "roundup_power2_divisions:[1:2:3]",
    "roundup_power2_divisions:>:2",
    "pinned_use_background_threads:yes",
    "pinned_max_cached_size_mb:x",
    "pinned_max_round_threshold_mb:x",
]
MISREAD_BY_TORCH = [
    "expandable_segment:True",
    "max_split_size_mb:20MB",
    "max_split_size_mb:20.7",
    "max_split_size_mb:-1",
    "max_split_size_mb,20",
    ",expandable_segments:True",
    "garbage_collection_threshold:0.5x",
]
REFUSED_WITH_CUDA_ONLY = [
    "backend:cuda",
    "per_process_memory_fraction:1.1",
    "per_process_memory_fraction:half",
    "throw_on_cudamalloc_oom:1",
    "release_lock_on_cudamalloc:on",
    "release_lock_on_hipmalloc:on",
    "graph_capture_record_stream_reuse:2",
    "pinned_use_cuda_host_register:0",
    "pinned_use_hip_host_register:0",
    "pinned_num_register_threads:3",
    "pinned_num_register_threads:256",
    "pinned_reserve_segment_size_mb:0",
    "pinned_free_catch_all:no",
]

# Reads the settings out of libc10: fields in the order of AcceleratorAllocatorConfig, keys as libstdc++ links them.
ASK_TORCH = """
import ctypes, json, sys, torch
library = ctypes.CDLL(sys.argv[1])
prefix = "_ZN3c1016CachingAllocator26AcceleratorAllocatorConfig"
symbols = "8instanceEv", "7getKeysB5cxx11Ev", "24roundup_power2_divisionsEm"
instance, keys, divisions = (library[prefix + symbol] for symbol in symbols)
instance.restype = keys.restype = ctypes.c_void_p
divisions.restype, divisions.argtypes = ctypes.c_size_t, [ctypes.c_size_t]
word = lambda address: ctypes.c_size_t.from_address(address).value

def answer(conf):
    torch._C._accelerator_setAllocatorSettings("large_segment_size_mb:20,expandable_segments:False")
    try:
        torch._C._accelerator_setAllocatorSettings(conf)
    except Exception:
        return None
    start = instance()
    return {
        "sizes": [word(start), word(start + 8), word(start + 16)],
        "threshold": ctypes.c_double.from_address(start + 48).value,
        "expandable": ctypes.c_bool.from_address(start + 56).value,
        "divisions": [divisions(1 << power) for power in range(20, 36)],
    }

def names(node):
    while node:
        yield ctypes.string_at(word(node + 8), word(node + 16)).decode()
        node = word(node)

answers = {conf: answer(conf) for conf in json.load(sys.stdin)}
print(json.dumps({"keys": list(names(word(keys() + 16))), "answers": answers, "has_cuda": bool(torch.version.cuda)}))
"""


@pytest.fixture(scope="module")
def installed() -> dict[str, Any]:
    """What the installed torch says to each text: None if it refuses it, else the settings that it then has."""
    library = TORCH / "lib" / "libc10.so"
    if not library.exists():
        pytest.skip("only a Linux build of torch can be asked")
    done = subprocess.run(
        [sys.executable, "-c", ASK_TORCH, str(library)],
        input=json.dumps([*TAKEN, *REFUSED, *MISREAD_BY_TORCH]),
        capture_output=True,
        text=True,
        check=True,
    )
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def header(name: str) -> str:
    return (TORCH / "include" / "c10" / name).read_text()


def test_the_table_holds_the_keys_of_the_library_and_of_the_cuda_header(installed: dict[str, Any]) -> None:
    body = re.search(r"getKeys\(\) \{.*?keys\{(.*?)\};", header("cuda/CUDAAllocatorConfig.h"), re.S)
    assert body is not None
    without_comments = re.sub(r"//[^\n]*", "", body[1])
    cuda = {"".join(re.findall(r'"([^"]*)"', item)) for item in without_comments.split(",")}
    assert set(ALLOCATOR_KEYS) == cuda | set(installed["keys"])


def test_the_constants_are_those_of_the_header() -> None:
    text = header("core/AllocatorConfig.h")
    for name, value in {
        "kSmallBuffer": constants.SMALL_SEGMENT_BYTES,
        "kMinBlockSize": constants.MIN_BLOCK_BYTES,
        "kSmallSize": constants.SMALL_MAX_BYTES,
        "kMinLargeAlloc": constants.MIN_LARGE_ALLOC_BYTES,
        "kRoundLarge": constants.LARGE_ROUNDING_BYTES,
    }.items():
        assert f"constexpr size_t {name} = {value};" in text
    assert f"large_segment_size_{{{AllocatorSettings().large_segment_size_bytes}}};" in text


@pytest.mark.parametrize("conf", TAKEN)
def test_what_is_accepted_torch_takes_and_reads_alike(conf: str, installed: dict[str, Any]) -> None:
    assert check_allocator_conf(conf) is None
    answer = installed["answers"][conf]
    assert answer is not None
    settings = AllocatorSettings.parse(conf)
    large, max_split, rounding = answer["sizes"]
    assert settings.large_segment_size_bytes == large
    assert settings.max_split_size_bytes == (None if max_split == 2**64 - 1 else max_split)
    assert settings.max_non_split_rounding_bytes == rounding
    assert settings.garbage_collection_threshold == answer["threshold"]
    assert settings.expandable_segments == answer["expandable"]
    assert list(settings.roundup_power2_divisions) == answer["divisions"]


@pytest.mark.parametrize("conf", REFUSED)
def test_what_torch_refuses_is_refused_in_one_line(conf: str, installed: dict[str, Any]) -> None:
    assert installed["answers"][conf] is None
    reason = check_allocator_conf(conf)
    assert reason and "\n" not in reason
    with pytest.raises(ValueError, match=re.escape(reason)):
        AllocatorSettings.parse(conf)


@pytest.mark.parametrize("conf", MISREAD_BY_TORCH)
def test_what_torch_takes_for_something_else_is_refused(conf: str, installed: dict[str, Any]) -> None:
    assert installed["answers"][conf] is not None or installed["has_cuda"]
    assert check_allocator_conf(conf)


@pytest.mark.parametrize("conf", REFUSED_WITH_CUDA_ONLY)
def test_settings_that_only_a_cuda_build_reads_are_checked_too(conf: str) -> None:
    assert (check_allocator_conf(conf) or "").startswith(f"{conf.split(':')[0]} takes ")


@pytest.mark.parametrize(
    ("conf", "reason"),
    [
        (
            "expandable_segment:True",
            "torch has no allocator setting 'expandable_segment'; did you mean expandable_segments?",
        ),
        ("Max_Split_Size:128", "torch has no allocator setting 'Max_Split_Size'; did you mean max_split_size_mb?"),
        ("expandable_segments:true", "expandable_segments takes True or False, so spelt, not 'true'"),
        (
            "expandable_segments=True",
            "cannot read 'expandable_segments=True' in the allocator settings; write expandable_segments:True",
        ),
        (
            "max_split_size_mb:19",
            "max_split_size_mb takes a whole number, at least 20 (large_segment_size_mb), not '19'",
        ),
        ("garbage_collection_threshold:1", "garbage_collection_threshold takes a number above 0 and below 1, not '1'"),
        (
            "pinned_num_register_threads:3",
            "pinned_num_register_threads takes a power of two, at least 1 and at most 128, not '3'",
        ),
        ("backend:async", "backend takes native or cudaMallocAsync, not 'async'"),
    ],
)
def test_the_reason_says_what_was_typed_and_what_to_type(conf: str, reason: str) -> None:
    assert check_allocator_conf(conf) == reason


def test_an_unknown_key_near_to_none_is_answered_with_all_of_them() -> None:
    reason = check_allocator_conf("frobnicate:1")
    assert reason is not None
    assert all(key in reason for key in ALLOCATOR_KEYS)


def test_settings_that_are_not_simulated_are_named() -> None:
    settings = AllocatorSettings.parse("backend:native,throw_on_cudamalloc_oom:True,max_split_size_mb:20")
    assert settings.unmodelled == ("throw_on_cudamalloc_oom",)
    assert AllocatorSettings.parse("backend:cudaMallocAsync").unmodelled == ("backend",)
    assert AllocatorSettings.parse("per_process_memory_fraction:0.5").per_process_memory_fraction == 0.5


def test_settings_are_read_without_torch_and_without_hydra() -> None:
    program = """
import sys
from memexp.simulate.allocator import AllocatorSettings
AllocatorSettings.parse("expandable_segments:True")
print({"torch", "hydra", "omegaconf", "memexp.plan"} & sys.modules.keys())
"""
    assert subprocess.check_output([sys.executable, "-c", program], text=True) == "set()\n"
