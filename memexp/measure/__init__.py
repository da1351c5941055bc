"""Inside the worker: bytes, seconds and tokens of a training as it runs. Judges nothing, and writes no file but traces.

`memory`, `speed` and `tokens` meter; `counters`, `live_bytes`, `reserved` and `simulated` are where bytes come from.
"""
