"""What every test shares: no W&B account, no network, and a results folder of its own."""

import os
from collections.abc import Iterator

import pytest

# Set for the processes that tests start as well; nothing here may wait for a hub that is not there.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ.setdefault("WANDB_MODE", "offline")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Tests marked gpu are skipped by name where there is none."""
    from memexp.plan.machine import this_machine

    if this_machine().gpus:
        return
    for item in items:
        if "gpu" in item.keywords:
            item.add_marker(pytest.mark.skip(reason=f"{item.name} needs an NVIDIA GPU"))


@pytest.fixture(scope="session")
def warm_cells() -> Iterator[None]:
    """One warm server for all sweeps of the session, as all cells of a sweep share one."""
    from memexp.plan import load
    from memexp.run.warm import warm_server

    with warm_server([load("backend=cpu")]):
        yield
