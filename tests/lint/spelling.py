#!/usr/bin/env python3
"""Fails where the name or the text of a tracked file has a British spelling: code, comments, documents, words for users.

What others read by its name keeps its spelling; it is listed with the reason.
"""

import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]

# Stems of verbs in -ize.
VERBS = (
    "apolog author categor character critic custom emphas final general initial material maxim minim normal optim organ parallel priorit "
    "quant random real recogn serial special stabil standard summar synchron token util vector visual"
)
# What is written, and what is meant.
WORDS = {
    r"(behavi|col|fav|flav|harb|hon|hum|neighb|rig|rum|vap|vig|arm|endeav|savi)our": r"\1or",
    r"(anal|catal|paral)ys(e|ed|er|ers|ing)\b": r"\1yz\2",
    r"\b(learn|burn|dream|spoil)t\b": r"\1ed",
    r"(misspel)t\b": r"\1led",
    r"\bspelt\b": r"spelled",
    r"(cancel|channel|dial|fuel|label|level|model|signal|total|travel|tunnel)l(ed|er|ers|ing)\b": r"\1\2",
    r"(abridg|acknowledg|judg)ement": r"\1ment",
    r"\b(cent|met|lit|fib|calib|theat)re(s|d)?\b": r"\1er\2",
    r"(anal|catal|dial|monol)ogue": r"\1og",
    r"(def|off|pret)ence\b": r"\1ense",
    r"\blicence": "license",
    r"\bartefact": "artifact",
    r"\bgrey": "gray",
    r"\bprogramme(s?)\b": r"program\1",
    r"\b(while|among)st\b|\bwhilst\b": "while, among",
    r"\b(fulfil|enrol)(s|ment)?\b": r"\1l\2",
    r"\b(skil|wil)ful": r"\1lful",
    r"\bageing\b": "aging",
    rf"({VERBS.replace(' ', '|')})is(e|ed|er|ers|es|ing|ation|ations)\b": r"\1iz\2",
}
# What stays, and why.
NAMES = {
    r"[\"'`]analysed[\"'`\\]|\bAnalysed\b": "an outcome in metrics, the status and recordings, and its variant",
    r"aria-labelledby": "an attribute of HTML",
    r"`eval_unlabelled`": "a family of eval/",
    r"uncategorised_bytes": "a key of tests/data/",
}
FILES = {
    "tests/data/": "recorded",
    "tests/lint/spelling.py": "the list itself",
    "eval/": "jobs are drawn by the names in these files, and kept by their hash",
}


def main():
    paths = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\0")
    files = [path for path in paths if path and not path.startswith(tuple(FILES))]
    found = [problem for path in files for problem in problems(path, text_of(ROOT / path))]
    sys.exit("\n".join(planted() + found) or 0)


def text_of(path):
    """The text of a file; nothing of a link, and of what is no text."""
    try:
        return "" if path.is_symlink() else path.read_text(encoding="utf-8")
    except (FileNotFoundError, UnicodeDecodeError):
        return ""


def problems(path, text):
    for number, line in enumerate([path, *text.splitlines()]):
        for written, meant in misspelled(line):
            yield f"{path}:{number}: {written}: {meant}" if number else f"{path}: the name has {written}: {meant}"


def misspelled(line):
    """Each British spelling of a line, with the American one. Words end where an underscore or a capital begins another."""
    line = re.sub("|".join(NAMES), "", line)
    words = re.sub(r"(?<=[a-z])(?=[A-Z])|_", " ", line)
    for british, american in WORDS.items():
        for match in re.finditer(british, words, re.IGNORECASE):
            yield match.group(), match.expand(american)


def planted():
    """What the list must find, and what it must not."""
    british = "colour_of neighbours isAnalysed analysed `learnt` misspelt cancelled acknowledgements centred dialogue ageing serialised optimisation grey"
    lost = [word for word in british.split() if not list(misspelled(word))]
    american = "four hour tour analyses \"analysed\" learns enrolled levels metric promise noise raised exercise otherwise precise wise advise"
    taken = [word for word in american.split() if list(misspelled(word))]
    return [f"planted: {word} is not found" for word in lost] + [f"planted: {word} is found" for word in taken]


if __name__ == "__main__":
    main()
