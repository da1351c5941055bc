"""A plan.json from elsewhere, read as data: what it names is held to what conf/ could have put there.

A plan says which classes are called with which arguments, and in what environment. So one that was made by hand could
run anything: a class that is none of TRL's, LD_PRELOAD, a kernel or a model whose code comes from the hub.
What a user may type and a file may not (a reward function, a model's own code) is refused with what to type instead.
"""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from memexp.plan import conf
from memexp.plan.fields import ALWAYS, config_fields, trl_fields
from memexp.plan.plan import Plan, PlanError, Work, work_id
from memexp.plan.trusted import check_environment
from memexp.results.format import one_line
from memexp.results.strict import parse_strictly
from memexp.simulate.allocator.keys import check_allocator_conf

_BACKENDS = ("cuda", "simulate", "cpu")
_ISOLATIONS = ("fresh", "warm")
# Arguments of a TRL config that reach beyond the training: to the hub, to files, to code that is fetched.
_REACH_OUT = (
    *("push_", "hub_", "resume_", "output_", "logging_dir", "run_name", "report_", "chat_template_path"),
    *("model_init_", "deepspeed", "fsdp", "accelerator_", "dataset_kwargs", "vllm_server", "vllm_group", "teacher_"),
)


def plan_from_elsewhere(path: Path) -> Plan:
    """The plan in `path`, under the id that it has there: another version of memexp may give the same work another.

    Raises PlanError, in one line, for whatever is wrong with it.
    """
    try:
        text = path.read_text(encoding="utf-8")
        plan = parse_strictly(Plan, text)
        written = work_id(json.loads(text)["work"])
    except OSError as error:
        raise PlanError(f"--replay {path}: {error.strerror}. Type results/NAME/cells/ID/plan.json.") from error
    except (ValueError, TypeError, RecursionError) as error:
        said = one_line(str(error), 150)
        raise PlanError(f"--replay {path}: this is no plan ({said}). Type results/NAME/cells/ID/plan.json.") from error
    try:
        for check in _CHECKS:
            check(plan.work)
        _check_how(plan)
    except PlanError as error:
        raise PlanError(f"--replay {path}: {one_line(str(error))}") from error
    if plan.id != written:
        raise PlanError(f"--replay {path}: it was changed after it was made: its work has the id {written}.")
    return plan


def _check_backend(work: Work) -> None:
    _one_of("backend", work.backend, _BACKENDS)
    _one_of("gpu", work.gpu, (None, *conf.groups()["gpu"]))
    for name, count in (("processes", work.processes), ("threads", work.threads)):
        if not isinstance(count, int) or not 1 <= count <= 4096:
            raise PlanError(f"{name}={count}: this is no number of {name}.")
    if not isinstance(work.seed, int) or not 0 <= work.seed < 2**32:
        raise PlanError(f"seed={work.seed}: this is no seed.")


def _check_trainer(work: Work) -> None:
    trainer = work.trainer
    _one_of("trainer", trainer.name, tuple(conf.groups()["trainer"]))
    shipped = conf.option("trainer", trainer.name)
    for field in ("config_class", "trainer_class", "rows", "task"):
        if field in shipped and getattr(trainer, field) != shipped[field]:
            raise PlanError(f"{field}={getattr(trainer, field)}: trainer={trainer.name} has {shipped[field]}.")
    if trainer.reward != shipped.get("reward"):
        raise PlanError(f"reward={trainer.reward}: it is code of the user's own. Type trainer.reward={trainer.reward}.")
    fields = config_fields(trainer.config_class)
    for name, value in trainer.args.items():
        if name not in fields:
            raise PlanError(f"{name}: {trainer.config_class} of TRL {trl_fields()['trl']} has no such argument.")
        usual = (fields[name], ALWAYS.get(name, fields[name]), *_values("args").get(name, ()))
        if name.startswith(_REACH_OUT) and value not in usual:
            raise PlanError(f"{name}={value}: it reaches beyond the training. Type trainer.args.{name}=… yourself.")


def _check_model(work: Work) -> None:
    model = work.model
    _one_of("weights", model.weights, ("random", "pretrained"))
    if model.trust_remote_code:
        raise PlanError(f"{model.path} has code of its own. Read it, and type model.trust_remote_code=true yourself.")
    if not all(str(name).isidentifier() for name in model.config) or not model.model_type.replace("_", "").isalnum():
        raise PlanError("its model is none that a configuration could describe.")
    known = _values("model")
    for name, value in model.kwargs.items():
        if name not in known or (isinstance(value, str) and value not in known[name]):
            raise PlanError(f"{name}={value}: no option of memexp's gives a model that.")


def _check_data(work: Work) -> None:
    data = work.data
    _one_of("kind", data.get("kind"), tuple(str(conf.option("data", name)["kind"]) for name in conf.groups()["data"]))
    if data["kind"] != "jsonl":
        return
    path = Path(str(data.get("path")))
    try:
        with path.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise PlanError(f"data.path={path}: {error.strerror}. Put the file there that it was run on.") from error
    if found != data.get("sha256"):
        raise PlanError(f"data.path={path} is not the file that it was run on: its contents differ.")


def _check_peft(work: Work) -> None:
    shipped = [conf.option("peft", name).get("peft") or {} for name in conf.groups()["peft"]]
    known = {name for fields in shipped for name in fields}
    for name in work.peft or {}:
        if name not in known:
            raise PlanError(f"{name}: no option of peft sets it.")


def _check_env(work: Work) -> None:
    check_environment(work.env)
    for name, value in work.env.items():
        problem = check_allocator_conf(value or "") if "ALLOC_CONF" in name else None
        if problem:
            raise PlanError(f"{name}={value}: {problem}")


def _check_how(plan: Plan) -> None:
    """How it is started, which no hash covers."""
    _one_of("isolation", plan.isolation, _ISOLATIONS)
    if plan.timeout_seconds is not None and plan.timeout_seconds <= 0:
        raise PlanError(f"timeout_seconds={plan.timeout_seconds}: it would end at once.")
    if not isinstance(plan.choices.get("packing"), str):
        raise PlanError("its choices name no packing.")


_CHECKS: tuple[Callable[[Work], None], ...] = (
    _check_backend,
    _check_trainer,
    _check_model,
    _check_data,
    _check_peft,
    _check_env,
)


def _values(part: str) -> dict[str, list[Any]]:
    """What the techniques' options set in one part of theirs, `args` or `model`: every value of each name."""
    found: dict[str, list[Any]] = {}
    for group, names in conf.groups().items():
        for name in names if group not in conf.STRUCTURE else ():
            for keyword, value in (conf.option(group, name).get(part) or {}).items():
                found.setdefault(keyword, []).append(value)
    return found


def _one_of(name: str, value: Any, known: tuple[Any, ...]) -> None:
    if value not in known:
        raise PlanError(f"{name}={value}: memexp knows {', '.join(str(each) for each in known if each is not None)}.")
