// Checks documents of the Prometheus operator against its schemas: reads a JSON list of them on stdin, prints the
// errors. The schemas allow unknown fields, so field names are looked up in the types beside them.
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { dirname, join } from "node:path";
import { pathToFileURL } from "node:url";

const models = dirname(createRequire(join(process.argv[2], "x.js")).resolve("@kubernetes-models/prometheus-operator/package.json"));
const folder = join(models, "monitoring.coreos.com/v1");
const known = {
  PodMonitor: ["PodMonitor", "PodMonitorSpec", "PodMetricsEndpoint", "NamespaceSelector", "RelabelConfig", "SafeAuthorization", "BasicAuth", "SafeTLSConfig", "SecretOrConfigMap"],
  ServiceMonitor: ["ServiceMonitor", "ServiceMonitorSpec", "Endpoint", "NamespaceSelector", "RelabelConfig", "SafeAuthorization", "BasicAuth", "TLSConfig", "SecretOrConfigMap"],
  PrometheusRule: ["PrometheusRule", "PrometheusRuleSpec", "RuleGroup", "Rule"],
};
// Maps, and references to keys of secrets.
const free = new Set(["metadata", "labels", "annotations", "matchLabels", "secret", "configMap", "credentials", "username", "password", "keySecret"]);

function* names(value) {
  if (Array.isArray(value)) for (const each of value) yield* names(each);
  else if (value && typeof value === "object")
    for (const [name, inner] of Object.entries(value)) {
      yield name;
      if (!free.has(name)) yield* names(inner);
    }
}

for (const document of JSON.parse(readFileSync(0, "utf8"))) {
  const { [document.kind]: Model } = await import(pathToFileURL(join(folder, `${document.kind}.js`)));
  try {
    await new Model(document).validate();
  } catch (error) {
    console.log(`${document.kind}: ${error.message}`);
  }
  const types = known[document.kind].map((type) => readFileSync(join(folder, `${type}.d.ts`), "utf8")).join("\n");
  for (const name of new Set(names(document)))
    if (!new RegExp(`\\b"?${name}"?\\??:`).test(types) && !["apiVersion", "kind", "metadata", "matchLabels"].includes(name))
      console.log(`${document.kind}: field ${name} is not in ${known[document.kind].join(", ")}`);
}
