"""Tokenised rows, kept beside the sweep's cells so that a sweep tokenises its data once.

The rows are TRL's own, before anything is cut or packed. The key covers everything that could change them: the data,
the tokenizer, the trainer and every argument but those that are known to matter only later.
"""

import contextlib
import hashlib
import json
from collections import Counter
from pathlib import Path

import datasets

from memexp.plan.plan import Plan
from memexp.results.store import replacing, write_atomically
from memexp.run.row_lengths import row_lengths

# Arguments that TRL 1.16 reads only after tokenising. Whatever is not named here is part of the key.
_LATER = frozenset(
    {
        "activation_checkpointing",
        "activation_checkpointing_kwargs",
        "activation_offloading",
        "bf16",
        "fp16",
        "dataloader_pin_memory",
        "gradient_accumulation_steps",
        "learning_rate",
        "max_length",
        "optim",
        "packing",
        "packing_strategy",
        "pad_to_multiple_of",
        "padding_free",
        "per_device_train_batch_size",
        "seed",
        "use_cpu",
    }
)


class TokensCache:
    """One file for one way of tokenising. Two cells that write it at once write the same."""

    def __init__(self, folder: Path, plan: Plan, vocab_size: int) -> None:
        work = plan.work
        model = work.model
        tokenizer = "shipped" if model.weights == "random" else [model.path, model.revision]
        args = {name: value for name, value in work.trainer.args.items() if name not in _LATER}
        key = json.dumps([work.trainer.name, args, work.data, tokenizer, vocab_size], sort_keys=True)
        # What the hub or a folder holds may change under its name; a shipped file or a hashed one cannot.
        self.usable = model.weights == "random" and work.data["kind"] != "hub"
        # Ranks wait for each other while TRL tokenises: all must find the file or none, while other cells write it.
        self.usable = self.usable and work.processes == 1
        self._data = str(plan.choices.get("data"))
        self._path = folder / f"tokens-{hashlib.sha256(key.encode()).hexdigest()[:16]}.parquet"

    def read(self) -> datasets.Dataset | None:
        """The rows as TRL tokenised them, or None where no cell has done so yet, or not to be read."""
        if not self.usable or not self._path.exists():
            return None
        import pyarrow.parquet

        try:
            return datasets.Dataset(pyarrow.parquet.read_table(self._path))
        except (OSError, pyarrow.ArrowException):
            return None

    def write(self, rows: datasets.Dataset) -> None:
        """Keep rows for the next cell. Costs nothing but the time where it is of no use."""
        if not self.usable or self._path.exists():
            return
        with contextlib.suppress(OSError):  # a full disk: the next cell tokenises again
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with replacing(self._path) as temporary:
                rows.to_parquet(temporary)
            self._write_lengths(rows)

    def _write_lengths(self, rows: datasets.Dataset) -> None:
        """How many rows have how many tokens, as JSON for the report, which reads no Parquet."""
        if "input_ids" not in rows.column_names:
            return
        counts = {"data": self._data, "rows_by_length": dict(sorted(Counter(row_lengths(rows)).items()))}
        write_atomically(self._path.with_suffix(".lengths.json"), json.dumps(counts), durable=False)
