//! One pod over OTLP, by the product's own export.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use stepmem::input::push::inbox::PUSH_SECONDS_BOUNDS;
use stepmem::output::otlp::config::{Endpoint, OtlpConfig, Transport};
use stepmem::output::otlp::delivery::ExportCounts;
use stepmem::output::otlp::export::Export;
use tokio::sync::watch;

use crate::Fleet;

const EXPORT_EVERY: Duration = Duration::from_secs(2);
const PUBLISH_EVERY: Duration = Duration::from_secs(1);

/// Exports the status of the only pod from its first scrape on, until the program ends: what is exported was in a scrape.
pub(crate) fn start(fleet: &Arc<Fleet>, url: &str) {
    let config = OtlpConfig {
        endpoint: Endpoint::AllSignals(url.to_owned()),
        transport: Transport::Http,
        interval: EXPORT_EVERY,
        timeout: Duration::from_secs(10),
        semconv: false,
        instance: format!("host:{}", std::process::id()),
        ranks_max: 1024,
    };
    rustls::crypto::ring::default_provider().install_default().unwrap();
    let fleet = Arc::clone(fleet);
    thread::spawn(move || {
        let pod = &fleet.plan.pods[0];
        while !fleet.behaviors.is_scraped(pod.behavior) {
            thread::sleep(PUBLISH_EVERY);
        }
        let (publish, latest) = watch::channel(Arc::new(fleet.status(pod)));
        let counts = Arc::new(ExportCounts::default());
        let export = Export::start(&config, &latest, &counts, &PUSH_SECONDS_BOUNDS).unwrap();
        let record = export.recorder();
        loop {
            record(0.001);
            thread::sleep(PUBLISH_EVERY);
            publish.send_replace(Arc::new(fleet.status(pod)));
        }
    });
}
