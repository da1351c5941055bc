"""One cell from its Plan to its Record, in a process of its own.

Two sides that meet in files: the parent starts, watches and ends cells (`cells`, `launch`, `warm`, `folder`, …) and
never imports torch; `worker` and what it imports build the TRL trainer, train and meter.
"""
