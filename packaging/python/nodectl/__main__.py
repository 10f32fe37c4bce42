"""`python -m nodectl …` is the program `nodectl …`: the one of this package's version."""

import os
import sys

from ._errors import NodeError
from ._node import binary

if __name__ == "__main__":
    try:
        program = binary()
    except NodeError as error:
        sys.exit(str(error))
    os.execv(program, [program, *sys.argv[1:]])
