"""A plan as the code to paste: a plain TRL script that trains what the cell trained, and needs no memexp.

`training` puts it together, `rows` and `model` make their parts, and `python` writes literals and calls. A plan is
data: nothing of it gets into the code but as a literal, or as a name that was checked.
"""
