//! The resource of every export: the values of `OTEL_RESOURCE_ATTRIBUTES` and
//! `OTEL_SERVICE_NAME`, completed by stepmem.

use opentelemetry::{Key, KeyValue, Value};
use opentelemetry_sdk::Resource;

const SERVICE_NAME: Key = Key::from_static_str("service.name");
const SERVICE_INSTANCE: Key = Key::from_static_str("service.instance.id");

/// OpenTelemetry's attributes of a pod, and the labels under which Prometheus's service
/// discovery reports the same. stepmem's rules and dashboards use these labels.
const PLACES: [(Key, Key); 3] = [
    (Key::from_static_str("k8s.cluster.name"), Key::from_static_str("cluster")),
    (Key::from_static_str("k8s.namespace.name"), Key::from_static_str("namespace")),
    (Key::from_static_str("k8s.pod.name"), Key::from_static_str("pod")),
];

/// Returns the resource; `instance` identifies this exporter unless the environment does.
pub(super) fn resource(instance: &str) -> Resource {
    let named = Resource::builder().build();
    // The SDK's name for a service without one.
    let is_unnamed = |name: Value| name.as_str().starts_with("unknown_service");
    let mut ours = vec![KeyValue::new("service.version", env!("CARGO_PKG_VERSION"))];
    if named.get(&SERVICE_NAME).is_none_or(is_unnamed) {
        ours.push(KeyValue::new(SERVICE_NAME, "stepmem"));
    }
    if named.get(&SERVICE_INSTANCE).is_none() {
        ours.push(KeyValue::new(SERVICE_INSTANCE, instance.to_owned()));
    }
    for (attribute, label) in PLACES {
        if let (Some(place), None) = (named.get(&attribute), named.get(&label)) {
            ours.push(KeyValue::new(label, place));
        }
    }
    Resource::builder().with_attributes(ours).build()
}
