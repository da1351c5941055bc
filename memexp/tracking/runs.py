"""Start one W&B run that holds what it is given and nothing else. Imports wandb: for the exporting process alone."""

import shutil
from pathlib import Path
from typing import Any

from memexp.tracking.exporter import Settings


def start_run(settings: Settings, identity: str, **named: Any) -> Any:
    """A run under this id, in place of an older one on disk; `named` are its job_type, name, tags and config.

    Raises what W&B raises.
    """
    import wandb

    for stale in (Path(settings.folder) / "wandb").glob(f"*run-*-{identity}*"):
        shutil.rmtree(stale)
    return wandb.init(
        dir=settings.folder,
        mode=settings.mode,  # type: ignore[arg-type]
        entity=settings.entity,
        project=settings.project,
        group=settings.group,
        id=identity,
        # A run that could not be finished must not become the next one.
        reinit="create_new",
        settings=_only_what_is_given(wandb, settings.timeout_seconds),
        **named,
    )


def _only_what_is_given(wandb: Any, timeout_seconds: float) -> Any:
    """W&B's settings, with everything off that it would collect about this process, since this one did not train."""
    return wandb.Settings(
        console="off",
        silent=True,
        symlink=False,
        use_dot_wandb=False,
        disable_git=True,
        disable_code=True,
        save_code=False,
        sagemaker_disable=True,
        x_disable_meta=True,
        x_disable_stats=True,
        x_disable_machine_info=True,
        x_save_requirements=False,
        # Together they end before the limit on the whole run, so W&B can say what it waited for.
        init_timeout=timeout_seconds * 0.45,
        finish_timeout=timeout_seconds * 0.45,
        finish_timeout_raises=True,
    )
