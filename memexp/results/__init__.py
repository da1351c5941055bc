"""Records into answers: tables, charts, pages, recommendations. Reads JSON alone; no torch, and starts nothing.

`record` and `sweep` are what is stored, and `store` stores it; `grid` and `compare` set cells beside each other; the
rest says it in words, numbers or pictures.
"""
