"""The DaemonSet behind TLS, client certificates and a password: its probe, its scrapes while certificates are rotated, and others."""

import base64
import re
import socket
import ssl
import subprocess
import urllib.error
import urllib.request

from child import Failure
from cluster import awaits
from scenarios.monitoring import brings_kinds, operated, prometheus, query

HASH = "$2b$04$abcdefghijklmnopqrstuuz8fopI114RyghuYhvhf71t8S.jRpJhq"
"""Of the password `horse`, by bcrypt."""
WEB = f"""tls_server_config:
  cert_file: server.pem
  key_file: server.key
  client_ca_file: ca.pem
  client_auth_type: RequireAndVerifyClientCert
  client_allowed_sans: [prometheus]
basic_auth_users:
  scraper: {HASH}
"""
SERVER = "stepmem"
"""The name that certificates of the exporter are for: pods have no names that one could be made for."""
ASSETS = "/etc/prometheus/certs/"
"""Where the operator's Prometheus has certificates."""
PROBED_SECONDS_MAX = 120
ROTATED_SECONDS_MAX = 180
N_SCRAPES = 8
"""Scrapes with each certificate."""


class Authority:
    """Makes certificates in a folder, with openssl."""

    def __init__(self, folder):
        self.folder = folder
        folder.mkdir()
        self.openssl("req -x509 -days 2 -subj /CN=authority -keyout ca.key -out ca.pem")

    def openssl(self, words):
        command = f"openssl {words} -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes".split()
        subprocess.run(command, cwd=self.folder, check=True, capture_output=True)

    def certificate(self, name):
        """Makes NAME.pem and NAME.key anew, for the DNS name."""
        self.openssl(f"req -x509 -CA ca.pem -CAkey ca.key -days 1 -subj /CN={name} -addext subjectAltName=DNS:{name} -addext basicConstraints=CA:false -keyout {name}.key -out {name}.pem")

    def text(self, file):
        return (self.folder / file).read_text()

    def context(self, name=None, signed_by=None):
        """How a client connects: with the certificate of this name, of another authority if one is given."""
        context = ssl.create_default_context(cafile=self.folder / "ca.pem")
        context.check_hostname = False  # the address is the pod's
        if name:
            of = (signed_by or self).folder
            context.load_cert_chain(of / f"{name}.pem", of / f"{name}.key")
        return context


def secret(name, **texts):
    return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "stringData": {key.replace("_", "."): text for key, text in texts.items()}}


def web_secret(authority):
    """The exporter's, with a certificate that was not there before."""
    authority.certificate(SERVER)
    return secret("web", web_yml=WEB, ca_pem=authority.text("ca.pem"), server_pem=authority.text(f"{SERVER}.pem"), server_key=authority.text(f"{SERVER}.key"))


def shown(host, port, context):
    """The certificate that a server shows, or None."""
    try:
        with socket.create_connection((host, port), 5) as plain, context.wrap_socket(plain, server_hostname=SERVER) as opened:
            return ssl.DER_cert_to_PEM_cert(opened.getpeercert(binary_form=True))
    except OSError:
        return None


def refusal(url, context, user=None):
    """Why a client gets no answer: the status, or `refused` without one; None if it gets the metrics."""
    headers = {"Authorization": f"Basic {base64.b64encode(user.encode()).decode()}"} if user else {}
    try:
        urllib.request.urlopen(urllib.request.Request(f"{url}/metrics", headers=headers), timeout=5, context=context).read()
    except urllib.error.HTTPError as error:
        return error.code
    except OSError as error:
        # A client learns of a refused certificate when it connects, or when it reads.
        cause = error.reason if isinstance(error, urllib.error.URLError) else error
        return "refused" if isinstance(cause, (ConnectionError, ssl.SSLError)) else error
    return None


def probes(cluster, namespace, pod):
    """How many probes of the pod's exporter succeeded and failed, as its kubelet counts them."""
    text = cluster.kubectl("get", "--raw", "/api/v1/nodes/stepmem-node/proxy/metrics/probes")
    rows = [row for row in text.splitlines() if row.startswith("prober_probe_total{") and f'namespace="{namespace}"' in row and f'pod="{pod}"' in row and 'probe_type="Liveness"' in row]
    count = lambda result: sum(float(row.rsplit(" ", 1)[1]) for row in rows if f'result="{result}"' in row)
    return count("successful"), count("failed")


def is_scraped(cluster):
    """The PodMonitor's configuration scrapes it, before and after a certificate is rotated; a client that lacks something does not."""
    brings_kinds(cluster)
    namespace = cluster.namespace("tls", **{"pod-security.kubernetes.io/enforce": "privileged"})
    authority = Authority(cluster.folder / "authority")
    other = Authority(cluster.folder / "other-authority")
    for each, name in ((authority, "prometheus"), (authority, "trainer"), (other, "prometheus")):
        each.certificate(name)
    client = secret("client", ca=authority.text("ca.pem"), cert=authority.text("prometheus.pem"), key=authority.text("prometheus.key"), user="scraper", password="horse")
    cluster.apply(web_secret(authority), client, namespace=namespace)
    key = lambda name: {"name": "client", "key": name}
    monitor = {
        "interval": "3s", "scrapeTimeout": "3s", "scheme": "https", "basicAuth": {"username": key("user"), "password": key("password")},
        "tlsConfig": {"serverName": SERVER, "ca": {"secret": key("ca")}, "cert": {"secret": key("cert")}, "keySecret": key("key")},
    }
    directories = {"socketDirectory": f"/run/{cluster.id}-tls", "stateDirectory": f"/run/{cluster.id}-tls/state"}
    values = cluster.values(mode="daemonset", secrets={"webConfig": "web"}, podMonitor=monitor, daemonset={"podResources": False}, **directories)
    with cluster.release(namespace, values):
        [exporter] = awaits(lambda: cluster.get("pods", "-n", namespace, "-l", "app.kubernetes.io/component=node")["items"], 60, lambda: "the DaemonSet has no pod")
        name = exporter["metadata"]["name"]
        cluster.kubectl("wait", "--for=condition=Ready", f"pod/{name}", "-n", namespace, "--timeout=60s")
        host, port = cluster.status(namespace, name)["status"]["podIP"], 9477
        config = configured(cluster, namespace)
        first = awaits(lambda: shown(host, port, authority.context("prometheus")), 60, lambda: f"no certificate is shown: {cluster.kubectl('logs', name, '-n', namespace)}")
        with prometheus(cluster.folder / "tls", config) as prometheus_port:
            up = lambda: query(prometheus_port, f'count_over_time(up{{namespace="{namespace}"}}[10m])')
            n_scrapes = lambda: int(up()[0]["value"][1]) if up() else 0
            why = lambda: f"{n_scrapes()} scrapes: {query(prometheus_port, 'up')}, {cluster.kubectl('logs', name, '-n', namespace)}"
            awaits(lambda: n_scrapes() >= N_SCRAPES, 90, why)
            cluster.apply(web_secret(authority), namespace=namespace)
            # The kubelet looks at a pod's secrets when it looks at the pod, which is once a minute or when the pod changes.
            cluster.kubectl("annotate", "pod", name, "-n", namespace, "rotated=once")
            new = authority.text(f"{SERVER}.pem")
            awaits(lambda: shown(host, port, authority.context("prometheus")) == new, ROTATED_SECONDS_MAX, lambda: f"the new certificate is not shown: {cluster.kubectl('logs', name, '-n', namespace)}")
            before = n_scrapes()
            awaits(lambda: n_scrapes() >= before + N_SCRAPES, 90, why)
            [failed] = query(prometheus_port, f'sum(count_over_time(up{{namespace="{namespace}"}}[10m]) - sum_over_time(up{{namespace="{namespace}"}}[10m]))')
            if first == new or float(failed["value"][1]):
                raise Failure(f"{failed['value'][1]} scrapes failed while the certificate was rotated: {why()}")
            total = n_scrapes()
        refusals(f"https://{host}:{port}", authority, other)
        awaits(lambda: probes(cluster, namespace, name)[0] >= 2, PROBED_SECONDS_MAX, lambda: f"probes that succeeded and failed: {probes(cluster, namespace, name)}")
        n_good, n_bad = probes(cluster, namespace, name)
        [status] = cluster.status(namespace, name)["status"]["containerStatuses"]
        if n_bad or status["restartCount"] or not status["ready"]:
            raise Failure(f"{n_bad:.0f} probes failed, and the exporter was restarted {status['restartCount']} times")
    return f"{total} scrapes by two certificates, none failed; {n_good:.0f} probes; five clients that lack something refused"


def refusals(url, authority, other):
    """Each client that lacks something is refused, and the one that lacks nothing is not."""
    right = authority.context("prometheus")
    clients = {
        "no certificate": (authority.context(), "scraper:horse", "refused"),
        "another authority's": (authority.context("prometheus", other), "scraper:horse", "refused"),
        "another name": (authority.context("trainer"), "scraper:horse", "refused"),
        "no password": (right, None, 401),
        "a wrong password": (right, "scraper:cow", 401),
        "all": (right, "scraper:horse", None),
    }
    for what, (context, user, expected) in clients.items():
        got = refusal(url, context, user)
        if got != expected:
            raise Failure(f"a client with {what}: {got!r}, not {expected!r}")


def configured(cluster, namespace):
    """What the operator generates of the chart's PodMonitor, with the certificates that it wrote."""
    config, _ = operated(cluster, namespace)
    folder = cluster.folder / "assets"
    folder.mkdir()

    def assets():
        found = cluster.get("secrets", "-n", namespace, "-l", "managed-by=prometheus-operator")["items"]
        return [each for each in found if "tls-assets" in each["metadata"]["name"] and each.get("data")]

    for each in awaits(assets, 60, lambda: "the operator writes no certificates"):
        for name, content in each["data"].items():
            (folder / name).write_bytes(base64.b64decode(content))
    config.pop("rule_files", None)
    for scrape in config["scrape_configs"]:
        for discovery in scrape["kubernetes_sd_configs"]:
            discovery["kubeconfig_file"] = str(cluster.kubeconfig)
        for field, path in scrape.get("tls_config", {}).items():
            if field.endswith("_file"):
                scrape["tls_config"][field] = re.sub(f"^{ASSETS}", f"{folder}/", path)
    return config
