"""What every test shares: no W&B account, no network, one warm server for those that run cells, and what jobs and
simulations in the process of the tests leave behind.
"""

import gc
import os
from collections.abc import Iterator

import pytest

# Set for the processes that tests start as well; nothing here may wait for a hub that is not there.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ.setdefault("WANDB_MODE", "offline")
# xdist sets it in its workers, as if somebody looked at a terminal there: a test that means a width says so.
os.environ.pop("COLUMNS", None)


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


@pytest.fixture(scope="module")
def jobs_in_this_process() -> Iterator[None]:
    """A worker has a process for itself: it leaves its number of threads behind, and accelerate collects garbage after
    each training, here not through all that was imported."""
    import torch

    threads = torch.get_num_threads()
    gc.freeze()
    yield
    gc.unfreeze()
    torch.set_num_threads(threads)


@pytest.fixture
def scratch_switches() -> Iterator[dict[str, bool]]:
    """What kernels take beside their outputs, for a test to switch off: on again after it."""
    from memexp.simulate.scratch import SWITCHES

    before = dict(SWITCHES)
    yield SWITCHES
    SWITCHES.update(before)


@pytest.fixture
def without_scratch(scratch_switches: dict[str, bool]) -> None:
    """Outputs alone, as on the CPU."""
    scratch_switches.update(dict.fromkeys(scratch_switches, False))
