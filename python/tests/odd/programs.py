"""Draws odd programs by a seed: each puts together oddities of signals, tracing, the collector, threads, forks, descriptors, users,
limits, builtins, modules, streams, source lines and the heap, and takes optimizer steps that keep memory."""

from __future__ import annotations

import random
import textwrap
from typing import Any, Callable, Dict, List, NamedTuple, Tuple

from oddities import ENDS, ODDITIES, Oddity

N_PROGRAMS = 180

SEED = 48

QUOTAS = (("long lines", 24), ("hostile heap", 32), ("forks with threads", 16))
"""Kinds of which so many programs are drawn first; the others follow in turn."""

EXTRAS_MAX = 2
"""Oddities that a program has next to its main one, at most."""


class Program(NamedTuple):
    """A program, and how it is started."""

    name: str
    kinds: Tuple[str, ...]
    files: Dict[str, str]
    arguments: List[str]
    """Those of Python."""
    variables: Dict[str, str]
    stdin: str
    redirections: str
    """Of the shell that starts it."""
    needs_root: bool
    forks: bool


def programs(seed: int = SEED, n: int = N_PROGRAMS) -> List[Program]:
    """Returns the programs of a seed."""
    of = random.Random(seed)
    kinds: Dict[str, List[Oddity]] = {}
    for oddity in ODDITIES:
        kinds.setdefault(oddity.kind, []).append(oddity)
    mains: List[Oddity] = []
    for kind, n_wanted in QUOTAS:
        mains += [kinds[kind][idx % len(kinds[kind])] for idx in range(n_wanted)]
    # Those that are not mixed with others first: the rest comes as extras, too.
    others = sorted((oddity for oddity in ODDITIES if oddity.kind not in dict(QUOTAS)), key=lambda oddity: oddity.mixes)
    mains += [others[idx % len(others)] for idx in range(n - len(mains))]
    return [_program(idx, main, random.Random(f"{seed}-{idx}")) for idx, main in enumerate(mains)]


def _program(idx: int, main: Oddity, of: random.Random) -> Program:
    parts = [main]
    candidates = [each for each in ODDITIES if each.mixes and each.kind != main.kind]
    for extra in of.sample(candidates, of.randint(0, EXTRAS_MAX) if main.mixes else 0):
        if all(extra.kind != part.kind for part in parts):
            parts.append(extra)
    if main.mixes and not main.has_end and of.random() < 0.5:
        parts.append(of.choice(ENDS))
    of.shuffle(parts)
    made = [part.make(of) for part in parts]

    def section(name: str) -> str:
        return "".join(each.get(name, "").rstrip("\n") + "\n" for each in made if each.get(name))

    top = ("import oddly", section("first"), "import torch")
    body = (
        section("then"),
        section("kept") or "kept = []",
        section("steps") or "oddly.steps(kept)\n",
        section("between"),
        "oddly.steps(kept)",
        section("last"),
        "oddly.state()",
        section("end"),
    )
    text = "\n".join((*top, *body))
    files = {name: content for each in made for name, content in each.get("files", {}).items()}
    variables = {name: value for each in made for name, value in each.get("variables", {}).items()}
    flags = [flag for each in made for flag in each.get("flags", [])]
    start = next((each["start"] for each in made if "start" in each), "script")
    arguments = list(flags)
    if start == "script":
        files["program.py"] = text
        arguments.append("program.py")
    elif start == "guarded":
        files["program.py"] = "\n".join((*top, "if __name__ == '__main__':", textwrap.indent("\n".join(body), "    ")))
        arguments.append("program.py")
    elif start == "-c":
        arguments += ["-c", text]
    elif start == "-m":
        files.update({"odd_package/__init__.py": "", "odd_package/__main__.py": text})
        arguments += ["-m", "odd_package"]
    elif start == "directory":
        files["odd_directory/__main__.py"] = text
        arguments.append("odd_directory")
    elif start == "zip":
        files["odd.pyz/__main__.py"] = text
        arguments.append("odd.pyz")
    elif start == "-":
        arguments.append("-")
    stdin = text if start == "-" else "".join(each.get("stdin", "") for each in made)
    redirections = " ".join(each["redirections"] for each in made if "redirections" in each)
    name = f"{idx:03}-" + "+".join(part.name for part in parts)
    kinds = tuple(part.kind for part in parts)
    needs_root = any(each.get("needs_root") for each in made)
    return Program(name, kinds, files, arguments, variables, stdin, redirections, needs_root, "fork" in text)
