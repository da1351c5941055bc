"""How many optimizer steps a budget comes to, from the lengths of the prepared rows. No torch in here.

Rows are taken in their order, epoch after epoch, as memexp's sequential sampler does; the last batch of an epoch may be
short, and so may be its last step. Ranks take a batch each in turn; the last ones are filled from the epoch's start.
"""

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from memexp.plan.plan import Budget


@dataclass(frozen=True)
class Steps:
    """Optimizer steps to take. At least one is measured, however short the run."""

    unmeasured: int
    measured: int
    per_epoch: int

    @property
    def total(self) -> int:
        return self.unmeasured + self.measured


def count_steps(
    budget: Budget, row_tokens: Sequence[int], batch_size: int, accumulation: int, processes: int = 1
) -> Steps:
    """Turn tokens, epochs or steps into steps. A token budget ends with the first step that reaches it, and counts the
    tokens of all ranks.

    Raises ValueError where there is no row, or no token, to train on.
    """
    if not row_tokens or sum(row_tokens) == 0:
        raise ValueError("there is nothing to train on: no row has a token")
    if processes > 1:
        # accelerate 1.12, BatchSamplerShard with even_batches: every rank has as many whole batches.
        missing = -len(row_tokens) % (batch_size * processes)
        row_tokens = [*row_tokens, *itertools.islice(itertools.cycle(row_tokens), missing)]
        batch_size *= processes
    per_epoch = math.ceil(math.ceil(len(row_tokens) / batch_size) / accumulation)
    if budget.tokens is not None:
        reached = itertools.accumulate(_step_tokens(row_tokens, batch_size * accumulation))
        total = 1 + next(index for index, tokens in enumerate(reached) if tokens >= budget.tokens)
    elif budget.epochs is not None:
        total = max(1, math.ceil(budget.epochs * per_epoch))
    elif budget.steps is not None:
        total = budget.steps
    else:
        return Steps(budget.unmeasured_steps, budget.measured_steps, per_epoch)
    unmeasured = min(budget.unmeasured_steps, total - 1)
    return Steps(unmeasured, total - unmeasured, per_epoch)


def _step_tokens(row_tokens: Sequence[int], rows_per_step: int) -> Iterator[int]:
    starts = range(0, len(row_tokens), rows_per_step)
    yield from itertools.cycle([sum(row_tokens[start : start + rows_per_step]) for start in starts])
