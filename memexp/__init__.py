"""memexp: what does each memory technique save and cost on your job?"""

__version__ = "0.1.0"
