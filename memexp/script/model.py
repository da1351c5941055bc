"""The part of a script that has the tokenizer and the model: published weights, or random ones as measured."""

from memexp.plan import conf
from memexp.plan.fields import config_fields
from memexp.plan.library_arguments import MODEL_CLASSES, bitsandbytes_arguments, head_arguments
from memexp.plan.plan import Plan
from memexp.script.python import call, comment, keyword_arguments, literal, name
from memexp.script.rows import ASSETS, YOURS


def imports(plan: Plan) -> str:
    """The line that imports from transformers."""
    model = plan.work.model
    classes = [*(["AutoConfig"] if model.weights == "random" else []), _family(plan), "AutoTokenizer"]
    classes += ["BitsAndBytesConfig"] if model.kwargs.get("quantization") else []
    return f"from transformers import {', '.join([*classes, 'set_seed'])}"


def tokenizer(plan: Plan) -> str:
    """The lines that leave `tokenizer` and, for random weights, `config`, or a folder that the model is loaded from."""
    model = plan.work.model
    if model.weights == "pretrained":
        return f"MODEL = {literal(model.path)}\ntokenizer = AutoTokenizer.from_pretrained(MODEL{_of_the_hub(plan)})"
    published = conf.option("model", plan.choices["model"]).get("path") if _is_shipped(plan) else None
    lines = []
    if published:
        family, kwargs = _family(plan), _model_kwargs(plan)
        lines += ["# Random weights, as measured. The published ones instead:"]
        lines += [f"#   model = {family}.from_pretrained({literal(published)}, {kwargs})"]
        lines += [f"#   tokenizer = AutoTokenizer.from_pretrained({literal(published)})"]
    lines += [comment("a folder of memexp's installation; on another machine copy it and name it here.") + YOURS]
    lines += [f"tokenizer = AutoTokenizer.from_pretrained({literal(str(ASSETS / 'tokenizer'))})"]
    fields = model.config | head_arguments(plan.work.trainer.task)
    lines += [call("config = AutoConfig.for_model", [literal(model.model_type), *keyword_arguments(fields, True)])]
    return "\n".join([*lines, *_into_a_folder(plan)])


def model(plan: Plan) -> str:
    """The lines that leave `model`. They stand behind the arguments: DeepSpeed must know of itself to split weights."""
    family, kwargs = _family(plan), _model_kwargs(plan)
    if plan.work.model.weights == "pretrained":
        return f"set_seed({plan.work.seed})\nmodel = {family}.from_pretrained(MODEL{_of_the_hub(plan)}, {kwargs})"
    if _why_from_a_folder(plan) is not None:
        return f"model = {family}.from_pretrained(WEIGHTS, {kwargs})"
    return f"set_seed({plan.work.seed})\nmodel = {family}.from_config(config, {kwargs})"


def _into_a_folder(plan: Plan) -> list[str]:
    why = _why_from_a_folder(plan)
    if why is None:
        return []
    # Each process has its own: one would read what another still writes.
    folder = "f\"random_weights_{os.environ['RANK']}\"" if plan.work.processes > 1 else literal("random_weights")
    dtype = name(plan.work.model.kwargs["dtype"])
    return [
        comment(f"{why}, so random ones are written to a folder before."),
        f"WEIGHTS = {folder}",
        f"set_seed({plan.work.seed})",
        f"{_family(plan)}.from_config(config, dtype=torch.{dtype}).save_pretrained(WEIGHTS)",
    ]


def needs_os(plan: Plan) -> bool:
    """Whether the lines of `tokenizer` read the environment."""
    return plan.work.processes > 1 and plan.work.model.weights == "random" and _why_from_a_folder(plan) is not None


def _why_from_a_folder(plan: Plan) -> str | None:
    """Why random weights must lie in a folder."""
    if plan.work.model.kwargs.get("quantization"):
        return "Weights are quantised as they are loaded"
    if _loads_a_reference(plan):
        return "TRL loads the weights of a reference model from where the model was loaded"
    return None


def _loads_a_reference(plan: Plan) -> bool:
    """DPO does, GRPO and RLOO where beta is not 0. Online DPO, whose beta is a list, copies the policy (trl 1.16)."""
    trainer = plan.work.trainer
    beta = trainer.args.get("beta", config_fields(trainer.config_class).get("beta"))
    return plan.work.peft is None and isinstance(beta, int | float) and (trainer.rows == "pairs" or beta != 0)


def _family(plan: Plan) -> str:
    return MODEL_CLASSES[plan.work.trainer.task]


def _is_shipped(plan: Plan) -> bool:
    return plan.choices.get("model") in conf.groups()["model"]


def _of_the_hub(plan: Plan) -> str:
    model = plan.work.model
    given = {"revision": model.revision, "trust_remote_code": model.trust_remote_code or None}
    return "".join(f", {argument}" for argument in keyword_arguments(given))


def _model_kwargs(plan: Plan) -> str:
    kwargs = dict(plan.work.model.kwargs)
    parts = [f"dtype=torch.{name(kwargs.pop('dtype'))}"]
    quantization = kwargs.pop("quantization", None)
    if quantization:
        given = bitsandbytes_arguments(quantization, bool(plan.work.trainer.args.get("bf16")))
        parts.append(f"quantization_config=BitsAndBytesConfig({', '.join(keyword_arguments(given))})")
    if plan.work.model.weights == "pretrained":
        parts += keyword_arguments(head_arguments(plan.work.trainer.task))
    return ", ".join([*parts, *keyword_arguments(kwargs)])
