"""Turn a composed config into a Plan: check the values, merge the techniques. No torch in here.

What a technique sets is data in conf/; this module only merges it, in one order: the trainer's own, memexp's, the
backend's, each technique's, and last the user's `trainer.args`.
"""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from memexp.plan import conf
from memexp.plan.fields import ALWAYS, check_trainer_args, config_fields
from memexp.plan.launch_rules import is_zero3
from memexp.plan.length_distributions import length_distribution
from memexp.plan.machine import Machine
from memexp.plan.plan import Budget, Model, Plan, PlanError, Technique, Trainer, Work
from memexp.plan.resolve import resolve
from memexp.plan.trusted import check_environment, check_options
from memexp.plan.values import check_values, select, show
from memexp.simulate.allocator.keys import check_allocator_conf

# What TRL's trainers can train on, each under its own name.
COLUMNS = ("messages", "prompt", "completion", "chosen", "rejected", "text", "input_ids", "labels")
# What decides how a cell is run and where it lands, but not what it does: no axis of the results.
_HOW = ("results_dir", "sweep", "baseline", "isolation", "jobs", "timeout_seconds", "rerun", "fail_fast", "dry_run")


def make_plan(cfg: DictConfig, machine: Machine) -> Plan:
    """Plan one cell from a config composed with its hydra node. Raises PlanError for a value wrong by itself."""
    options = {str(group): name for group, name in cfg.hydra.runtime.choices.items() if "/" not in str(group)}
    job = resolve(cfg, options, machine)
    check_values(job)
    allocator_problem = check_allocator_conf(str(job["allocator"]["conf"] or ""))
    if allocator_problem:
        raise PlanError(f"allocator.conf={job['allocator']['conf']}: {allocator_problem}")
    techniques = {group: name for group, name in options.items() if group not in conf.STRUCTURE and name is not None}
    overrides = tuple(cfg.hydra.overrides.task)
    typed_path = next((o for o in overrides if o.lstrip("+").startswith("model.path=")), None)
    if typed_path and job["model"]["weights"] == "random":
        raise PlanError(
            f"{typed_path}: a path is read with model.weights=pretrained. Type that too, or leave the path out."
        )
    check_options(job, options)
    work = _work(job, options, techniques)
    check_environment(work.env)
    return Plan(
        id=work.id(),
        work=work,
        choices=_choices(job, options, overrides),
        techniques=tuple(_technique(group, name, job[group]) for group, name in sorted(techniques.items())),
        overrides=overrides,
        isolation=_isolation(job["isolation"], work),
        timeout_seconds=job["timeout_seconds"],
        notes=_notes(job["isolation"], work),
    )


def _work(job: dict[str, Any], options: dict[str, Any], techniques: dict[str, str]) -> Work:
    trainer = job["trainer"]
    files = {group: job[group] for group in techniques}
    return Work(
        backend=options["backend"],
        gpu=options.get("gpu") if options["backend"] == "simulate" else None,
        processes=job["launch"]["processes"],
        threads=job["threads"],
        seed=job["seed"],
        trainer=_trainer(trainer, _args(job, files)),
        model=_model(job, files),
        data=_data(job["data"]),
        peft=_merged(files, "peft") or None,
        env=_merged(files, "env"),
        budget=Budget(job["steps"], job["unmeasured_steps"], **job["budget"]),
    )


def _trainer(trainer: dict[str, Any], args: dict[str, Any]) -> Trainer:
    kept = ("name", "config_class", "trainer_class", "rows", "task", "reward")
    return Trainer(**{key: trainer[key] for key in kept if key in trainer}, args=args)


def _args(job: dict[str, Any], files: dict[str, dict[str, Any]]) -> dict[str, Any]:
    trainer = job["trainer"]
    sets = {name: value for name, value in trainer["sets"].items() if (name, value) != ("learning_rate", None)}
    always = {**ALWAYS, **trainer.get("always", {})}
    memexp = {**sets, **always, **job["backend"].get("args", {})}
    # What is off needs no argument that this trainer lacks; what is on and lacks one is refused (preflight).
    fields = config_fields(trainer["config_class"])
    on = {group: file for group, file in files.items() if not file.get("is_off")}
    off = {name: value for name, value in _merged(files, "args").items() if name in fields}
    techniques = {**off, **_merged(on, "args")}
    owner = {name: group for group, file in files.items() for name in file.get("args") or {}}
    filling = conf.filling_keys(conf.option("trainer", trainer["name"])["sets"])  # as written, and not as resolved
    taken = {
        **{name: filling[name] for name in sets},
        **dict.fromkeys(job["backend"].get("args", {}), "backend"),
        **owner,
    }
    check_trainer_args(trainer["args"] or {}, trainer["config_class"], taken, always)
    return {**memexp, **techniques, **(trainer["args"] or {})}


def _merged(files: dict[str, dict[str, Any]], part: str) -> dict[str, Any]:
    return {name: value for file in files.values() for name, value in (file.get(part) or {}).items()}


def _model(job: dict[str, Any], files: dict[str, dict[str, Any]]) -> Model:
    model = job["model"]
    if model["weights"] == "pretrained" and not model["path"]:
        raise PlanError(
            "model.weights=pretrained: this model has no path. Type model.path=FOLDER or model.path=ORG/NAME."
        )
    random = model["weights"] == "random"
    return Model(
        weights=model["weights"],
        # What random weights do not read does not change the run.
        path=None if random else _local(model["path"]),
        revision=None if random else model["revision"],
        trust_remote_code=False if random else bool(model["trust_remote_code"]),
        model_type=model["model_type"],
        config=model["config"],
        kwargs=_merged(files, "model"),
    )


def _local(path: str) -> str:
    """What exists here by its absolute path, so that the cell finds it from any folder; a hub name as it is."""
    return str(Path(path).resolve()) if Path(path).exists() else path


def _data(data: dict[str, Any]) -> dict[str, Any]:
    fields = dict(data)
    if fields.get("columns") and fields["kind"] not in ("jsonl", "hub"):
        raise PlanError(
            f"data.columns: data={fields['kind']} has columns of its own. data=jsonl data.path=FILE reads yours."
        )
    unknown = [name for name in fields.get("columns") or {} if name not in COLUMNS]
    if unknown:
        raise PlanError(f"data.columns.{unknown[0]}: TRL reads no column {unknown[0]}. It reads {', '.join(COLUMNS)}.")
    if fields["kind"] == "lengths":
        try:
            length_distribution(fields["distribution"], fields)
        except ValueError as error:
            raise PlanError(f"data.{error}") from error
    if fields.get("path") and Path(str(fields["path"])).is_file():
        fields["path"] = _local(fields["path"])
        # A file that changed is other data, under whatever name.
        fields["sha256"] = _sha256(fields["path"], Path(fields["path"]).stat().st_mtime_ns)
    return fields


_hashes: dict[tuple[str, int], str] = {}


def _sha256(path: str, modified_ns: int) -> str:
    if (path, modified_ns) not in _hashes:
        with open(path, "rb") as file:
            _hashes[path, modified_ns] = hashlib.file_digest(file, "sha256").hexdigest()
    return _hashes[path, modified_ns]


def _technique(group: str, name: str, file: dict[str, Any]) -> Technique:
    return Technique(
        group=group,
        option=name,
        is_off=bool(file.get("is_off", False)),
        trainers=tuple(file.get("trainers") or ()),
        needs=tuple(file.get("needs") or ()),
        confirm=file.get("confirm") or {},
        same_loss=bool(file.get("same_loss", False)),
    )


def _choices(job: dict[str, Any], options: dict[str, Any], overrides: tuple[str, ...]) -> dict[str, Any]:
    """Every group's option and every value of config.yaml, and whatever else was typed, under the name typed."""
    unread = () if options["backend"] == "simulate" else ("gpu",)
    groups = {group: name for group, name in options.items() if group not in ("logger", "experiment", *unread)}
    values = {key: value for key, value in job.items() if not isinstance(value, dict) and key not in _HOW}
    values.update(dict.fromkeys(_not_asked_for(job, options["trainer"], overrides)))
    budget = {f"budget.{key}": value for key, value in job["budget"].items()}
    typed = (override.lstrip("+~").partition("=")[0].partition("@")[0] for override in overrides)
    deeper = {key: select(job, key)[1] for key in typed if "." in key and key.split(".")[0] in job}
    return {
        **groups,
        **values,
        **budget,
        **{key: value for key, value in deeper.items() if not key.startswith("logger")},
    }


def _not_asked_for(job: dict[str, Any], trainer: str, overrides: tuple[str, ...]) -> list[str]:
    """Values that stand at their default and that this trainer has no argument for: null is what they come to."""
    typed = {override.lstrip("+~").partition("=")[0] for override in overrides}
    return [key for key in conf.values_not_taken(trainer) if key not in typed and job[key] == conf.primary()[key]]


def _isolation(asked: str, work: Work) -> str:
    if work.processes > 1:
        return "fresh"  # the warm server forks one process a cell
    if asked != "auto":
        return asked
    # The warm server has told the hub's library that there is no network.
    return "fresh" if work.backend == "cuda" or work.needs_hub else "warm"


def _notes(isolation: str, work: Work) -> tuple[str, ...]:
    notes = []
    if isolation == "warm" and work.processes > 1:
        notes.append(f"isolation=warm is for cells of one process: these {work.processes} start fresh interpreters")
    if work.peft and is_zero3(work):
        notes.append("under ZeRO-3 TRL keeps adapters in the dtype of the weights, and recomputes reentrantly")
    return tuple(notes)


def cell_name(plan: Plan, axes: Sequence[str]) -> str:
    """What a person calls a cell: its swept axes, `packing=bfd offload=false`; the techniques in use where none is."""
    if axes:
        return " ".join(f"{axis}={show(plan.choices.get(axis))}" for axis in axes)
    defaults = {group: conf.default_option(group, plan.work.backend) for group in conf.group_defaults()}
    used = [f"{t.group}={t.option}" for t in plan.techniques if not t.is_off and t.option != defaults.get(t.group)]
    return " ".join(used) or f"model={plan.choices['model']}"
