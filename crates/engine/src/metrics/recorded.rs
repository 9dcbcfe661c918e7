//! The recorded set (docs/fleet.md): the series that an engine such as Prometheus keeps of a
//! job for long, and how each is read over the time of one launch. Some are the exporters'
//! own, the others are recorded by the rules.

/// A figure of the recorded set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Figure {
    /// The ranks' own descriptions, as labels; the value is when they were last scraped.
    Identity,
    /// The last train step.
    Step,
    /// Live memory at the end of the last step, in bytes.
    Allocated,
    /// Bytes that the allocator holds.
    Reserved,
    /// The highest peak of live memory.
    Peak,
    /// The time of the last push, as a Unix time.
    LastPush,
    /// The time when the rank ended, as a Unix time, with its outcome.
    Ended,
    /// The severity of a finding, when it was last scraped.
    Severity,
    /// The time when a finding was last scraped.
    HeldUntil,
    /// The time when a finding began to hold.
    Since,
    /// The slope of a signal, in bytes per step.
    Slope,
    /// The lower end of its 95 % interval.
    SlopeLower,
    /// The upper end of its 95 % interval.
    SlopeUpper,
    /// The slope in time, in bytes per second.
    SlopePerSecond,
    /// Growth since the onset, in bytes, while a signal rises or creeps.
    Growth,
    /// The step at which growth began.
    OnsetStep,
    /// The detector's confidence that a signal grows, 0 to 1.
    Confidence,
    /// The line that leaks, as labels; the value is constant.
    Site,
    /// The share of the growth that this line allocates, 0 to 1.
    SiteShare,
    /// The fastest-growing live object, as labels; the value is constant.
    Holder,
    /// Seconds until memory runs out.
    OomEta,
    /// The number of ranks of the run, as they report it.
    RanksExpected,
    /// The imbalance between the ranks.
    Imbalance,
}

/// The way in which a figure is read over the time of a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reduction {
    /// The last value.
    Last,
    /// The highest value.
    Highest,
    /// The time of the last sample.
    LastTime,
    /// The latest time that an age goes back to.
    LastBefore,
}

/// A series by which a job is read.
#[derive(Clone, Copy, Debug)]
pub struct RecordedFamily {
    /// The figure that the series shows.
    pub figure: Figure,
    /// The name of the series in Prometheus.
    pub metric: &'static str,
    /// The way in which it is read over the time of a launch.
    pub reduction: Reduction,
}

const fn family(figure: Figure, metric: &'static str, reduction: Reduction) -> RecordedFamily {
    RecordedFamily { figure, metric, reduction }
}

/// The description of a rank: which launches there are follows from it.
pub const IDENTITY: &str = "stepmem_rank_info";

/// Every series by which a job is read.
#[rustfmt::skip]
pub const RECORDED: [RecordedFamily; 23] = [
    family(Figure::Identity, IDENTITY, Reduction::LastTime),
    family(Figure::Step, "stepmem_rank_step", Reduction::Last),
    family(Figure::Allocated, "stepmem_rank_memory_allocated_bytes", Reduction::Last),
    family(Figure::Reserved, "stepmem_rank_memory_reserved_bytes", Reduction::Last),
    family(Figure::Peak, "rank:stepmem_peak_allocated_bytes:last5m", Reduction::Highest),
    family(Figure::LastPush, "rank:stepmem_push_age_seconds:min", Reduction::LastBefore),
    family(Figure::Ended, "stepmem_rank_ended_timestamp_seconds", Reduction::Last),
    family(Figure::Severity, "stepmem_diagnosis_severity", Reduction::Last),
    family(Figure::HeldUntil, "stepmem_diagnosis_severity", Reduction::LastTime),
    family(Figure::Since, "stepmem_diagnosis_since_timestamp_seconds", Reduction::Last),
    family(Figure::Slope, "stepmem_creep_slope_bytes_per_step", Reduction::Last),
    family(Figure::SlopeLower, "stepmem_creep_slope_lower_bytes_per_step", Reduction::Last),
    family(Figure::SlopeUpper, "stepmem_creep_slope_upper_bytes_per_step", Reduction::Last),
    family(Figure::SlopePerSecond, "stepmem_creep_slope_bytes_per_second", Reduction::Last),
    family(Figure::Growth, "stepmem_creep_growth_bytes", Reduction::Last),
    family(Figure::OnsetStep, "stepmem_creep_onset_step", Reduction::Last),
    family(Figure::Confidence, "stepmem_creep_confidence_ratio", Reduction::Last),
    family(Figure::Site, "stepmem_creep_site_info", Reduction::LastTime),
    family(Figure::SiteShare, "stepmem_creep_site_share_ratio", Reduction::Last),
    family(Figure::Holder, "stepmem_creep_holder_info", Reduction::LastTime),
    family(Figure::OomEta, "rank:stepmem_oom_eta_seconds:min", Reduction::Last),
    family(Figure::RanksExpected, "run:stepmem_ranks_expected:max", Reduction::Highest),
    family(Figure::Imbalance, "run:stepmem_imbalance:ratio", Reduction::Last),
];

#[cfg(test)]
mod tests {
    use crate::metrics::recorded::RECORDED;
    use crate::metrics::table::METRICS;

    #[test]
    fn what_no_rule_records_is_a_metric_of_the_table() {
        for family in RECORDED {
            let is_recorded = family.metric.contains(':');
            let is_exported = METRICS.iter().any(|metric| metric.name == family.metric);
            assert!(is_recorded || is_exported, "{}", family.metric);
        }
    }
}
