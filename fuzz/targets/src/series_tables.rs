//! Series of others in tables and JSON lines, by any settings, and the verdicts on them.

use stepmem_engine::EngineConfig;
use stepmem_report::judge::{self, Judged, JudgedTold, SourceTold};
use stepmem_report::series::{Decoded, POINTS_MAX, SERIES_MAX, Wanted, decode};

/// Series that are judged.
const JUDGED_MAX: usize = 4;

pub fn run(data: &[u8]) {
    let named = Wanted {
        columns: vec!["v".to_owned()],
        by: vec!["k".to_owned()],
        unit: "%".parse().ok(),
        capacity: Some(8e10),
        header: ["t", "k", "v"].map(str::to_owned).to_vec(),
        ..Wanted::default()
    };
    for wanted in [Wanted::default(), named] {
        match decode(data, &wanted) {
            Ok(decoded) => judged(decoded),
            Err(error) => is_plain(&error.to_string()),
        }
    }
}

/// Judges series, and shows them in every form.
pub fn judged(decoded: Decoded) {
    let Decoded { format, mut series, left_out } = decoded;
    assert!(series.len() <= SERIES_MAX);
    assert!(series.iter().map(|of| of.points.len()).sum::<usize>() <= POINTS_MAX);
    series.truncate(JUDGED_MAX);
    let config = EngineConfig::default();
    let judged: Vec<Judged> =
        series.into_iter().filter_map(|of| Judged::of(of, &config).ok()).collect();
    let name = "f".to_owned();
    let sources = [SourceTold { name, format: format.words(), series: judged.len(), left_out }];
    is_plain(&judge::render(&sources, &judged, Some(80)));
    is_plain(&judge::document(&sources, &judged, |text| text.replace('<', "&lt;")));
    serde_json::to_vec(&JudgedTold::of(&sources, &judged)).expect("verdicts are JSON");
}

pub fn is_plain(text: &str) {
    assert!(text.chars().all(|c| c == '\n' || !c.is_control()), "{text:?}");
}
