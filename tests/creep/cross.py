#!/usr/bin/env python3
"""Cross-validation over families: each main constant chosen without one family, and what that family then gets.

    PYTHONPATH=../shared/data/creep tests/creep/cross.py FOLDER SET SEEDS [FAMILY,...] [--jobs N] [--out ROWS] [--write DOC] -- stepmem
    tests/creep/cross.py table ROWS [--write DOC]       the table again

`stepmem` is a build with the feature `without`. For each family that is left out, the constant is chosen from its grid on all other
families: fewest healthy jobs paged, then the least mean delay of fatal leaks (1 for one that is not found), then the nearest to what is
shipped. Families that cannot be judged either way are left out of all of it.
"""
import sys

import bars
import rules

# A constant of src/analysis/creep/without.rs: what is shipped, and what else is tried.
CONSTANTS = {
    "creeping-share": dict(shipped=0.07, others=(0.05, 0.06, 0.08, 0.10)),
    "line-of-share": dict(shipped=0.7, others=(0.5, 0.6, 0.8, 1.0)),
    "hardly-slows": dict(shipped=0.93, others=(0.85, 0.90, 0.96)),
    "steady-gain": dict(shipped=0.8, others=(0.7, 0.9)),
    "marked-share": dict(shipped=0.05, others=(0.03, 0.07, 0.10)),
    "first-share": dict(shipped=0.13, others=(0.09, 0.11, 0.16, 0.20)),
    "many-climbs": dict(shipped=32, others=(16, 24, 48), only="process"),
}
MARKS = "<!-- cross-validation -->\n", "<!-- end of cross-validation -->"


def variant(constant, value):
    return rules.ALL_ON if value == CONSTANTS[constant]["shipped"] else f"{constant}={value:g}"


def grid(constant):
    of = CONSTANTS[constant]
    return sorted((of["shipped"], *of["others"]))


def paged(rows):
    return sum(row["pages"] > 0 for row in rows if row["cls"] == "healthy")


def delays(rows):
    """The delay of each fatal leak, 1 for one that is not found."""
    return [row["delay"] if row["hit"] else 1.0 for row in rows if row["cls"] == "leak" and row["oom"]]


def mean(values):
    return sum(values) / len(values) if values else 0.0


def chosen(constant, by_value):
    """The value that the rows of some families choose."""
    shipped = CONSTANTS[constant]["shipped"]
    return min(by_value, key=lambda value: (paged(by_value[value]), round(mean(delays(by_value[value])), 6), abs(value - shipped)))


def line(constant, rows):
    of = CONSTANTS[constant]
    part = [{**row["process"], "variant": row["variant"]} if of.get("only") == "process" else row for row in rows]
    part = [row for row in part if row["cls"] != "ambiguous"]
    by_value = {value: [row for row in part if row["variant"] == variant(constant, value)] for value in grid(constant)}
    picks, left, usual = {}, [], []
    for family in dict.fromkeys(row["family"] for row in part):
        others = {value: [row for row in of_value if row["family"] != family] for value, of_value in by_value.items()}
        pick = chosen(constant, others)
        picks.setdefault(pick, []).append(family)
        left += [row for row in by_value[pick] if row["family"] == family]
        usual += [row for row in by_value[of["shipped"]] if row["family"] == family]
    most = max(picks, key=lambda value: len(picks[value]))
    choices = ", ".join(
        f"{value:g}" + (f" for {len(families)}" if value == most else " without " + ", ".join(f"`{family}`" for family in families))
        for value, families in sorted(picks.items(), key=lambda item: -len(item[1]))
    )
    n_healthy = sum(row["cls"] == "healthy" for row in left)
    n_hit, n_leaks = sum(row["hit"] for row in left if row["cls"] == "leak" and row["oom"]), len(delays(left))
    subject = "processes" if of.get("only") else "ranks"
    tried = ", ".join(f"**{value:g}**" if value == of["shipped"] else f"{value:g}" for value in grid(constant))
    return (
        f"| `{constant}` ({subject}) | {tried} | {choices} | {paged(left)} ({paged(usual)}) of {n_healthy} "
        f"| {n_hit} ({sum(row['hit'] for row in usual if row['cls'] == 'leak' and row['oom'])}) of {n_leaks} "
        f"| {mean(delays(left)):.3f} ({mean(delays(usual)):.3f}) |"
    )


def table(rows):
    lines = [
        "| constant | tried, the shipped one bold | chosen on the other families | left-out healthy jobs paged (as shipped) | left-out leaks found | their mean delay, 1 if not found |",
        "|---|---|---|---|---|---|",
    ]
    have = {row["variant"] for row in rows}
    return lines + [line(constant, rows) for constant in CONSTANTS if all(variant(constant, value) in have for value in grid(constant))]


def main():
    arguments = sys.argv[1:]
    if arguments[:1] == ["names"]:
        return print("\n".join(CONSTANTS))
    if arguments[:1] == ["table"]:
        rows, page = bars.read(arguments[1]), arguments[3] if arguments[2:3] == ["--write"] else ""
    else:
        variants = {variant(name, value): of.get("only") for name, of in CONSTANTS.items() for value in of["others"]}
        rows, page = rules.scored(arguments, variants)
    lines = rules.caption(rows) + table(rows)
    print("\n".join(lines))
    if page:
        rules.write(page, MARKS, lines)


if __name__ == "__main__":
    main()
