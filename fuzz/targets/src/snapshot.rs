//! Any bytes as a memory snapshot: refused or answered, and what is answered adds up. The bytes also arrive in pieces.

use stepmem::snapshot::answer::{self, File};
use stepmem::snapshot::load;
use stepmem::snapshot::model::Snapshot;
use stepmem::snapshot::page::{self, Question, RowKind, ShownMoment};
use stepmem::snapshot::pickle::Machine;
use stepmem::snapshot::sites::{SiteRow, Sites};
use stepmem::snapshot::study::Study;
use stepmem::snapshot::writer::write;
use stepmem::snapshot::{diff, sniff};

pub fn run(data: &[u8]) {
    let whole = load::read(data);
    let pieces = in_pieces(data);
    assert_eq!(whole.is_ok(), pieces.is_ok());
    let Ok(snapshot) = whole else { return };
    check(&snapshot);
    // Ours is written by the same rules, whatever odd way this one was written in.
    if snapshot.devices.iter().all(|device| device.index < 64) {
        let again = load::read(&write(&snapshot)).expect("we read what we write");
        assert_eq!(
            again.devices.len(),
            snapshot.devices.iter().filter(|d| has_content(d)).count()
        );
    }
}

fn has_content(device: &stepmem::snapshot::model::Device) -> bool {
    !device.segments.is_empty() || device.events.0 < device.events.1
}

fn in_pieces(data: &[u8]) -> Result<Snapshot, stepmem::snapshot::fault::Unreadable> {
    sniff::check_pickle(data)?;
    let mut machine = Machine::default();
    let (mut held, mut left) = (Vec::new(), data);
    while !left.is_empty() {
        let (piece, after) = left.split_at(left.len().min(1 + left.len() % 13));
        held.extend_from_slice(piece);
        left = after;
        let used = machine.feed(&held)?;
        held.drain(..used);
    }
    load::finish(machine, held.len())
}

fn check(snapshot: &Snapshot) {
    let sites = Sites::new(snapshot, None);
    let studies = Study::of_devices(snapshot, &sites);
    let sum = |rows: &[SiteRow]| rows.iter().map(|row| row.sum.bytes).sum::<u64>();
    for study in &studies {
        assert_eq!(sum(&study.at_peak), study.scene.timeline.peak.active);
        for failure in &study.oom {
            assert_eq!(sum(&failure.rows), failure.active);
        }
        for rows in [RowKind::Line, RowKind::Function, RowKind::Stack, RowKind::Category] {
            let question = Question { moment: ShownMoment::Peak, rows, top: 3 };
            let page = page::device(study, &question);
            assert!(page.chars().all(|c| c == '\n' || !c.is_control()), "{page:?}");
        }
    }
    let file = File { path: String::new(), bytes: 0, protocol: snapshot.protocol };
    serde_json::to_string(&answer::show(file, &studies)).expect("an answer is JSON");
    for device in diff::compare(&studies, &studies).devices {
        let growth: i64 = device.sites.iter().map(|site| site.growth_bytes).sum();
        assert_eq!(growth, device.growth_bytes);
    }
}
