"""What a trainer has no argument for, or cannot do with the values given, is refused in the words that were typed."""

import pytest

from memexp.plan import load
from memexp.plan.plan import PlanError


@pytest.mark.parametrize(
    ("typed", "kind", "said"),
    [
        (["trainer=grpo", "max_length=512"], "unsupported", "max_length=512 is for trainer=dpo or"),
        (["trainer=rloo", "max_length=1024"], "unsupported", "Type max_length=null"),  # asked for, though the default
        (["trainer=online_dpo", "pad_to_multiple_of=8"], "unsupported", "pad_to_multiple_of=8"),
        (
            ["trainer=online_dpo", "checkpointing=selective"],
            "unsupported",
            "checkpointing=selective is for trainer=sft",
        ),
        (["trainer=online_dpo", "max_length=null"], "unsupported", "max_length=1024"),
        (["trainer=online_dpo", "max_length=64"], "conflict", "max_length=128"),
        (["trainer=grpo", "batch_size=6"], "conflict", "trainer.num_generations=4 does not divide the 6 completions"),
        (["trainer=grpo", "batch_size=1", "gradient_accumulation=2"], "conflict", "batch_size=4"),
        (["trainer=grpo", "trainer.args.generation_batch_size=6"], "conflict", "the 6 completions"),
        (["trainer=rloo", "budget.tokens=100"], "unsupported", "budget.steps=100"),
        (["trainer=dpo", "peft=lora", "peft.target_modules=lm_head"], "conflict", "peft.target_modules=all-linear"),
    ],
)
def test_what_a_trainer_cannot_do_is_refused(typed: list[str], kind: str, said: str) -> None:
    refusal = load("backend=cpu", *typed).refusal
    assert refusal is not None
    assert refusal.kind == kind
    assert said in refusal.reason


@pytest.mark.parametrize(
    "typed",
    [
        ["trainer=grpo"],
        ["trainer=rloo", "max_length=null", "pad_to_multiple_of=8"],
        ["trainer=grpo", "batch_size=1", "gradient_accumulation=4"],
        ["trainer=rloo", "batch_size=6"],
        ["trainer=rloo", "budget.epochs=1"],
        ["trainer=online_dpo", "max_length=128", "peft=lora", "peft.target_modules=lm_head"],
        ["trainer=reward", "max_length=16", "pad_to_multiple_of=64"],
    ],
)
def test_what_a_trainer_can_do_is_not(typed: list[str]) -> None:
    assert load("backend=cpu", *typed).refusal is None


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        (["trainer=sft", "trainer.max_completion_length=4"], "trainer=grpo and trainer=online_dpo and trainer=rloo"),
        (["trainer=grpo", "trainer.args.max_completion_length=4"], "Type trainer.max_completion_length=…"),
        (["trainer=grpo", "trainer.args.shuffle_dataset=true"], "memexp sets shuffle_dataset itself"),
        (["trainer=grpo", "trainer.args.auto_find_batch_size=true"], "Type batch_size=4"),
        (["trainer=grpo", "trainer.args.max_length=4"], "has no argument max_length"),
        (["trainer=grpo", "trainer.num_generations=1"], "trainer.num_generations must be at least 2"),
        (["trainer=grpo", "trainer.rows=pairs"], "Type trainer=OPTION"),
    ],
)
def test_what_is_wrong_by_itself_stops_everything(typed: list[str], said: str) -> None:
    with pytest.raises(PlanError) as error:
        load("backend=cpu", *typed)
    assert said in str(error.value)


def test_a_value_that_a_trainer_does_not_know_and_nobody_asked_for_is_null() -> None:
    plan = load("backend=cpu", "trainer=grpo")
    assert (plan.choices["max_length"], plan.choices["batch_size"]) == (None, 4)
    assert "max_length" not in plan.work.trainer.args
    assert load("backend=cpu", "trainer=dpo").choices["max_length"] == 1024


def test_every_trainer_turns_off_what_trl_turns_on_by_itself_and_passes_nothing_that_it_lacks() -> None:
    from memexp.plan.fields import config_fields

    for trainer in ("sft", "dpo", "reward", "grpo", "rloo", "online_dpo"):
        work = load("backend=cpu", f"trainer={trainer}").work.trainer
        assert set(work.args) <= set(config_fields(work.config_class))
        assert work.args["activation_checkpointing"] is False
        assert work.args["bf16"] is False
        off = {"packing", "padding_free", "activation_offloading", "use_vllm"} & set(config_fields(work.config_class))
        assert [work.args[name] for name in off] == [False] * len(off)
