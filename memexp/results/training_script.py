"""A plan as the code to paste: a plain TRL script that trains what the cell trained, and needs no memexp.

It says what differs from TRL's defaults and nothing else. Data is the user's own file where the cell had one; for
shipped rows it is the path of the shipped file, and rows.jsonl where a trainer takes none of those. Where the script
cannot know (rows of other trainers, a reward) a line marked `# <- yours` says so. A plan is data: nothing of it gets
into the code but as a literal, or as a name that was checked.
"""

import json
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from random import Random
from typing import Any

import memexp
from memexp.plan import conf
from memexp.plan.fields import ALWAYS, config_fields
from memexp.plan.lengths import length_distribution
from memexp.plan.plan import Plan

_ASSETS = Path(memexp.__file__).parent / "assets"
# Of what memexp sets for every cell, what a user decides for themselves.
_AS_MEASURED = ("lr_scheduler_type", "train_sampling_strategy", "save_strategy", "logging_steps")
_TASKS = {"CAUSAL_LM": "AutoModelForCausalLM", "SEQ_CLS": "AutoModelForSequenceClassification"}
_YOURS = "  # <- yours"
_OWN_ROWS = "rows.jsonl"
_ROWS = {
    "documents": "one JSON object a line, with messages, text, prompt and completion, or input_ids",
    "pairs": "one JSON object a line, with prompt, chosen and rejected",
    "prompts": "one JSON object a line, with prompt",
}


def training_script(plan: Plan, about: str) -> str:
    """The whole file. `about` is what it says of itself in its first lines; any text will do.

    Raises ValueError or KeyError for a plan that no option of memexp's makes.
    """
    parts = [_docstring(about), *_environment(plan), _imports(plan), _rows(plan), _model(plan)]
    parts += [_arguments(plan), _trainer(plan)]
    return "\n\n".join(part for part in parts if part) + "\n"


def rows_to_write(plan: Plan) -> str | None:
    """What a user has to do before the script can run, `put your rows into rows.jsonl (…)`; None where it just runs."""
    return None if _reads_what_is_there(plan) else f"put your rows into {_OWN_ROWS} ({_ROWS[plan.work.trainer.rows]})"


def _reads_what_is_there(plan: Plan) -> bool:
    """Shipped and made-up rows are documents: pairs and prompts of them were made by memexp, whose code stays here."""
    return plan.work.data["kind"] not in ("docstrings", "lengths") or plan.work.trainer.rows == "documents"


def _docstring(about: str) -> str:
    lines = textwrap.wrap(about.replace("\\", "/").replace('"', "'"), 100)
    return '"""' + "\n".join(lines) + ('\n"""' if len(lines) > 1 else '"""')


def _environment(plan: Plan) -> list[str]:
    given = {name: value for name, value in plan.work.env.items() if value is not None}
    if not given:
        return []
    lines = [f"os.environ[{_literal(name)}] = {_literal(value)}" for name, value in given.items()]
    return ["import os", "\n".join(["# Before torch is imported: it reads these once.", *lines])]


def _imports(plan: Plan) -> str:
    work = plan.work
    family = _TASKS[work.trainer.task]
    is_random = work.model.weights == "random"
    quantized = bool(work.model.kwargs.get("quantization"))
    from_transformers = [*(["AutoConfig"] if is_random else []), family, "AutoTokenizer"]
    from_transformers += ["BitsAndBytesConfig"] if quantized else []
    rows = "Dataset" if work.data["kind"] == "lengths" and _reads_what_is_there(plan) else "load_dataset"
    lines = ["import torch", f"from datasets import {rows}"]
    lines += ["from peft import LoraConfig"] if work.peft is not None else []
    lines += [f"from transformers import {', '.join([*from_transformers, 'set_seed'])}"]
    classes: dict[str, list[str]] = {}
    for path in (work.trainer.config_class, work.trainer.trainer_class):
        module, _, name = _name(path).rpartition(".")
        classes.setdefault(module, []).append(name)
    return "\n".join([*lines, *(f"from {module} import {', '.join(names)}" for module, names in classes.items())])


def _rows(plan: Plan) -> str:
    data, needs = plan.work.data, plan.work.trainer.rows
    if not _reads_what_is_there(plan):
        return _rows_of_a_file(_OWN_ROWS, needs, _YOURS)
    if data["kind"] == "lengths":
        return _rows_of_lengths(plan)
    if data["kind"] == "hub":
        name = f", {_literal(data['name'])}" if data.get("name") else ""
        lines = [f"rows = load_dataset({_literal(data['path'])}{name}, split={_literal(data['split'])})"]
    elif data["kind"] == "docstrings":
        lines = [_rows_of_a_file(str(_ASSETS / "docstrings.jsonl"), needs, _YOURS)]
    else:
        lines = [_rows_of_a_file(data["path"], needs)]
    columns = data.get("columns")
    if columns:
        lines.append(f"rows = rows.rename_columns({_literal({theirs: ours for ours, theirs in columns.items()})})")
        lines.append(f"rows = rows.select_columns({_literal(list(columns))})")
    return "\n".join(lines)


def _rows_of_a_file(path: str, needs: str, mark: str = "") -> str:
    said = _ROWS[needs]
    return (
        f"# {said[0].upper()}{said[1:]}\nDATA = {_literal(path)}{mark}\n"
        'rows = load_dataset("json", data_files=DATA, split="train")'
    )


def _rows_of_lengths(plan: Plan) -> str:
    data = plan.work.data
    lengths = length_distribution(data["distribution"], data).draw(data["rows"], Random(data["seed"]))
    listed = textwrap.fill(str(lengths), 110, initial_indent="LENGTHS = ", subsequent_indent="    ")
    return "\n".join(
        [
            f"# Made-up tokens of the lengths that were measured; load your own data in their place.{_YOURS}",
            listed,
            "ids = [[4 + n % 4000 for n in range(length)] for length in LENGTHS]",
            'rows = Dataset.from_list([{"input_ids": row, "labels": row} for row in ids])',
        ]
    )


def _model(plan: Plan) -> str:
    model, seed = plan.work.model, plan.work.seed
    family = _TASKS[plan.work.trainer.task]
    kwargs = _model_kwargs(plan)
    lines = [f"set_seed({seed})"]
    if model.weights == "pretrained":
        where = _call_arguments({"revision": model.revision, "trust_remote_code": model.trust_remote_code or None})
        tail = "".join(f", {argument}" for argument in where)
        lines += [f"MODEL = {_literal(model.path)}", f"tokenizer = AutoTokenizer.from_pretrained(MODEL{tail})"]
        lines += [f"model = {family}.from_pretrained(MODEL{tail}, {kwargs})"]
        return "\n".join(lines)
    published = conf.option("model", plan.choices["model"]).get("path") if _is_shipped(plan) else None
    if published:
        lines += ["# Random weights, as measured. The published ones instead:"]
        lines += [f"#   model = {family}.from_pretrained({_literal(published)}, {kwargs})"]
        lines += [f"#   tokenizer = AutoTokenizer.from_pretrained({_literal(published)})"]
    lines += [f"tokenizer = AutoTokenizer.from_pretrained({_literal(str(_ASSETS / 'tokenizer'))})"]
    fields = model.config | ({"num_labels": 1} if plan.work.trainer.task == "SEQ_CLS" else {})
    lines += [_call("config = AutoConfig.for_model", [_literal(model.model_type), *_call_arguments(fields, True)])]
    why = _why_from_a_folder(plan)
    if why is None:
        return "\n".join([*lines, f"model = {family}.from_config(config, {kwargs})"])
    made = f'{family}.from_config(config, dtype=torch.{_name(model.kwargs["dtype"])}).save_pretrained("random_weights")'
    lines += [f"# {why}, so random ones are written to a folder before.", made]
    return "\n".join([*lines, f'model = {family}.from_pretrained("random_weights", {kwargs})'])


def _why_from_a_folder(plan: Plan) -> str | None:
    """Why random weights must lie in a folder. A reference model is loaded once more, by the name of the policy."""
    work = plan.work
    if work.model.kwargs.get("quantization"):
        return "Weights are quantised as they are loaded"
    if work.peft is None and work.trainer.rows != "documents" and work.trainer.task == "CAUSAL_LM":
        return "TRL loads the weights of a reference model from where the model was loaded"
    return None


def _is_shipped(plan: Plan) -> bool:
    return plan.choices.get("model") in conf.groups()["model"]


def _model_kwargs(plan: Plan) -> str:
    kwargs = dict(plan.work.model.kwargs)
    parts = [f"dtype=torch.{_name(kwargs.pop('dtype'))}"]
    quantization = kwargs.pop("quantization", None)
    if quantization:
        parts.append(f"quantization_config={_quantization(quantization, bool(plan.work.trainer.args.get('bf16')))}")
    if plan.work.trainer.task == "SEQ_CLS" and plan.work.model.weights == "pretrained":
        parts.append("num_labels=1")
    return ", ".join([*parts, *_call_arguments(kwargs)])


def _quantization(fields: Mapping[str, Any], bf16: bool) -> str:
    if fields["bits"] == 8:
        return "BitsAndBytesConfig(load_in_8bit=True)"
    compute = fields["compute_dtype"]
    given = {
        "load_in_4bit": True,
        "bnb_4bit_quant_type": fields["quant_type"],
        "bnb_4bit_use_double_quant": fields["double_quant"],
        "bnb_4bit_compute_dtype": ("bfloat16" if bf16 else "float32") if compute == "auto" else compute,
    }
    return f"BitsAndBytesConfig({', '.join(_call_arguments(given))})"


def _arguments(plan: Plan) -> str:
    trainer = plan.work.trainer
    defaults = config_fields(trainer.config_class)
    differing = {name: value for name, value in trainer.args.items() if value != defaults.get(name, ...)}
    own = [name for name in differing if name not in ALWAYS]
    measured = [name for name in _AS_MEASURED if name in differing]
    lines = [
        'output_dir="output"',
        "num_train_epochs=1",
        *_call_arguments({name: differing[name] for name in own}),
        "# as measured, and yours to change: none of these moves the worst-case peak",
        *_call_arguments({name: differing[name] for name in measured}),
    ]
    return _call(f"args = {trainer.config_class.rpartition('.')[2]}", lines)


def _trainer(plan: Plan) -> str:
    trainer = plan.work.trainer
    lines = ["model=model", "args=args", "train_dataset=rows", "processing_class=tokenizer"]
    reward = ""
    if trainer.reward is not None:
        body = "return [float(len(text)) for text in completions]"
        reward = f"\ndef reward(completions, **kwargs):{_YOURS}\n    {body}\n\n\n"
        lines.append("reward_funcs=[reward]")
    if plan.work.peft is not None:
        fields = dict(plan.work.peft)
        modules = fields["target_modules"]
        # peft reads a bare string as a pattern for whole names.
        fields["target_modules"] = [modules] if isinstance(modules, str) and modules != "all-linear" else modules
        lines.append(f"peft_config=LoraConfig({', '.join(_call_arguments({'task_type': trainer.task, **fields}))})")
    call = _call(f"trainer = {trainer.trainer_class.rpartition('.')[2]}", lines)
    return f"{reward}{call}\ntrainer.train()\n# trainer.save_model()"


def _name(dotted: Any) -> str:
    """A dotted name as it is. Raises ValueError for anything else, which would be code of somebody's."""
    if not isinstance(dotted, str) or not all(part.isidentifier() for part in dotted.split(".")):
        raise ValueError(f"{dotted!r} is no name")
    return dotted


def _literal(value: Any) -> str:
    """A JSON value as Python, strings in double quotes. Whatever a string holds, it stays a string."""
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, dict):
        return f"{{{', '.join(f'{_literal(key)}: {_literal(item)}' for key, item in value.items())}}}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_literal, value))}]"
    return repr(value)


def _call(name: str, arguments: list[str]) -> str:
    lines = (f"    {each}" if each.startswith("#") else f"    {each}," for each in arguments)
    return "\n".join([f"{name}(", *lines, ")"])


def _call_arguments(values: Mapping[str, Any], null_too: bool = False) -> list[str]:
    """`name=value` for each, null ones left out: they are what a call without them means."""
    return list(_each(values, null_too))


def _each(values: Mapping[str, Any], null_too: bool) -> Iterator[str]:
    for name, value in values.items():
        if value is not None or null_too:
            yield f"{_name(name)}={_literal(value)}"
