"""Prints the annotations of a release's chart that Artifact Hub reads, for the end of Chart.yaml: annotations.py CHANGELOG VERSION

What changed is the first sentence of each entry of that version, by its heading. REPOSITORY and DOCUMENTATION are as in inputs.sh.
"""

import json
import os
import re
import sys

KINDS = ("added", "changed", "deprecated", "removed", "fixed", "security")


def main():
    with open(sys.argv[1], encoding="utf-8") as file:
        changes = list(changes_of(file.read(), sys.argv[2]))
    links = [{"name": name, "url": os.environ[name.upper()]} for name in ("documentation", "repository")]
    is_security = any(each["kind"] == "security" for each in changes)
    annotations = {
        "changes": json.dumps(changes, ensure_ascii=False),
        "containsSecurityUpdates": json.dumps(is_security),
        "links": json.dumps(links),
        "prerelease": json.dumps("-" in sys.argv[2]),
    }
    for name, text in annotations.items():
        print(f"  artifacthub.io/{name}: {json.dumps(text, ensure_ascii=False)}")


def changes_of(changelog, version):
    """Returns what a section of the changelog lists."""
    sections = re.split(r"^## ", changelog, flags=re.MULTILINE)
    section = next((each for each in sections if each.startswith(f"[{version}]")), "")
    for part in re.split(r"^### ", section, flags=re.MULTILINE)[1:]:
        kind, _, entries = part.partition("\n")
        if kind.strip().lower() not in KINDS:
            sys.exit(f"CHANGELOG.md: {kind.strip()!r} is none of the headings {', '.join(KINDS)}")
        for entry in re.split(r"^- ", entries, flags=re.MULTILINE)[1:]:
            text = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", " ".join(entry.partition("\n\n")[0].split())).replace("`", "")
            yield {"kind": kind.strip().lower(), "description": re.split(r"(?<=[.!?]) ", text)[0]}


if __name__ == "__main__":
    main()
