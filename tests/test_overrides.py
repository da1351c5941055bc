"""The door of overrides: booleans for groups, and typos in the user's words."""

from collections.abc import Sequence

import pytest

from memexp.plan import load
from memexp.plan.conf import groups
from memexp.plan.overrides import normalise, require_single, typed_twice
from memexp.plan.plan import PlanError
from memexp.plan.synonyms import _INSTEAD

GROUPS = groups()


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("offload=true", "offload='true'"),
        ("offload=True", "offload='true'"),
        ("offload=true,false", "offload='true','false'"),
        ("offload=choice(true,false)", "offload=choice('true','false')"),
        ("offload='true'", "offload='true'"),
        ("packing=bfd,wrapped", "packing=bfd,wrapped"),
        ("packing=glob(*)", "packing=glob(*)"),
        ("dry_run=true", "dry_run=true"),
        ("trainer.args.weight_decay=0.1", "++trainer.args.weight_decay=0.1"),
        ("hydra/launcher=joblib", "hydra/launcher=joblib"),
        ("baseline=packing=none,offload=false", "baseline='packing=none,offload=false'"),
    ],
)
def test_a_boolean_of_a_group_becomes_the_name_of_its_option(typed: str, meant: str) -> None:
    assert normalise([typed], GROUPS) == [meant]


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("packin=bfd", "Did you mean packing?"),
        ("packing=ffd", "Its options: bfd, bfd_split, none, wrapped."),
        ("packing=false", "Its options: bfd, bfd_split, none, wrapped."),
        ("offload=maybe", "Its options: false, true."),
        ("packing=bfd,ffd", "packing=ffd"),
        ("max_lenght=3", "Did you mean max_length?"),
        ("budget=1", "budget.tokens="),
        ("budget.step=3", "Did you mean budget.steps?"),
        ("packing", "is no KEY=VALUE"),
        ("a=b=c[", "cannot be read"),
    ],
)
def test_a_typo_is_named_with_what_to_type(typed: str, said: str) -> None:
    with pytest.raises(PlanError) as error:
        normalise([typed], GROUPS)
    assert said in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        (["trainer=grpo", "num_generations=4"], "Type trainer.num_generations=…."),
        (["trainer=sft,rloo", "num_generations=4"], "Type trainer.num_generations=…."),
        (["peft=lora", "r=4"], "Type peft.r=…."),
        (["trainer=dpo", "beta=0.2"], "Type trainer.args.beta=…."),
        (["weight_decay=0.1"], "Type trainer.args.weight_decay=…."),
        (["per_device_train_batch_size=2"], "Type batch_size=…."),
        (["max_steps=2"], "Type steps=5 or budget.steps=100."),
        (["beta=0.2"], "Type trainer.args.beta=… with trainer=dpo, grpo, online_dpo or rloo."),
        (["r=4"], "Type peft.r=… with peft=dora, lora or rslora."),
        # What memexp alone sets.
        (["config_class=x"], "there is no config_class. python -m memexp --help"),
        (["logging_steps=2"], "there is no logging_steps."),
    ],
)
def test_a_field_without_its_group_is_told_where_it_is(typed: list[str], said: str) -> None:
    with pytest.raises(PlanError) as error:
        normalise(typed, groups())
    assert said in str(error.value)


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        (["trainer=dpo", "trainer.beta=0.2"], "trainer.beta: beta is an argument of TRL's. Type trainer.args.beta=…."),
        (["trainer.learning_rate=1"], "Type learning_rate=2e-5."),
        (["trainer=grpo", "trainer.per_device_train_batch_size=2"], "Type batch_size=…."),
        (["trainer.fp16=true"], "Type precision=fp16."),
        (["trainer.beta=0.2"], "trainer.beta: the option chosen has no beta."),
        (["trainer.num_generations=2"], "trainer=grpo and trainer=rloo have it."),
        (["trainer.logging_steps=2"], "the option chosen has no logging_steps."),
    ],
)
def test_an_argument_of_trl_without_args_is_told_how_it_is_set(typed: list[str], said: str) -> None:
    with pytest.raises(PlanError) as error:
        load(*typed)
    assert said in str(error.value)


def test_a_single_run_refuses_several_values_and_says_how_to_sweep() -> None:
    with pytest.raises(PlanError, match=r"packing=bfd,wrapped lists several values.*add -m"):
        require_single(["packing=bfd,wrapped"], "To run all of them, add -m.")


def test_a_quoted_comma_is_one_value() -> None:
    require_single(["allocator.conf='expandable_segments:True,max_split_size_mb:64'"], "")


@pytest.mark.parametrize(
    ("typed", "becomes"),
    [
        (["peft=none,lora", "peft.r=4"], "++peft.r=4"),
        (["trainer=rloo,online_dpo", "trainer.max_completion_length=8"], "++trainer.max_completion_length=8"),
        # An option of one kind, and a field that none of those swept has, are for Hydra to judge.
        (["peft=lora", "peft.r=4"], "peft.r=4"),
        (["peft=none,lora", "peft.rank=4"], "peft.rank=4"),
        (["trainer=sft,dpo", "trainer.max_completion_length=8"], "trainer.max_completion_length=8"),
    ],
)
def test_a_field_of_one_swept_option_may_be_set_beside_options_without_it(typed: list[str], becomes: str) -> None:
    assert normalise(typed, groups())[-1] == becomes
    assert normalise(normalise(typed, groups()), groups())[-1] == becomes


@pytest.mark.parametrize("group", [group for group in GROUPS if GROUPS[group]], ids="{}=".format)
def test_a_list_is_no_option_of_any_group(group: str) -> None:
    names = ",".join(GROUPS[group][:2])
    for typed in (f"{group}=[{names}]", f"{group}=[{names}],{GROUPS[group][0]}"):
        with pytest.raises(PlanError, match=rf"{group} takes one option; for several: -m {group}={names}\."):
            normalise([typed], GROUPS)
    with pytest.raises(PlanError, match="takes one option"):
        load(f"{group}=[{names}]")
    for typed in (f"{group}=null,{names}", f"{group}={{a:1}}"):
        with pytest.raises(PlanError, match="is one of its options"):
            normalise([typed], GROUPS)


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        (["model=Qwen/Qwen2.5-0.5B"], "model=own model.path=Qwen/Qwen2.5-0.5B"),
        (["data=nothere.jsonl"], "data=jsonl data.path=nothere.jsonl"),
        (["gpu=4090"], "Did you mean gpu=rtx4090_24gb?"),
        (["gpu=rtx4090"], "Did you mean gpu=rtx4090_24gb?"),
        (["gpu=H100"], "Did you mean gpu=h100_80gb?"),
        (["lr=1e-4"], "Type learning_rate=1e-4."),
        (["peft=qlora"], "peft=lora quantization=nf4"),
        (["flash_attention=2"], "attention=flash_attention_2"),
        *(([f"offload={word}"], "Did you mean offload=true?") for word in ("yes", "on", "1", "YES")),
        *(([f"offload={word}"], "Did you mean offload=false?") for word in ("no", "off", "0")),
        (["packing=off"], "Did you mean packing=none?"),
        (["packing=none,", "bfd"], "Type packing=none,bfd."),
        (["data=jsonl", "data.path=my", "file.jsonl"], '"data.path=my file.jsonl"'),
    ],
)
def test_what_others_call_it_is_told_as_it_is_typed_here(typed: Sequence[str], said: str) -> None:
    with pytest.raises(PlanError) as error:
        normalise(typed, GROUPS)
    assert said in str(error.value)


@pytest.mark.parametrize("instead", [instead for _, _, instead in _INSTEAD if "," not in instead])
def test_every_synonym_says_what_memexp_takes(instead: str) -> None:
    assert normalise(instead.format(value="sdpa" if "attention=" in instead else "2").split(), GROUPS)


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("batch_size=1-8", "-m batch_size=1,2,4,8, or memexp frontier batch_size=1:8"),
        ("steps=3..6", "-m steps=3,4,6."),
        ("batch_size=x-y", "Type for example batch_size=4."),
    ],
)
def test_a_range_is_told_how_to_be_listed(typed: str, said: str) -> None:
    with pytest.raises(PlanError) as error:
        load(typed)
    assert said in str(error.value)


def test_a_key_that_is_typed_twice_is_told_which_value_counts() -> None:
    twice = ["max_length=512", "seed=1", "+max_length=1024", "seed=1"]
    assert typed_twice(twice) == ["max_length=512 +max_length=1024: max_length is typed twice, and the last counts."]
    assert load("max_length=512", "max_length=1024").choices["max_length"] == 1024  # as is said
