"""What the backward passes of fused attention take: sums in fp32, and one number a row."""

from memexp.simulate.allocator.settings import round_up
from memexp.simulate.scratch.call import KernelCall


def _flash_bytes(rows: int, heads: int, key_rows: int, key_heads: int, head_size: int) -> tuple[int, ...]:
    """csrc/flash_attn/flash_api.cpp, `mha_bwd`: softmax_d and dq_accum in fp32, and dk and dv before groups are summed.

    `rows` counts the queries of all sequences, each sequence rounded up to 128.
    """
    rounded_size = round_up(head_size, 32 if head_size <= 128 else 64)
    expanded = 0 if heads == key_heads else key_rows * heads * head_size * 2
    return rows * heads * 4, rows * heads * rounded_size * 4, expanded, expanded


def _flash_backward(call: KernelCall) -> tuple[int, ...]:
    batch, heads, length, head_size = call["query"].shape
    key_heads, key_length = call["key"].shape[1:3]
    return _flash_bytes(batch * round_up(length, 128), heads, batch * key_length, key_heads, head_size)


def _flash_package_backward(call: KernelCall) -> tuple[int, ...]:
    """The same kernel on [batch, length, heads, size], or on one row of sequences with room for 128 more each."""
    query, key, ends = call["query"], call["key"], call["cum_seq_q"]
    if ends is None:
        rows, key_rows = query.shape[0] * round_up(query.shape[1], 128), key.shape[0] * key.shape[1]
    else:
        rows, key_rows = query.shape[0] + 128 * (ends.shape[0] - 1), key.shape[0]
    return _flash_bytes(rows, query.shape[-2], key_rows, key.shape[-2], query.shape[-1])


def _efficient_backward(call: KernelCall) -> tuple[int, ...]:
    """native/transformers/cuda/attention_backward.cu: delta in fp32, and the workspace that accumulates in fp32."""
    batch, heads, length, head_size = call["query"].shape
    rows = batch * heads * round_up(length, 32)
    accumulator = rows * head_size * 4 if call["query"].element_size() == 2 else 0
    return rows * 4, accumulator


def _cudnn_backward(call: KernelCall) -> tuple[int, ...]:
    """What cudnn-frontend asks for in its own name (node/scaled_dot_product_flash_attention.h, 1.12 to 1.23): dq and
    one sum a row, both in fp32. In one block with the workspace of the plan, which is closed and not known."""
    batch, heads, length, head_size = call["query"].shape
    return (batch * heads * length * (head_size + 1) * 4,)


def _flash_3_forward(call: KernelCall) -> tuple[int, ...]:
    """hopper/flash_api.cpp, `mha_fwd` with one split, as its Python side asks for: the scheduler's few integers."""
    ends, masked, local = call["cu_seqlens_q"], call["is_causal"] or call["is_local"], call["is_local"]
    if ends is None and not masked:
        return ()
    batch = call["query"].shape[0] if ends is None else ends.shape[0] - 1
    vectors = (0 if ends is None else 2) + (not local) + bool(masked)
    return (4 * (1 + round_up(batch, 4) * vectors),)


def _flash_3_backward(call: KernelCall) -> tuple[int, ...]:
    """hopper/flash_api.cpp, `mha_bwd`: softmax_d and the log-sum-exp in base 2, dq_accum, and of grouped heads dk_accum
    and dv_accum, all in fp32, with rows in blocks of `_flash_3_tile`; and a semaphore a block of rows."""
    query, key, ends = call["query"], call["key"], call["cu_seqlens_q"]
    heads, head_size = query.shape[-2:]
    key_heads = key.shape[-2]
    rounded_size = next(size for size in (64, 96, 128, 192, 256) if head_size <= size)
    tile, key_tile = _flash_3_tile(rounded_size, masked=call["is_causal"] or call["is_local"])
    if ends is None:
        batch, length = query.shape[:2]
        rows, key_rows = batch * round_up(length, tile), batch * round_up(key.shape[1], key_tile)
    else:
        batch, length = ends.shape[0] - 1, call["max_seqlen_q"]
        rows = round_up(query.shape[0] + batch * tile, tile)
        key_rows = round_up(key.shape[0] + batch * key_tile, key_tile)
    accumulated = 0 if heads == key_heads else key_rows * key_heads * rounded_size * 4
    semaphores = 4 * -(-length // tile) * batch * heads
    return rows * heads * 4, rows * heads * 4, rows * heads * rounded_size * 4, accumulated, accumulated, semaphores


def _flash_3_tile(rounded_size: int, masked: bool) -> tuple[int, int]:
    """Rows of queries and of keys that a block of the backward kernel takes on sm90."""
    if rounded_size <= 64:
        return 128, 128
    if rounded_size <= 128:
        return 80 if rounded_size > 96 and not masked else 64, 128
    return 64, 96 if rounded_size <= 192 else 80


SCRATCH = {
    "_scaled_dot_product_flash_attention_backward": ("flash_backward", _flash_backward),
    "_flash_attention_backward": ("flash_backward", _flash_package_backward),
    "_scaled_dot_product_efficient_attention_backward": ("efficient_backward", _efficient_backward),
    "_scaled_dot_product_cudnn_attention_backward": ("cudnn_backward", _cudnn_backward),
    "flash_attn_3_forward": ("flash_3", _flash_3_forward),
    "flash_attn_3_backward": ("flash_3", _flash_3_backward),
}
