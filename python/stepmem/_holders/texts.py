"""Texts of the program: names and paths. A subclass of `str` may run the program's code wherever it is used, so there is none."""

from __future__ import annotations

from typing import Any, Optional

NAME_CHARACTERS_MAX = 120
"""A longer name is cut."""

PATH_CHARACTERS_MAX = 4096
"""A longer path is not used: no file has one."""


def plain(text: Any, otherwise: str = "?") -> str:
    """Returns a name, cut to NAME_CHARACTERS_MAX; `otherwise` if it is no text."""
    return text[:NAME_CHARACTERS_MAX] if type(text) is str else otherwise


def path(text: Any) -> Optional[str]:
    """Returns a path; None if it is no text or too long."""
    return text if type(text) is str and 0 < len(text) <= PATH_CHARACTERS_MAX else None
