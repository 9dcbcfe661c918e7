"""README.md and docs/: every sample is what its command prints, and every link, target of make, command and flag exists.

A sample is a block of text with commands after `$ `, each above what it prints. A line `…` stands for lines that are left out. Numbers, sizes,
times, shares and curves may differ; words and lines of code may not.
"""

from __future__ import annotations

import functools
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
from typing import Dict, Iterator, List, NamedTuple, Optional, Set, Tuple

import pytest
from conftest import BINARY, DEADLINE, ROOT, await_true

README = ROOT / "README.md"
DOCS = [README, *sorted(ROOT.glob("docs/*.md")), *sorted(ROOT.glob("docs/detector/*.md")), *sorted(ROOT.glob("docs/runbooks/*.md")), ROOT / "python/README.md"]
CURRENT = [*DOCS, *sorted(ROOT.glob("docs/adr/*.md")), *(ROOT / name for name in ("ARCHITECTURE.md", "CONTRIBUTING.md", "SECURITY.md"))]
"""What tells of today; changes tell of their day."""
PAGES = [*CURRENT, ROOT / "python/ARCHITECTURE.md", ROOT / "CHANGELOG.md"]
GAP = "…"

MASKS = (
    (r"[▁▂▃▄▅▆▇█]+", "CURVE"),
    (r"\d{4}-\d\d-\d\dT\d\d-\d\d-\d\d", "DATE"),
    (r"\b(?:all|\d+%) of it\b", "SHARE of it"),
    (r"(?<!\w)-?\d[\d,]*(?:\.\d+)? [KMGT]?i?B\b", "SIZE"),
    (r"(?:about )?\b\d+(?:\.\d+)? (?:ms|s|min|h|days?)(?: \d+ (?:s|min|h))?\b|less than a second", "TIME"),
    (r"(?<!\w)[-+]?\d[\d,.]*(?<=\d)", "NUMBER"),
)
"""What differs from one run to the next, and what stands for it."""

LINE = re.compile(r"[\w/]+\.py:\d+")


class Sample(NamedTuple):
    command: str
    shown: str


def blocks(page: str, language: str) -> "List[str]":
    return re.findall(rf"(?ms)^ *```{language}\n(.*?)^ *```$", page)


def samples(page: str) -> "List[Sample]":
    found = []
    for block in blocks(page, "text"):
        for part in re.split(r"(?m)^\$ ", block)[1:]:
            command, _, shown = part.partition("\n")
            found.append(Sample(command, shown))
    return found


def masked(text: str) -> str:
    """An output in one line, without what differs from one run to the next. Lines of code stay."""
    lines = LINE.findall(text)
    text = LINE.sub("\0", text)
    for pattern, name in MASKS:
        text = re.sub(pattern, name, text)
    for line in lines:
        text = text.replace("\0", line, 1)
    return " ".join(text.split())


def pieces(shown: str) -> "List[str]":
    found = [masked(piece) for piece in re.split(rf"(?m)^{GAP}$", shown)]
    return [piece for piece in found if piece]


def missing(shown: str, output: str) -> "Optional[str]":
    """Returns the first piece between gaps that the output does not have, in order."""
    rest = masked(output)
    if GAP not in shown.splitlines() and masked(shown) != rest:
        return masked(shown)
    for piece in pieces(shown):
        _, found, rest = rest.partition(piece)
        if not found:
            return piece
    return None


def missing_lines(shown: str, output: str) -> "List[str]":
    """Returns the lines that the output does not have, in whatever order: that of a busy machine may be another."""
    there = {masked(line) for line in output.splitlines()}
    return [line for line in shown.splitlines() if line != GAP and masked(line) not in there]


@pytest.mark.parametrize(
    ("shown", "output", "lacking"),
    [
        ("grew 1.5 MiB in 3 s (95%)\n", "grew 12 GiB in about 1 min 3 s (9%)\n", None),
        ("at a.py:12\n", "at a.py:13\n", "at a.py:12"),
        ("one\n…\nthree\n", "one\ntwo\nthree\n", None),
        ("one\n…\nthree\n", "three\none\n", "three"),
        ("one\n", "one\ntwo\n", "one"),
        ("   0  ▁▂▃  -3 B\n", "0 ▁▁▁▁  17.5 KiB\n", None),
    ],
)
def test_what_an_output_lacks_is_noticed(shown, output, lacking):
    assert missing(shown, output) == lacking


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


class Newcomer:
    """Someone with a clone in which the program was built, who types the commands of the README."""

    def __init__(self, folder: pathlib.Path, home: pathlib.Path) -> None:
        self.folder = folder
        self.port, self.push_port = free_port(), free_port()
        programs = folder / "target/release"
        programs.mkdir(parents=True)
        (programs / "stepmem").symlink_to(BINARY)
        (programs / "python3").symlink_to(sys.executable)
        # `cargo run --release -- ARGUMENTS` runs what was built.
        (programs / "cargo").write_text(f'#!/bin/sh\n[ "$1 $2 $3" = "run --release --" ] && shift 3 && exec {BINARY} "$@"\n')
        (programs / "cargo").chmod(0o755)
        (folder / "examples").symlink_to(ROOT / "examples")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("STEPMEM_", "XDG_", "PYTHONPATH"))}
        self._environment = {**kept, "HOME": str(home), "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}"}

    def environment(self, web: int, push: int) -> "Dict[str, str]":
        addresses = {"STEPMEM_WEB_LISTEN_ADDRESS": f"127.0.0.1:{web}", "STEPMEM_PUSH_LISTEN_ADDRESS": f"127.0.0.1:{push}"}
        return {**self._environment, **addresses}

    def type(self, command: str, web: int = 0, cwd: "Optional[pathlib.Path]" = None) -> str:
        """Returns what a command prints on both streams. It must succeed."""
        process = subprocess.run(
            ["bash", "-c", command], cwd=cwd or self.folder, env=self.environment(web, 0), stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=DEADLINE,
        )  # fmt: skip
        assert process.returncode == 0, f"{command}: {process.returncode}\n{process.stdout}"
        return process.stdout

    def start(self, command: str) -> "Tuple[subprocess.Popen[str], pathlib.Path]":
        """Starts a command that goes on until Ctrl-C, on the ports of this newcomer. Returns it and the file of its output."""
        output = self.folder / "output"
        with output.open("w") as file:
            environment = self.environment(self.port, self.push_port)
            process = subprocess.Popen(
                ["bash", "-c", f"exec {command}"], cwd=self.folder, env=environment, stdin=subprocess.DEVNULL, stdout=file,
                stderr=subprocess.STDOUT, text=True, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
            )  # fmt: skip
        return process, output


@pytest.fixture
def newcomer(tmp_path: pathlib.Path, home: pathlib.Path) -> Newcomer:
    return Newcomer(tmp_path, home)


def of(word: str) -> "Iterator[Sample]":
    """The samples of commands with this word, in their order on the page."""
    return (sample for sample in samples(README.read_text(encoding="utf-8")) if word in sample.command.split())


def test_samples_of_the_demo_are_what_it_prints(newcomer):
    [demo], [status] = of("demo"), of("status")
    process, output = newcomer.start(demo.command)
    try:
        await_true("the timeline", lambda: not missing_lines(demo.shown, output.read_text()) or process.poll() is not None)
        assert missing_lines(demo.shown, output.read_text()) == []
        printed = newcomer.type(f"{status.command} --url http://127.0.0.1:{newcomer.port}")
        assert missing(status.shown, printed) is None, printed
        # The first sample of the page is what the status says of the leaking rank.
        first = blocks(README.read_text(encoding="utf-8"), "text")[0]
        assert masked(first) in masked(printed), printed
    finally:
        process.send_signal(signal.SIGINT)
        assert process.wait(DEADLINE) == 0


def test_samples_of_run_and_compare_are_what_they_print(newcomer):
    typed = 0
    for sample in samples(README.read_text(encoding="utf-8")):
        if re.search(r"stepmem (run|compare|explain|summary)\b", sample.command):
            printed = newcomer.type(sample.command)
            assert missing(sample.shown, printed) is None, printed
            typed += 1
    assert typed >= 3
    assert newcomer.type("cat logs/latest/final_summary.txt").startswith("BALANCED\n")


def test_every_sample_is_of_a_command_that_is_typed_here_or_beside_snapshots_md():
    typed = r"(cargo run --release -- demo|(\w+=\w+ )?stepmem (status|run|compare|explain|summary)\b.*|stepmem snapshot .*)"
    assert [each.command for each in samples(README.read_text(encoding="utf-8")) if not re.fullmatch(typed, each.command)] == []


def test_pushes_of_the_readme_arrive_and_leave_no_port_taken(newcomer):
    [block] = [block for block in blocks(README.read_text(encoding="utf-8"), "sh") if "curl" in block]
    typed = block.replace("localhost:9477", f"localhost:{newcomer.port}").replace("localhost:9478", f"localhost:{newcomer.push_port}")
    # A person types more slowly than the exporter starts, and sees a job's end.
    typed = typed.replace("stepmem serve & sleep 1\n", "stepmem serve --no-nvml &\n", 1).replace("curl", "curl --retry-connrefused --retry 60 --retry-delay 1")
    typed = f"set -m\n{typed}\nwait\n"
    process, output = newcomer.start(f"bash -c '{typed.replace(chr(39), chr(39) + chr(92) + chr(39) + chr(39))}'")
    assert process.wait(DEADLINE) is not None
    printed = output.read_text()
    assert '"accepted":1' in printed and 'stepmem_rank_memory_allocated_bytes{run="default",rank="0",uuid=""} 1' in printed, printed
    for port in newcomer.port, newcomer.push_port:
        with socket.socket() as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(("127.0.0.1", port))


def prose(page: pathlib.Path) -> str:
    """A page without blocks and spans of code."""
    text = re.sub(r"(?ms)^ *```.*?^ *```$", "", page.read_text(encoding="utf-8"))
    return re.sub(r"`[^`\n]*`", "", text)


def anchors(page: pathlib.Path) -> "Set[str]":
    """The anchors that GitHub gives a page's headings."""
    text = re.sub(r"(?ms)^ *```.*?^ *```$", "", page.read_text(encoding="utf-8"))
    found: "Set[str]" = set()
    for heading in re.findall(r"(?m)^#+ +(.+)$", text):
        heading = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).strip().lower()
        name = re.sub(r"[^\w\- ]", "", heading).replace(" ", "-")
        n = sum(1 for each in found if re.fullmatch(rf"{re.escape(name)}(-\d+)?", each))
        found.add(f"{name}-{n}" if name in found else name)
    return found


def broken(page: pathlib.Path) -> "List[str]":
    found = []
    for link in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if re.match(r"[a-z]+:", link):
            continue
        if not target.exists() or anchor and (target.suffix != ".md" or anchor not in anchors(target)):
            found.append(f"{page.name}: {link}")
    return found


def test_every_link_and_anchor_exists():
    assert [link for page in PAGES for link in broken(page)] == []


def test_a_broken_link_is_noticed(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("# A `b` c\n\n## A b c\n\n[x](page.md) [x](#a-b-c) [x](#a-b-c-1) [x](#a-b-c-2) [x](no.md) [x](https://no.example/)\n")
    assert broken(page) == ["page.md: #a-b-c-2", "page.md: no.md"]


INDEXED_THEMSELVES = {"runbooks", "adr"}
"""Directories of documents that the index links as a whole."""


def test_the_index_has_every_document():
    index = ROOT / "docs/README.md"
    linked = {(index.parent / link).resolve() for link in re.findall(r"\]\(([^)\s#]+)", prose(index))}
    documents = {path.resolve() for path in index.parent.rglob("*") if path.suffix in (".md", ".json") and path != index}
    whole = {path for path in documents if INDEXED_THEMSELVES & {parent.name for parent in path.parents}}
    assert sorted(map(str, documents - whole - linked)) == []
    folders = {next(parent for parent in path.parents if parent.name in INDEXED_THEMSELVES) for path in whole}
    assert sorted(str(folder) for folder in folders if not any(link == folder or folder in link.parents for link in linked)) == []


WORDS_MAX = {"README.md": 1200, "docs/*.md": 2500, "docs/adr": 8000, "docs/detector": 4000}
"""Words that a reader may be asked to read: of a page, or of all pages of a directory. Tables of a page of `docs/` and what is generated are left out."""


def words(text: str) -> int:
    return len(re.findall(r"\S*\w\S*", text))


def test_documents_are_short_enough_to_be_read():
    found = {"README.md": words(README.read_text(encoding="utf-8"))}
    for page in ROOT.glob("docs/*.md"):
        found[f"docs/{page.name}"] = words(re.sub(r"(?m)^\|.*$", "", page.read_text(encoding="utf-8")))
    for directory in "docs/adr", "docs/detector":
        texts = [page.read_text(encoding="utf-8") for page in ROOT.glob(f"{directory}/*.md")]
        found[directory] = sum(words(text) for text in texts if "do not edit" not in text)
    long = {name: n for name, n in found.items() if n > WORDS_MAX.get(name, WORDS_MAX["docs/*.md"])}
    assert long == {} and len(found) > 20


def spoken(page: pathlib.Path) -> "List[str]":
    """Command lines of a page: lines of blocks for a shell, what is typed in samples, and spans of code."""
    text = page.read_text(encoding="utf-8")
    lines = [line for block in blocks(text, "(?:sh|bash|shell)") for line in block.replace("\\\n", " ").splitlines()]
    lines += [line[4:] for line in text.splitlines() if line.startswith("    ")]
    lines += [sample.command for sample in samples(text)]
    spans = re.findall(r"`([^`\n]+)`", re.sub(r"(?ms)^ *```.*?^ *```$", "", text))
    return [line.strip().replace(r"\|", "|") for line in [*lines, *spans]]


OF_THE_CLUSTER = r"kubectl (un)?cordon |kubectl drain |kubectl get nodes|kubectl config "
"""Lines of kubectl about what is in no namespace."""


def without_namespace(text: str) -> "List[str]":
    """Returns the lines of a text that type kubectl and name no namespace."""
    lines = [line for line in text.replace("\\\n", " ").splitlines() if re.search(r"(?<![\w/.])kubectl (-|[a-z]+ [A-Za-z-])", line)]
    return [line for line in lines if not re.search(rf"kubectl .*(-n|--namespace|-A)\b|{OF_THE_CLUSTER}", line)]


def test_every_line_of_kubectl_names_a_namespace():
    pages = [*CURRENT, *ROOT.glob("docs/runbooks/*.md"), ROOT / "helm/stepmem/templates/NOTES.txt", *ROOT.glob("examples/kubernetes/**/*.*")]
    texts = [page.read_text(encoding="utf-8") for page in pages if page.is_file()]
    assert sum("kubectl -n " in text for text in texts) > 10
    assert [line for text in texts for line in without_namespace(text)] == []


def test_a_line_of_kubectl_without_a_namespace_is_noticed():
    lines = ["see `kubectl describe pod P`", "kubectl logs P \\\n  -c stepmem", "kubectl -n N logs P", "kubectl cordon NODE", "over kubectl, that is"]
    assert len(without_namespace("\n".join(lines))) == 2


def test_every_target_of_make_exists():
    targets = set(re.findall(r"(?m)^([a-z-]+):", (ROOT / "Makefile").read_text()))
    named = {(page.name, line.split()[1]) for page in CURRENT for line in spoken(page) if re.match(r"make [a-z][a-z-]*\b(?! the)", line)}
    assert {target for _, target in named} >= {"test", "wheel", "look"}
    assert sorted(each for each in named if each[1] not in targets) == []


@functools.lru_cache(maxsize=None)
def flags(command: str) -> "Set[str]":
    """The flags that a command takes, by its help; of one with commands of its own, theirs too."""
    ended = subprocess.run([BINARY, *command.split(), "--help"], capture_output=True, text=True)
    found = set(re.findall(r"--[a-z][a-z.-]*[a-z]", ended.stdout)) if ended.returncode == 0 else set()
    for inner in re.findall(r"(?m)^  ([a-z-]+)  ", ended.stdout.partition("Commands:\n")[2].partition("\n\n")[0]):
        found |= flags(f"{command} {inner}") if inner != "help" else set()
    return found


OF_A_FEATURE = {"variants"}
"""Commands that only a build with a feature has."""


def commands() -> "Set[str]":
    told = subprocess.run([BINARY, "--help"], capture_output=True, text=True, check=True).stdout
    return set(re.findall(r"(?m)^  ([a-z-]+)  ", told.partition("Commands:\n")[2].partition("\n\n")[0]))


def unknown(line: str) -> "List[str]":
    """Returns the command or the flags of a command line that the program does not take."""
    typed = re.search(r"(?<![\w/-])stepmem ([a-z]+)((?: .*)?)$", line)
    if typed is None:
        return []
    name, rest = typed[1], re.split(r" -- |\||;|&&|  #|\)", typed[2])[0]
    if name in OF_A_FEATURE:
        return []
    if name not in commands():
        return [name]
    return [flag for flag in re.findall(r"(?<!\S)--[a-z][a-z.-]*[a-z]", rest) if flag not in flags(name)]


def test_every_command_and_flag_exists():
    lines = [(page.name, line) for page in DOCS for line in spoken(page)]
    assert sum(" --" in line and "stepmem " in line for _, line in lines) > 20
    assert [(page, line, each) for page, line in lines for each in unknown(line)] == []


def test_every_flag_that_the_readme_names_alone_exists():
    taken = {flag for command in commands() - {"help"} for flag in flags(command)}
    named = [line.split()[0] for line in spoken(README) if line.startswith("--") and not line.startswith("--set")]
    assert len(named) >= 5 and [flag for flag in named if flag not in taken] == []


def test_an_unknown_flag_is_noticed():
    assert unknown("stepmem serve --no-such-flag") == ["--no-such-flag"]
    assert unknown("stepmem run --snapshots -- python train.py --lr 1") == []
    assert unknown("stepmem comparee a b") == ["comparee"]
