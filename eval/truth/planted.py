"""Plants false statements into what was said of captured jobs, and has the judge find them: python -m truth.planted.

`planted/dev-*.json` are the surfaces of jobs as stepmem told of them; `planted/faults.json` are a hundred changes to them, each of which makes one
statement false. They were written without knowledge of the judge.
"""

import copy
import json
import pathlib
import sys
from typing import Dict, List

from . import recordings
from .figures import FALSE, MISSING
from .judge import judge
from .observed import Moment, Observed

FOLDER = pathlib.Path(__file__).parent / "planted"


def statements(name: str, document: Dict) -> set:
    """What the judge finds false or missing in the surfaces of a job."""
    recording = recordings.draw(int(name.split("-")[1]))
    if recording.words != document["words"]:
        raise SystemExit(f"{name} was captured of another job: {document['words']}; it is {recording.words} now")
    moments = tuple(Moment(**moment) for moment in document["moments"])
    observed = Observed(moments, document["summary"], document["card"])
    return {each for each in judge(name, recording.truths, recording.facts, observed) if each.outcome in (FALSE, MISSING)}


def plant(document: Dict, fault: Dict) -> Dict:
    """The surfaces with a false statement among them."""
    changed = copy.deepcopy(document)
    where = fault["where"]
    if where in ("metrics", "card"):
        holder = changed["moments"][fault["moment"]] if where == "metrics" else changed
        old, new = fault["replace"]
        if old not in holder[where]:
            raise SystemExit(f"{fault['job']}: {old!r} is not in its {where}")
        holder[where] = holder[where].replace(old, new, 1)
        return changed
    root = changed["moments"][fault["moment"]]["status"] if where == "status" else changed["summary"]
    for edit in fault.get("edits", [fault]):
        parent = root
        for key in edit["path"][:-1]:
            parent = parent[key]
        parent[edit["path"][-1]] = edit["value"]
    return changed


def unfound() -> List[str]:
    """The faults that the judge does not find."""
    documents = {path.stem: json.loads(path.read_text()) for path in FOLDER.glob("dev-*.json")}
    known = {name: statements(name, document) for name, document in documents.items()}
    missed = []
    for number, fault in enumerate(json.loads((FOLDER / "faults.json").read_text())):
        name = fault["job"]
        try:
            found = statements(name, plant(documents[name], fault)) - known[name]
        except (KeyError, TypeError, ValueError, StopIteration) as error:
            found = {f"the document cannot be read: {error!r}"}
        if not found:
            missed.append(f"{number} {name} {fault['where']}: {fault['why']}")
    return missed


def main():
    """Prints the faults that were not found."""
    missed = unfound()
    print("\n".join(missed))
    print(f"{len(missed)} planted faults were not found")
    sys.exit(1 if missed else 0)


if __name__ == "__main__":
    main()
