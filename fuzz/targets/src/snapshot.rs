//! Any bytes as a memory snapshot: refused or answered, and what is answered adds up. The bytes also arrive in pieces.

use stepmem_snapshot::json::{self, File};
use stepmem_snapshot::text::{self, Question, RowKind, ShownMoment};
use stepmem_snapshot::{
    AliveMoment, DeviceReport, EventFilter, EventList, EventsExtent, EventsForm, FitQuestion,
    Machine, SiteRow, Sites, Snapshot, check_pickle, compare_files, finish, pinned, read,
    write,
};

/// A batch and a device as a user may give them.
const FIT: FitQuestion = FitQuestion { batch_size: Some(7), capacity: Some(1 << 36) };

pub fn run(data: &[u8]) {
    let whole = read(data);
    let pieces = in_pieces(data);
    assert_eq!(whole.is_ok(), pieces.is_ok());
    let Ok(snapshot) = whole else { return };
    check(&snapshot);
    // Ours is written by the same rules, whatever odd way this one was written in.
    if snapshot.devices.iter().all(|device| device.index < 64) {
        let again = read(&write(&snapshot)).expect("we read what we write");
        assert_eq!(
            again.devices.len(),
            snapshot.devices.iter().filter(|d| has_content(d)).count()
        );
    }
}

fn has_content(device: &stepmem_snapshot::Device) -> bool {
    !device.segments.is_empty() || device.events.0 < device.events.1
}

fn in_pieces(data: &[u8]) -> Result<Snapshot, stepmem_snapshot::Unreadable> {
    check_pickle(data)?;
    let mut machine = Machine::default();
    let (mut held, mut left) = (Vec::new(), data);
    while !left.is_empty() {
        let (piece, after) = left.split_at(left.len().min(1 + left.len() % 13));
        held.extend_from_slice(piece);
        left = after;
        let used = machine.feed(&held)?;
        held.drain(..used);
    }
    finish(machine, held.len())
}

fn check(snapshot: &Snapshot) {
    let sites = Sites::new(snapshot, None);
    let reports = DeviceReport::of_devices(snapshot, &sites);
    let sum = |rows: &[SiteRow]| rows.iter().map(|row| row.sum.bytes).sum::<u64>();
    for report in &reports {
        assert_eq!(sum(&report.at_peak), report.scene.timeline.peak.active);
        for failure in &report.oom {
            assert_eq!(sum(&failure.rows), failure.active);
        }
        for rows in [RowKind::Line, RowKind::Function, RowKind::Stack, RowKind::Category] {
            let question = Question { moment: ShownMoment::Peak, rows, top: 3, fit: FIT };
            let page = text::device(report, &question);
            assert!(page.chars().all(|c| c == '\n' || !c.is_control()), "{page:?}");
        }
    }
    tell_events(snapshot, &reports);
    let file = File { path: String::new(), bytes: 0, protocol: snapshot.protocol };
    let host = pinned(snapshot, &sites);
    if let Some(host) = &host {
        assert_eq!(sum(&host.rows), host.totals.active);
        assert!(text::pinned(host, 3).chars().all(|c| c == '\n' || !c.is_control()));
    }
    serde_json::to_string(&json::show(file, &reports, host.as_ref(), FIT))
        .expect("an answer is JSON");
    for device in compare_files(&reports, &reports).devices {
        let growth: i64 = device.sites.iter().map(|site| site.growth_bytes).sum();
        assert_eq!(growth, device.growth_bytes);
    }
}

/// Lists every event, every chain of tensors and what is alive, as a page and as JSON.
fn tell_events(snapshot: &Snapshot, reports: &[DeviceReport<'_>]) {
    let extent = EventsExtent { rows: Some(50), frames: 2, bytes_min: 0 };
    for report in reports {
        let peak = Some(report.scene.timeline.peak.state);
        let moment = AliveMoment { state: peak, after_event: None };
        for form in [EventsForm::List, EventsForm::Reuse, EventsForm::Alive(moment, "then")] {
            let devices = [(EventList::new(report, EventFilter::default()), form)];
            let list = &devices[0].0;
            let page = match form {
                EventsForm::List => text::list(list, extent),
                EventsForm::Reuse => text::reuse(list, extent),
                EventsForm::Alive(moment, name) => {
                    text::alive(list, (moment.state, name), extent)
                }
            };
            assert!(page.chars().all(|c| c == '\n' || !c.is_control()), "{page:?}");
            assert!(page.lines().all(|line| line.chars().count() <= 80), "{page}");
            let file = File { path: String::new(), bytes: 0, protocol: snapshot.protocol };
            let answer = json::events(file, &devices, None);
            serde_json::to_string(&answer).expect("an answer is JSON");
        }
        let alive = json::alive(report, peak);
        let bytes: u64 =
            alive.iter().filter(|row| row.depth == 0).map(|row| row.sum.bytes).sum();
        assert_eq!(bytes, report.at_peak.iter().map(|row| row.sum.bytes).sum::<u64>());
    }
}
