"""Token counts of batches whose right counts are plain to see, made by hand and by TRL's own collators."""

import pickle
from typing import Any

import pytest
import torch

from memexp.measure.tokens import BatchCount, CountingCollator, count_batch, total

# Token 7 is the padding token below, and stands in the rows too: counting by its id would go wrong.
PAD = 7
ROWS: list[dict[str, Any]] = [{"input_ids": [1, 7, 3]}, {"input_ids": [4, 5]}]
PADDED = {
    "input_ids": torch.tensor([[1, 7, 3], [4, 5, PAD]]),
    "attention_mask": torch.tensor([[1, 1, 1], [1, 1, 0]]),
    "labels": torch.tensor([[1, 7, 3], [4, 5, -100]]),
}


def test_padding_is_in_the_slots_alone() -> None:
    # Predicted are 7 and 3 of the first row and 5 of the second.
    assert count_batch(ROWS, PADDED) == BatchCount(real_tokens=5, loss_tokens=3, slots=6, samples=2)


def test_masked_prompts_are_real_but_not_in_the_loss() -> None:
    batch = PADDED | {"labels": torch.tensor([[-100, -100, 3], [-100, 5, -100]])}
    assert count_batch(ROWS, batch) == BatchCount(real_tokens=5, loss_tokens=2, slots=6, samples=2)


def test_samples_of_packed_rows_are_their_documents() -> None:
    rows = [{"input_ids": [1, 2, 3, 4], "seq_lengths": [3, 1]}, {"input_ids": [5, 6], "seq_lengths": [2]}]
    batch = {
        "input_ids": torch.tensor([[1, 2, 3, 4, 5, 6]]),
        "labels": torch.tensor([[-100, 2, 3, -100, -100, 6]]),
        "position_ids": torch.tensor([[0, 1, 2, 0, 0, 1]]),
    }
    assert count_batch(rows, batch, packed=True) == BatchCount(real_tokens=6, loss_tokens=3, slots=6, samples=3)


def test_samples_of_documents_broken_by_packing_are_unknown() -> None:
    rows = [{"input_ids": [1, 2, 3, 4]}, {"input_ids": [5, 6, 7, 8]}]
    ids = torch.tensor([[1, 2, 3, 4], [5, 6, 7, 8]])
    batch = {"input_ids": ids, "labels": ids, "attention_mask": torch.ones_like(ids)}
    assert count_batch(rows, batch, packed=True) == BatchCount(real_tokens=8, loss_tokens=6, slots=8, samples=None)


def test_a_sum_is_unknown_where_a_part_is() -> None:
    assert total([BatchCount(5, 3, 6, 2), BatchCount(1, 0, 2, 1)]) == BatchCount(6, 3, 8, 3)
    assert total([BatchCount(5, 3, 6, 2), BatchCount(1, None, 2, None)]) == BatchCount(6, None, 8, None)
    assert total([]) is None


# --- TRL's own collators ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "rows", "expected"),
    [
        ({}, ROWS, BatchCount(5, 3, 6, 2)),
        ({"pad_to_multiple_of": 8}, ROWS, BatchCount(5, 3, 16, 2)),
        ({"padding_free": True}, ROWS, BatchCount(5, 3, 5, 2)),
        ({"padding_free": True, "pad_to_multiple_of": 8}, ROWS, BatchCount(5, 3, 8, 2)),
        (
            {"padding_free": True, "pad_to_multiple_of": 8},
            [{"input_ids": [1, 2, 3, 4], "seq_lengths": [3, 1]}, {"input_ids": [5, 6], "seq_lengths": [2]}],
            BatchCount(6, 3, 8, 3),
        ),
        ({}, [{"input_ids": [1, 2, 3], "labels": [-100, -100, 3]}, {"input_ids": [4, 5]}], BatchCount(5, 2, 6, 2)),
    ],
)
def test_language_modeling_batches_of_trl(options: Any, rows: list[dict[str, Any]], expected: BatchCount) -> None:
    from trl.trainer.sft_trainer import DataCollatorForLanguageModeling

    collator = CountingCollator(DataCollatorForLanguageModeling(pad_token_id=PAD, **options))
    collator(rows)
    assert collator.pop() == expected


def test_preference_batches_of_trl() -> None:
    from trl.trainer.dpo_trainer import DataCollatorForPreference as Dpo
    from trl.trainer.reward_trainer import DataCollatorForPreference as Reward

    # Chosen and rejected, 6 + 4 tokens, of which 2 + 1 are completions that fit in 5 tokens.
    dpo = CountingCollator(Dpo(pad_token_id=PAD, max_length=5))
    dpo([{"prompt_ids": [1, 7, 3], "chosen_ids": [4, 5, 6], "rejected_ids": [7]}])
    assert dpo.pop() == BatchCount(real_tokens=9, loss_tokens=3, slots=10, samples=1)

    reward = CountingCollator(Reward(pad_token_id=PAD))
    reward([{"chosen_ids": [1, 7, 3], "rejected_ids": [4]}, {"chosen_ids": [1], "rejected_ids": [7, 7]}])
    assert reward.pop() == BatchCount(real_tokens=7, loss_tokens=None, slots=12, samples=2)


# --- counts follow their batches --------------------------------------------------------------------------------------


def collate(rows: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    ids = torch.tensor([row["input_ids"] for row in rows])
    return {"input_ids": ids, "labels": ids}


def test_a_count_belongs_to_its_batch_however_far_ahead_the_loader_reads() -> None:
    collator = CountingCollator(collate)
    ahead = [collator([{"input_ids": [0] * length}]) for length in (3, 5, 9)]
    for batch in ahead:
        count = collator.pop()
        assert count is not None
        assert count.slots == batch["input_ids"].numel()


def test_the_batch_is_the_wrapped_collators_own() -> None:
    assert CountingCollator(lambda rows: rows)([{"input_ids": [1]}]) == [{"input_ids": [1]}]


def test_a_batch_without_tokens_keeps_its_place_in_the_order() -> None:
    collator = CountingCollator(lambda rows: collate(rows) if "input_ids" in rows[0] else rows)
    collator([{"prompt": "a"}])
    collator([{"input_ids": [1, 2]}])
    assert collator.pop() is None
    assert collator.pop() == BatchCount(2, 1, 2, 1)


def test_a_count_that_is_not_there_says_what_to_set() -> None:
    with pytest.raises(LookupError, match="dataloader_num_workers=0"):
        CountingCollator(collate).pop()


def test_a_counting_collator_can_be_sent_to_another_process() -> None:
    assert pickle.loads(pickle.dumps(CountingCollator(collate)))([{"input_ids": [1]}])["input_ids"].tolist() == [[1]]
