//! The detectors of a rank: one of its own memory, one of the host's where the rank reports
//! that next to a device's, one of its child processes where it has any, and one of `/dev/shm`
//! where that is read.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use stepmem_detect::{Capacity, Config, Detector, HolderGrowth, Sample, Signal, Trend};

/// The detectors of a rank, all by steps or all by time.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct RankDetectors {
    own: Detector,
    /// The detector of [`Signal::Host`]; its first sample creates it.
    host: Option<Box<Detector>>,
    /// The detector of [`Signal::Children`]; its first sample creates it.
    children: Option<Box<Detector>>,
    /// The detector of [`Signal::Shm`]; its first sample creates it.
    shm: Option<Box<Detector>>,
}

impl RankDetectors {
    /// Upper bound on the memory of all, in bytes.
    pub const BYTES_MAX: usize = Detector::BYTES_MAX + 3 * Detector::HOST_BYTES_MAX;

    /// Upper bound on the memory of all once their windows are freed, in bytes.
    pub const RELEASED_BYTES_MAX: usize =
        Detector::RELEASED_BYTES_MAX + 3 * Detector::HOST_RELEASED_BYTES_MAX;

    /// Creates the detectors of a rank that steps.
    pub fn new(config: &Config) -> Self {
        Self { own: Detector::new(*config), host: None, children: None, shm: None }
    }

    /// Creates the detectors of a rank that takes no steps.
    pub fn by_time(config: &Config) -> Self {
        Self { own: Detector::by_time(*config), host: None, children: None, shm: None }
    }

    /// Returns the detector that judges a signal.
    pub fn of(&self, signal: Signal) -> &Detector {
        let beside = match signal {
            Signal::Host => &self.host,
            Signal::Children => &self.children,
            Signal::Shm => &self.shm,
            _ => &None,
        };
        beside.as_deref().unwrap_or(&self.own)
    }

    /// Returns the detector of the rank's own memory.
    pub fn own(&self) -> &Detector {
        &self.own
    }

    /// Returns the trend of a signal.
    pub fn trend(&self, signal: Signal) -> Option<&Trend> {
        self.of(signal).trend(signal)
    }

    /// Returns the trends that hold now, growing or level, at most one per signal.
    pub fn trends(&self) -> impl Iterator<Item = &Trend> {
        Signal::ALL.into_iter().filter_map(|signal| self.trend(signal))
    }

    /// Replaces the configuration, as after a restart of the exporter.
    pub fn configure(&mut self, config: &Config) {
        let config = Arc::new(*config);
        self.each(|detector| detector.configure(Arc::clone(&config)));
    }

    /// Notes an event after which memory may hold more.
    pub fn mark(&mut self) {
        self.each(Detector::mark);
    }

    /// Takes a train sample of the rank's own memory, as [`Detector::train`] does. A pause before
    /// it is one of both.
    pub fn train(&mut self, sample: &Sample, capacity: Capacity) -> bool {
        let is_changed = self.own.train(sample, capacity);
        if self.own.follows_pause() {
            self.beside(Detector::mark);
        }
        is_changed
    }

    /// Takes host memory at the same time, as [`Detector::train`] does: of a signal beside the
    /// rank's own. `capacity` in bytes, if known.
    pub(crate) fn train_beside(
        &mut self,
        signal: Signal,
        sample: &Sample,
        capacity: Option<f64>,
    ) -> bool {
        let (config, axis) = (Arc::clone(self.own.config()), self.own.axis());
        let detector = match signal {
            Signal::Children => &mut self.children,
            Signal::Shm => &mut self.shm,
            _ => &mut self.host,
        };
        let new = || Box::new(Detector::of_host(config, axis, signal));
        detector.get_or_insert_with(new).train(sample, capacity)
    }

    /// Takes a sample of an evaluation or a checkpoint, as [`Detector::other_phase`] does.
    pub fn other_phase(&mut self, sample: &Sample) {
        self.own.other_phase(sample);
        self.beside(Detector::mark);
    }

    /// Takes growth of an object that holds memory of a signal, as [`Detector::holder`] does.
    pub fn holder(&mut self, growth: HolderGrowth, signal: Signal, capacity: Capacity) {
        match (&mut self.host, signal) {
            (Some(host), Signal::Host) => host.holder(growth, capacity),
            (None, Signal::Host) => {}
            _ => self.own.holder(growth, capacity),
        }
    }

    /// Returns the detector of the rank's own memory, to take readings of its device.
    pub(crate) fn own_mut(&mut self) -> &mut Detector {
        &mut self.own
    }

    /// Forgets the previous incarnation, as [`Detector::restart`] does.
    pub fn restart(&mut self) {
        self.own.restart();
        (self.host, self.children, self.shm) = (None, None, None);
    }

    /// Frees the windows of an incarnation that has ended, as [`Detector::release`] does.
    pub fn release(&mut self) {
        self.each(Detector::release);
    }

    fn each(&mut self, change: impl Fn(&mut Detector)) {
        change(&mut self.own);
        self.beside(change);
    }

    fn beside(&mut self, change: impl Fn(&mut Detector)) {
        let all = self.host.iter_mut().chain(&mut self.children).chain(&mut self.shm);
        all.for_each(|detector| change(detector));
    }
}

const _: () = assert!(RankDetectors::BYTES_MAX <= 161 * 1024);
