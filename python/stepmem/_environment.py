"""The environment variables, read without the code of Python that stands between them and the program."""

from __future__ import annotations

import os
import sys
from typing import Any, Dict


def environment() -> Dict[str, str]:
    """Returns the variables as the program has set them."""
    names: Any = getattr(os.environ, "_data", None)
    if type(names) is not dict:
        return dict(os.environ)
    encoding, errors = sys.getfilesystemencoding(), sys.getfilesystemencodeerrors()
    return {name.decode(encoding, errors): value.decode(encoding, errors) for name, value in list(names.items())}
