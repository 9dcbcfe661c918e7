"""The table of what was tried, as Markdown: it can be pasted into docs/kubernetes.md."""

import dataclasses


@dataclasses.dataclass
class Row:
    name: str
    title: str
    versions: str
    outcome: str
    note: str


def print_table(rows):
    print("\n| tried | with | result |\n|---|---|---|")
    for row in rows:
        result = row.outcome if row.outcome == "failed" else f"{row.outcome}: {row.note}" if row.note else row.outcome
        print(f"| {row.title} | {row.versions} | {result} |")
    for row in rows:
        if row.outcome == "skipped":
            print(f"SKIPPED {row.title}: {row.note}")
