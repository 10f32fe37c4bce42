"""`python -m nodectl …` is the program `nodectl …`: the one of this package's version."""

import os
import sys

from ._errors import NodeError
from ._node import binary

if __name__ == "__main__":
    try:
        _program = binary()
    except NodeError as _error:
        sys.exit(str(_error))
    os.execv(_program, [_program, *sys.argv[1:]])
