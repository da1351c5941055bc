"""A sweep in W&B: runs and a report of what is already on the disk. No cell waits for it, and none fails by it."""
