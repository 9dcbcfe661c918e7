"""Container images without a container engine: OCI archives of one layer, made from files.

`stepmem` holds the release binary and the libraries it links, as the Containerfile's does; `trainer` holds Debian's Python,
the client and the stub of PyTorch; `pause` holds a pod's namespaces.
"""

import base64
import hashlib
import io
import json
import os
import pathlib
import re
import shutil
import subprocess
import tarfile
import urllib.request

import programs
from child import Failure

ROOT = pathlib.Path(__file__).resolve().parents[2]
TRAINER_PACKAGES = """python3.11-minimal libpython3.11-minimal libpython3.11-stdlib libc6 libgcc-s1 libexpat1 zlib1g libssl3 libffi8
    libbz2-1.0 liblzma5 libuuid1 libcrypt1 media-types""".split()
NONROOT = "65532:65532"


def archive(path, name, root, user, entrypoint):
    """Writes the archive of an image; the names of its blobs are their digests."""
    layer = path.with_suffix(".layer")
    with tarfile.open(layer, "w") as tar:
        tar.add(root, arcname=".", filter=as_root)
    digest = hashlib.file_digest(layer.open("rb"), "sha256").hexdigest()
    with tarfile.open(path, "w") as tar:

        def add(data, where):
            entry = tarfile.TarInfo(where)
            entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))

        def add_blob(value, kind):
            data = json.dumps(value).encode()
            found = hashlib.sha256(data).hexdigest()
            add(data, f"blobs/sha256/{found}")
            return {"mediaType": f"application/vnd.oci.image.{kind}.v1+json", "digest": f"sha256:{found}", "size": len(data)}

        config = {"User": user, "Entrypoint": entrypoint, "Env": ["PATH=/usr/local/bin:/usr/bin:/bin", "PYTHONPATH=/opt/client", "PYTHONUNBUFFERED=1"]}
        image = add_blob({"architecture": "amd64", "os": "linux", "config": config, "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]}}, "config")
        layers = [{"mediaType": "application/vnd.oci.image.layer.v1.tar", "digest": f"sha256:{digest}", "size": layer.stat().st_size}]
        manifest = add_blob({"schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json", "config": image, "layers": layers}, "manifest")
        names = {"io.containerd.image.name": name, "org.opencontainers.image.ref.name": name.rsplit(":", 1)[1]}
        add(json.dumps({"schemaVersion": 2, "manifests": [{**manifest, "annotations": names}]}).encode(), "index.json")
        add(b'{"imageLayoutVersion": "1.0.0"}', "oci-layout")
        tar.add(layer, f"blobs/sha256/{digest}")
    layer.unlink()
    return path


def as_root(entry):
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    return entry


def make(registry, tag, stepmem, folder):
    """The archives of all images, by name, with the reference of each; `folder` is empty."""
    made = {}
    for name, fill, user, entrypoint in [
        ("pause", fill_pause, NONROOT, ["/pause"]),
        ("stepmem", lambda root: fill_stepmem(root, stepmem), NONROOT, ["/usr/local/bin/stepmem"]),
        ("trainer", fill_trainer, "0", ["/usr/bin/python3.11"]),
    ]:
        root = folder / name
        root.mkdir()
        fill(root)
        reference = f"{registry}/{name}:{tag}"
        made[name] = (reference, archive(folder / f"{name}.tar", reference, root, user, entrypoint))
        shutil.rmtree(root)
    return made


def fill_pause(root):
    shutil.copy(programs.path("pause"), root / "pause")


def fill_stepmem(root, stepmem):
    for source, target in [(stepmem, "/usr/local/bin/stepmem")] + [(library, library) for library in libraries(stepmem)]:
        path = root / target.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, path)
    # glibc loads it by name, when it resolves a host.
    (root / "etc").mkdir()
    (root / "etc/passwd").write_text("nonroot:x:65532:65532::/:/sbin/nologin\n")
    (root / "etc/nsswitch.conf").write_text("hosts: files dns\n")


def libraries(program):
    return re.findall(r"(/lib\S+) ", subprocess.check_output(["ldd", program], text=True))


def fill_trainer(root):
    shutil.copytree(python_root(), root, dirs_exist_ok=True, symlinks=True)
    for source, target in [("stepmem", "client/stepmem"), ("tests/stub/torch", "stub/torch")]:
        shutil.copytree(ROOT / "python" / source, root / "opt" / target, ignore=shutil.ignore_patterns("__pycache__"))


def python_root():
    """Debian's Python, unpacked from its packages without running anything of them."""
    root = programs.CACHE / "python"
    if not (root / "usr/bin/python3.11").exists():
        debs, fresh = programs.CACHE / "debs", programs.CACHE / "python.new"
        for folder in (debs, fresh):
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
        subprocess.run(["apt-get", "download", "-qq", "-o", "APT::Sandbox::User=root", *TRAINER_PACKAGES], cwd=debs, check=True)
        for package in debs.iterdir():
            subprocess.run(["dpkg", "-x", package, fresh], check=True)
        shutil.rmtree(fresh / "usr/share/doc", ignore_errors=True)
        fresh.rename(root)
        shutil.rmtree(debs)
    return root


def push(made):
    """Pushes every image to the registry in its name, over HTTPS, or HTTP where the host is this machine."""
    for name, (reference, path) in made.items():
        if name != "pause":
            upload(reference, path)


def upload(reference, path):
    host, _, rest = reference.partition("/")
    repository, _, tag = rest.rpartition(":")
    scheme = "http" if host.split(":")[0] in ("localhost", "127.0.0.1") else "https"
    base = f"{scheme}://{host}/v2/{repository}"
    with tarfile.open(path) as tar:
        blobs = {f"sha256:{pathlib.PurePath(member.name).name}": member for member in tar if member.name.startswith("blobs/")}
        [entry] = json.load(tar.extractfile("index.json"))["manifests"]
        for digest, member in blobs.items():
            if digest == entry["digest"]:
                continue
            where = request("POST", f"{base}/blobs/uploads/", b"", {}).headers["Location"]
            where = where if where.startswith("http") else f"{scheme}://{host}{where}"
            joint = "&" if "?" in where else "?"
            request("PUT", f"{where}{joint}digest={digest}", tar.extractfile(member).read(), {"content-type": "application/octet-stream"})
        request("PUT", f"{base}/manifests/{tag}", tar.extractfile(blobs[entry["digest"]]).read(), {"content-type": entry["mediaType"]})


def request(method, url, body, headers):
    """One request to the registry; CLUSTER_REGISTRY_AUTH is USER:PASSWORD where it wants one."""
    given = os.environ.get("CLUSTER_REGISTRY_AUTH")
    if given:
        headers = {**headers, "authorization": f"Basic {base64.b64encode(given.encode()).decode()}"}
    try:
        return urllib.request.urlopen(urllib.request.Request(url, body, headers, method=method), timeout=120)
    except OSError as error:
        raise Failure(f"{method} {url}: {error}") from None
