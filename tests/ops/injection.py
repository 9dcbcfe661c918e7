"""Pods as people write them, and how the chart's injection treats each: shared by chart.py and tests/cluster.

`check(pod, after, sidecar)` judges a pod after admission, whichever engine changed it.
"""

import copy
import json
import re

import celpy.celtypes
import jmespath
import jsonpatch
import yaml

DIRECTORY = "/run/stepmem"


class Problem(Exception):
    """A check failed; the message is for the reader of the test's output."""


def expect(holds, message):
    if not holds:
        raise Problem(message)


def trainer(**fields):
    return {"name": "trainer", "image": "t", **fields}


INJECTED = {
    "plain": {"containers": [trainer()]},
    "with init containers": {"initContainers": [{"name": "fetch", "image": "f"}], "containers": [trainer(volumeMounts=[{"name": "data", "mountPath": "/data"}]), {"name": "log", "image": "l"}],
                             "volumes": [{"name": "data", "emptyDir": {}}]},
    "with an empty list of init containers": {"initContainers": [], "containers": [trainer()]},
    "with a port": {"containers": [trainer(ports=[{"containerPort": 29500}, {"containerPort": 8080, "name": "http"}])]},
    "with hostNetwork false": {"hostNetwork": False, "containers": [trainer()]},
    "with mounts beside the socket's": {"containers": [trainer(volumeMounts=[{"name": "run", "mountPath": "/run"}, {"name": "run", "mountPath": "/run/stepmem-data"}, {"name": "run", "mountPath": "/data", "readOnly": True}])],
                                        "volumes": [{"name": "run", "emptyDir": {}}]},
}

UID, SET_UID = "3f2504e0-4f89-41d3-9a0c-0305e82c3301", "7d44c1f2-4f89-41d3-9a0c-0305e82c3302"
# Kubernetes takes any text for the uid of an owner.
NO_UID = "u'}\n- op: remove\n  path: /spec/containers/0/env\n- {op: add, path: /spec/hostNetwork, value: true}\n# \"\\{"
JOB = {"batch.kubernetes.io/job-name": "llm", "batch.kubernetes.io/controller-uid": UID}


BY_JOB = [{"name": "STEPMEM_KUBERNETES_JOB", "value": "llm"}, {"name": "STEPMEM_KUBERNETES_UID", "value": UID}]
PLAIN = {"name": "A", "value": "a"}
# A pod's metadata, its training container's variables, and the ones that each container gets if it does not set them itself.
NAMED = {
    "of a Job": ({"labels": JOB}, [], BY_JOB),
    "of a Job, with variables": ({"labels": JOB}, [PLAIN, {"name": "B", "value": "$(A)b"}], BY_JOB),
    "of a Job, with a name of its own": ({"labels": JOB}, [PLAIN, {"name": "STEPMEM_KUBERNETES_JOB", "value": "mine"}], BY_JOB),
    "of a Job, with a UID of its own": ({"labels": JOB}, [{"name": "STEPMEM_KUBERNETES_UID", "value": "u"}], BY_JOB),
    "of a JobSet": ({"labels": {**JOB, "jobset.sigs.k8s.io/jobset-name": "set", "jobset.sigs.k8s.io/jobset-uid": SET_UID}}, [],
                    [BY_JOB[0], {"name": "STEPMEM_KUBERNETES_JOBSET", "value": "set"}, {"name": "STEPMEM_KUBERNETES_UID", "value": SET_UID}]),
    "of a PyTorchJob": ({"labels": {"training.kubeflow.org/job-name": "llm"}, "ownerReferences": [{"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "name": "llm", "uid": UID, "controller": True}]}, [],
                        [{"name": "STEPMEM_KUBERNETES_PYTORCHJOB", "value": "llm"}, {"name": "STEPMEM_KUBERNETES_UID", "value": UID}]),
    "of a PyTorchJob whose uid is YAML": ({"labels": {"training.kubeflow.org/job-name": "llm"}, "ownerReferences": [{"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "name": "llm", "uid": NO_UID}]}, [],
                                          [{"name": "STEPMEM_KUBERNETES_PYTORCHJOB", "value": "llm"}, {"name": "STEPMEM_KUBERNETES_UID", "value": NO_UID}]),
    "of a RayJob": ({"labels": {"ray.io/cluster": "llm-7x9k2"}, "ownerReferences": [{"apiVersion": "ray.io/v1", "kind": "RayCluster", "name": "llm-7x9k2", "uid": UID, "controller": True}]}, [],
                    [{"name": "STEPMEM_KUBERNETES_RAYJOB", "value": "llm-7x9k2"}]),
}
INJECTED |= {title: {"containers": [trainer(env=copy.deepcopy(own)), {"name": "log", "image": "l"}]} for title, (_, own, _) in NAMED.items()}

LEFT_ALONE = {
    "on the network of the node": {"hostNetwork": True, "containers": [trainer()]},
    "with its own mount at the socket's directory": {"containers": [trainer(), {"name": "log", "image": "l", "volumeMounts": [{"name": "own", "mountPath": "/run/stepmem"}]}], "volumes": [{"name": "own", "emptyDir": {}}]},
    "with its own mount there, ending in a slash": {"containers": [trainer(volumeMounts=[{"name": "own", "mountPath": "/run/stepmem/"}])], "volumes": [{"name": "own", "emptyDir": {}}]},
    "with a read-only mount above the socket's directory": {"containers": [trainer(volumeMounts=[{"name": "own", "mountPath": "/run", "readOnly": True}])], "volumes": [{"name": "own", "emptyDir": {}}]},
    "with a volume named stepmem": {"containers": [trainer()], "volumes": [{"name": "stepmem", "hostPath": {"path": "/srv"}}]},
    "with a volume named stepmem-state": {"containers": [trainer()], "volumes": [{"name": "stepmem-state", "hostPath": {"path": "/srv"}}]},
    "with a container named stepmem": {"containers": [trainer(), {"name": "stepmem", "image": "s"}]},
    "with an init container named stepmem": {"initContainers": [{"name": "stepmem", "image": "s"}], "containers": [trainer()]},
    "with the exporter's port": {"containers": [trainer(ports=[{"containerPort": 9477}])]},
    "with a port named stepmem": {"containers": [trainer(ports=[{"containerPort": 8080, "name": "stepmem"}])]},
    "with the exporter's port in an init container": {"initContainers": [{"name": "own", "image": "o", "restartPolicy": "Always", "ports": [{"containerPort": 9477}]}], "containers": [trainer()]},
}


SNAPSHOTS = "/run/stepmem-snapshots"
VOLUME = {"name": "stepmem-snapshots", "emptyDir": {"sizeLimit": "10Gi"}}
# Pods that are left alone only where the volume of snapshots is injected.
IN_THE_WAY_OF_SNAPSHOTS = {
    "with its own mount at the snapshots' directory": {"containers": [trainer(), {"name": "log", "image": "l", "volumeMounts": [{"name": "own", "mountPath": SNAPSHOTS}]}], "volumes": [{"name": "own", "emptyDir": {}}]},
    "with its own mount there, ending in a slash": {"containers": [trainer(volumeMounts=[{"name": "own", "mountPath": f"{SNAPSHOTS}/"}])], "volumes": [{"name": "own", "emptyDir": {}}]},
    "with a volume named stepmem-snapshots": {"containers": [trainer()], "volumes": [{"name": "stepmem-snapshots", "hostPath": {"path": "/srv"}}]},
}
OWN_SNAPSHOTS = {"containers": [trainer(env=[{"name": "STEPMEM_SNAPSHOT_DIRECTORY", "value": "/scratch"}])]}


def pod_of(spec):
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "labels": {"stepmem.io/inject": "true"}}, "spec": copy.deepcopy(spec)}


def bare(container):
    """A container without the mount and the variable of snapshots."""
    mounts = [mount for mount in container["volumeMounts"] if mount["name"] != "stepmem-snapshots"]
    env = [variable for variable in container.get("env", []) if variable["name"] != "STEPMEM_SNAPSHOT_DIRECTORY"]
    return {**container, "volumeMounts": mounts, "env": env}


def without_snapshots(where, pod):
    """The pod without what snapshots add, each of which it must have: the exporter reads, every other container writes."""
    spec = pod["spec"]
    [sidecar] = [container for container in spec["initContainers"] if container["name"] == "stepmem"]
    mount = {"name": "stepmem-snapshots", "mountPath": SNAPSHOTS}
    expect(sidecar["volumeMounts"].count({**mount, "readOnly": True}) == 1, f"{where}: the sidecar mounts {sidecar['volumeMounts']}")
    for argument in ["--snapshot.on-creep", f"--snapshot.read-directory={SNAPSHOTS}"]:
        expect(argument in sidecar["args"], f"{where}: the sidecar's arguments are {sidecar['args']}")
    for container in spec["containers"]:
        expect(container["volumeMounts"].count(mount) == 1, f"{where}: mounts {container['volumeMounts']}")
        named = {"name": "STEPMEM_SNAPSHOT_DIRECTORY", "value": SNAPSHOTS}
        expect(container["env"].count(named) == 1, f"{where}: variables {container['env']}")
    expect(spec["volumes"].count(VOLUME) == 1, f"{where}: volumes {spec['volumes']}")
    inits = [bare(container) if container is sidecar else container for container in spec["initContainers"]]
    volumes = [volume for volume in spec["volumes"] if volume != VOLUME]
    return {**pod, "spec": {**spec, "initContainers": inits, "containers": [bare(container) for container in spec["containers"]], "volumes": volumes}}


def pods():
    """Every pod, by its title."""
    for title, spec in [*INJECTED.items(), *LEFT_ALONE.items()]:
        metadata = copy.deepcopy(NAMED[title][0]) if title in NAMED else {}
        labels = {"stepmem.io/inject": "true", **metadata.pop("labels", {})}
        yield title, {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "labels": labels, **metadata}, "spec": copy.deepcopy(spec)}


def check(title, after, sidecar, engine, before=None):
    """The pod of this title after admission: it has the sidecar exactly once and lost nothing, or was left alone.

    `before` is what it would be without the policy; by default the pod as it was written.
    """
    where, after, sidecar = f"{engine}: a pod {title}", without_empty(after["spec"]), without_empty(sidecar)
    before = without_empty(before["spec"] if before else {**INJECTED, **LEFT_ALONE}[title])
    if title in LEFT_ALONE:
        expect(after == before, f"{where} is not left alone: {json.dumps(after)}")
        return
    injected = [container for container in after["initContainers"] if container["name"] == "stepmem"]
    expect(injected == [sidecar], f"{where}: {injected} is not the sidecar")
    others = [container for container in after["initContainers"] if container["name"] != "stepmem"]
    expect(others == before.get("initContainers", []), f"{where}: init containers were lost: {others}")
    expect([container["name"] for container in after["containers"]] == [container["name"] for container in before["containers"]], f"{where}: containers")
    for old, container in zip(before["containers"], after["containers"]):
        mounts = container["volumeMounts"]
        ours = {"name": "stepmem", "mountPath": DIRECTORY, "readOnly": True}
        expect(mounts.count(ours) == 1 and [mount for mount in mounts if mount != ours] == old.get("volumeMounts", []), f"{where}: mounts {mounts}")
        check_variables(where, title, old.get("env", []), container.get("env", []))
    volumes = sorted(volume["name"] for volume in after["volumes"])
    expect(volumes == sorted([*(volume["name"] for volume in before.get("volumes", [])), "stepmem", "stepmem-state"]), f"{where}: volumes {volumes}")


def check_variables(where, title, own, env):
    """A container keeps its own variables, in their order, and gets those of its pod's job that it does not set."""
    names = {variable["name"] for variable in own}
    expected = [variable for variable in (NAMED[title][2] if title in NAMED else []) if variable["name"] not in names]
    added = [variable for variable in env if variable not in own]
    expect([variable for variable in env if variable in own] == own, f"{where}: its variables {own} became {env}")
    by_name = lambda variable: variable["name"]
    expect(sorted(added, key=by_name) == sorted(expected, key=by_name), f"{where}: variables {added}, not {expected}")


def without_empty(value):
    """The value without empty maps and lists, which Go's types add and leave out."""
    if isinstance(value, dict):
        inner = {name: without_empty(each) for name, each in value.items()}
        return {name: each for name, each in inner.items() if each not in ({}, [], None)}
    return [without_empty(each) for each in value] if isinstance(value, list) else value


def evaluate(expression, pod):
    environment = celpy.Environment()
    program = environment.program(environment.compile(untyped(expression)))
    return plain(program.evaluate({"object": celpy.json_to_cel(pod)}))


def plain(value):
    """A value of CEL as one of JSON."""
    if isinstance(value, dict):
        return {str(name): plain(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [plain(inner) for inner in value]
    if isinstance(value, celpy.celtypes.BoolType):
        return bool(value)
    return int(value) if isinstance(value, celpy.celtypes.IntType) else str(value)


def untyped(expression):
    """Objects as maps: cel-python lacks Kubernetes' types. The pod's schema checks that their fields exist."""
    token = re.compile(r'"(?:\\.|[^"\\])*"|\b(?:Object(?:\.\w+)*|JSONPatch)(?=\{)|\b\w+(?=:)')

    def quoted(match):
        word = match[0]
        if word.startswith('"'):
            return word
        return "" if word.startswith(("Object", "JSONPatch")) else json.dumps(word)

    return token.sub(quoted, expression)


def by_policy(pod, policy):
    """The pod after a policy of Kubernetes, or a MutatingPolicy of Kyverno."""
    if not all(evaluate(condition["expression"], pod) for condition in policy["matchConditions"]):
        return pod
    for mutation in policy["mutations"]:
        if mutation["patchType"] == "ApplyConfiguration":
            pod = merged(pod, evaluate(mutation["applyConfiguration"]["expression"], pod))
            continue
        patch = evaluate(mutation["jsonPatch"]["expression"], pod)
        # kubernetes/kubernetes#139032, kyverno/kyverno#17611: the real evaluators panic at such a value.
        expect(not any(isinstance(step["value"], list) and step["value"] for step in patch), "a value of a JSONPatch is a list of objects, which real API servers do not take")
        pod = jsonpatch.apply_patch(pod, patch)
    return pod


VARIABLE = re.compile(r"(\\?)\$\([^)]*\)")


def by_cluster_policy(pod, policy):
    """The pod after a ClusterPolicy of Kyverno, whose rules change it one after the other."""
    for rule in policy["rules"]:
        if not holds(rule["preconditions"], pod):
            continue
        if "patchStrategicMerge" in rule["mutate"]:
            pod = merged(pod, with_every_container(resolved(rule["mutate"]["patchStrategicMerge"], pod), pod))
            continue
        before = pod
        for each in rule["mutate"]["foreach"]:
            for index, element in enumerate(jmespath.search(each["list"], {"request": {"object": before}}) or []):
                if holds(each["preconditions"], before, element):
                    text = each["patchesJson6902"].replace("{{ elementIndex }}", str(index))
                    pod = jsonpatch.apply_patch(pod, yaml.safe_load(written(text, before, element)))
    return pod


def holds(preconditions, pod, element=None):
    return all(resolved(condition["key"], pod, element) == condition["value"] for condition in preconditions["all"])


EXPRESSION = re.compile(r"\{\{ (.+?) \}\}")


def resolved(value, pod, element=None):
    """A value with Kyverno's expressions evaluated. Kyverno's own syntax $( ) is: unescaped, it finds nothing and the rule is skipped."""
    if isinstance(value, dict):
        return {name: resolved(each, pod, element) for name, each in value.items()}
    if isinstance(value, list):
        return [resolved(each, pod, element) for each in value]
    if not isinstance(value, str):
        return value
    bare = [match[0] for match in VARIABLE.finditer(value) if not match[1]]
    expect(not bare, f"Kyverno resolves {bare[:1]} itself, to nothing")
    expression = EXPRESSION.fullmatch(value)
    return jmespath.search(expression[1], {"request": {"object": pod}, "element": element}) if expression else value.replace("\\$(", "$(")


def written(text, pod, element):
    """A text with the values of Kyverno's expressions in it."""
    return EXPRESSION.sub(lambda expression: jmespath.search(expression[1], {"request": {"object": pod}, "element": element}), text)


KEYS = {"containers": "name", "initContainers": "name", "volumes": "name", "volumeMounts": "mountPath", "env": "name"}


def merged(ours, theirs, field=None):
    """Merges lists that Kubernetes keys by their keys; replaces everything else."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        return {name: merged(ours[name], theirs[name], name) if name in ours and name in theirs else copy.deepcopy(ours.get(name, theirs.get(name))) for name in [*ours, *(set(theirs) - set(ours))]}
    if isinstance(ours, list) and field in KEYS:
        key = KEYS[field]
        by_key = {each[key]: each for each in theirs}
        kept = [merged(each, by_key.pop(each[key])) if each[key] in by_key else each for each in ours]
        return kept + list(by_key.values())
    return copy.deepcopy(theirs)


def with_every_container(patch, pod):
    """Kyverno's anchor `(name): "*"` stands for each container of the pod."""
    patch = copy.deepcopy(patch)
    [every] = patch["spec"]["containers"]
    del every["(name)"]
    patch["spec"]["containers"] = [{"name": container["name"], **copy.deepcopy(every)} for container in pod["spec"]["containers"]]
    return patch
