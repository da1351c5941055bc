"""How long a dataset's rows are in tokens, and what each `max_length` and each packing would make of them.

`count` runs in a process of its own, with TRL; `show` and `files` read what it wrote and need no torch.
"""
