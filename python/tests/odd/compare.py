"""Runs a program alone and below `stepmem run`, and returns what differs. By hand, for the programs whose names contain a word:

    python compare.py STEPMEM [WORD…]
"""

from __future__ import annotations

import difflib
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from concurrent.futures import ThreadPoolExecutor
from typing import Dict, List, NamedTuple

sys.path.append(str(pathlib.Path(__file__).parent))

from exporter import Asking  # noqa: E402
from programs import Program, programs  # noqa: E402

HERE = pathlib.Path(__file__).resolve().parent
STUB = HERE.parent / "stub"

DEADLINE = 60.0
"""Seconds after which a program counts as hanging: far beyond what a busy machine needs."""

OURS = re.compile(r"(?m)^(?:stepmem: |[A-Z]+:stepmem:stepmem: ).*\n?")
"""A line of the client, also below a handler of `logging.basicConfig`."""

FORK = re.compile(r"(?m)^.*DeprecationWarning: This process \(pid=\d+\) is multi-threaded, use of fork.*\n(?:  .*\n)?")
"""The warning that docs/run.md names, with its line of source."""


class Ended(NamedTuple):
    code: int
    out: str
    err: str
    files: str


def write(program: Program, folder: pathlib.Path) -> None:
    """Writes the files of a program, and a user's without which it cannot run as another one."""
    for name, content in program.files.items():
        path = folder / name
        if path.parent.suffix == ".pyz":
            with zipfile.ZipFile(path.parent, "w") as archive:
                archive.writestr(path.name, content)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content)


def run(program: Program, folder: pathlib.Path, command: List[str], variables: Dict[str, str]) -> Ended:
    """Runs a program in a directory of its own."""
    work, said = folder / "work", folder / "said"
    work.mkdir(parents=True)
    said.mkdir()
    write(program, work)
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("STEPMEM_", "PYTHON", "XDG_", "ODD_", "COV_", "PYTEST"))}
    environment = {**kept, "PYTHONPATH": f"{HERE / 'support'}:{STUB}", "HOME": str(folder), "PYTHONHASHSEED": "0", **variables, **program.variables}
    shell = f'exec "$@" >{said}/out 2>{said}/err {program.redirections}'
    process = subprocess.Popen(
        [*command, "sh", "-c", shell, "sh", os.environ.get("STEPMEM_ODD_PYTHON", sys.executable), *program.arguments],
        cwd=work,
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        words, _ = process.communicate(program.stdin, timeout=DEADLINE)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, 9)
            process.communicate()
    out, err = ((said / name).read_text(errors="replace").replace(str(folder), "FOLDER") for name in ("out", "err"))
    if FORK.search(err):  # to show the line of source, Python imports modules
        out = re.sub(r"(?m)^modules: .*\n", "", out)
    err = FORK.sub("", OURS.sub("", err))
    shown = [re.sub(r"0x[0-9a-f]+|pid=\d+", "ADDRESS", text) for text in (out, err)]
    code = process.returncode if process.returncode >= 0 else 128 - process.returncode
    return Ended(code, *shown, listing(work))


def listing(folder: pathlib.Path) -> str:
    """Returns the files below a directory, with their modes and contents."""
    lines = []
    for path in sorted(folder.rglob("*")):
        if "__pycache__" not in path.parts:
            content = f"{path.stat().st_size} {hash(path.read_bytes())}" if path.is_file() else ""
            lines.append(f"{path.relative_to(folder)} {oct(path.stat().st_mode)} {content}\n")
    return "".join(lines)


def differences(program: Program, folder: pathlib.Path, binary: str, asking: Asking) -> str:
    """Returns how a program below `stepmem run` differs from the same one alone; empty if not at all."""
    name = f"odd-{program.name[:3]}-{os.getpid()}"
    (folder / "over").mkdir(parents=True)
    for parent in (folder, folder / "over"):
        parent.chmod(0o755)
    over = folder / "over" / name
    for n in (1, 2):
        (folder / "over" / f"alone.{n}").touch()
    alone = run(program, folder / "alone", [], {"ODD_OVER": str(folder / "over/alone")})
    variables = {"ODD_OVER": str(over), "STEPMEM_PUSH_URL": asking.url, "STEPMEM_RUN": name}
    options = ["--no-nvml", "--web.listen-address", "127.0.0.1:0", "--no-record", "--summary.dir", str(folder / "summaries")]
    asking.folder = folder / "over"
    watched = run(program, folder / "watched", [binary, "run", *options, "--"], variables)
    if "\nmodules: " not in watched.out:
        alone = alone._replace(out=re.sub(r"(?m)^modules: .*\n", "", alone.out))
    shown = []
    for field in Ended._fields:
        one, other = str(getattr(alone, field)), str(getattr(watched, field))
        if one != other:
            lines = difflib.unified_diff(one.splitlines(), other.splitlines(), f"{field} alone", f"{field} below run", lineterm="", n=1)
            shown += [line if len(line) < 2000 else line[:2000] + "…" for line in lines]
    return "\n".join(shown)


def main() -> None:
    binary, words = os.path.abspath(sys.argv[1]), sys.argv[2:]

    def compare(program: Program) -> str:
        folder = pathlib.Path(tempfile.mkdtemp(prefix="odd-"))
        asking = Asking()
        began = time.monotonic()
        try:
            found = differences(program, folder, binary, asking)
        except subprocess.TimeoutExpired:
            found = "HANGS"
        words = f"{'DIFFERS' if found else 'same'} {program.name} {asking.n_over} {time.monotonic() - began:.1f} s"
        if not found:
            shutil.rmtree(folder)
            return words
        return f"{words} {folder}\n{found[:6000]}"

    wanted = [program for program in programs() if not words or any(word in program.name for word in words)]
    with ThreadPoolExecutor(4) as pool:
        for text in pool.map(compare, wanted):
            print(text, flush=True)


if __name__ == "__main__":
    main()
