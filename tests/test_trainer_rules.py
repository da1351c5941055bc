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
        (["trainer=reward", "peft=lora", "quantization=nf4"], "conflict", "precision=fp32 raises at the first step"),
        (["trainer=reward", "peft=lora", "quantization=int8", "precision=fp32"], "conflict", "Type precision=bf16"),
        (["trainer=grpo", "trainer.args.reward_weights=[1,2]"], "conflict", "[1,2] has 2 weights"),
        (["trainer.args.optim_args=abc"], "conflict", "Type trainer.args.optim_args='name=value,name=value'"),
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
        ["trainer=reward", "peft=lora", "quantization=nf4", "precision=bf16"],
        ["trainer=online_dpo", "trainer.args.reward_weights=[2.0]"],
        ["trainer.args.optim_args='rank=4,scale=2'", "trainer.args.neftune_noise_alpha=5"],
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
        (["trainer.args.eval_strategy=steps"], "eval_strategy would have no effect. Leave it out"),
        (["trainer.args.eval_packing=true"], "eval_packing would have no effect"),
        (["trainer.args.push_to_hub=true"], "it evaluates, saves and publishes nothing"),
        (["trainer.args.fsdp=full_shard"], "Type launch=zero3"),
        (["trainer.args.learning_rate=1"], "Type learning_rate=2e-5"),
        (["trainer.args.weight_decay=null"], "trainer.args.weight_decay=null: TRL takes a number"),
        (["trainer.args.max_grad_norm=true"], "trainer.args.max_grad_norm=true: TRL takes a number"),
        (["trainer.args.neftune_noise_alpha=abc"], "neftune_noise_alpha=abc: TRL takes a number for"),
        (["trainer.args.data_seed=true"], "data_seed=true: TRL takes a number"),
        (["trainer.args.completion_only_loss=5"], "completion_only_loss=5: TRL takes true or false"),
        (["trainer=rloo", "trainer.args.reward_weights=1"], "reward_weights=1: TRL takes a list of numbers"),
        (["trainer=rloo", "trainer.args.reward_weights=[a]"], "TRL takes a list of numbers"),
        (["trainer=online_dpo", "trainer.args.reward_model_path=x"], "Type trainer.reward=MODULE.FUNCTION"),
        (["eval_steps=5"], "there is no eval_steps"),
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
