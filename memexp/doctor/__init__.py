"""What this machine can run, and what each missing thing would need: `look` reads it, `memexp doctor` prints it."""
