"""Hydra's own options of the command line, each in both its spellings. Nothing of Hydra's is imported here."""

MULTIRUN = ("-m", "--multirun")
CONFIG_NAME = ("-cn", "--config-name")
CONFIG_PATH = ("-cp", "--config-path")
CONFIG_DIR = ("-cd", "--config-dir")
CFG = ("-c", "--cfg")
INFO = ("-i", "--info")

# Which file a config is composed from.
WHICH_CONFIG = (*CONFIG_NAME, *CONFIG_PATH, *CONFIG_DIR)
# With these Hydra shows something, and runs nothing.
SHOWING = ("-h", "--help", "--hydra-help", *CFG, *INFO)
# A value stands behind them, or after an equal sign.
VALUED = (*WHICH_CONFIG, *CFG, *INFO, "-p", "--package")
PLAIN = (*MULTIRUN, "-h", "--help", "--hydra-help", "-r", "--run", "--resolve", "-sc", "--shell-completion")
VALUES = {
    **dict.fromkeys(CFG, ("job", "hydra", "all")),
    **dict.fromkeys(INFO, ("all", "config", "defaults", "defaults-tree", "plugins", "searchpath")),
}
