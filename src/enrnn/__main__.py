"""`python -m enrnn`, which is also what torchrun starts."""

import sys

from .cli import main

if __name__ == "__main__":  # and not when a process that the demo has spawned imports it
    sys.exit(main())
