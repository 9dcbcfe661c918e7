//! Requests as stepmem's own commands send them: the other side of `control`.

use serde_json::{Map, Value};

use crate::findings::acks::Ack;
use stepmem_types::end::EndOutcome;
use stepmem_types::ids::{ProcessId, Rank, RankId, Run, SubjectId};

/// A POST to the push endpoint.
#[derive(Clone, Debug, PartialEq)]
pub struct ControlRequest {
    /// The parts of the path, as they are before they are escaped.
    pub path: Vec<String>,
    /// The body, which is sent as JSON.
    pub body: Value,
}

impl ControlRequest {
    /// Lowers a finding.
    pub fn ack(ack: &Ack) -> Self {
        let mut body = Map::new();
        body.insert("kind".to_owned(), ack.kind().label().into());
        body.insert("for_seconds".to_owned(), ack.seconds().into());
        body.insert("reason".to_owned(), ack.reason().into());
        let place = match ack.subject() {
            SubjectId::Rank(RankId { run, rank }) => {
                body.insert("rank".to_owned(), rank.get().into());
                ["runs", run.as_str()]
            }
            SubjectId::Process(ProcessId { uuid, pid }) => {
                body.insert("pid".to_owned(), (*pid).into());
                ["devices", uuid.as_str()]
            }
            SubjectId::Device(uuid) => ["devices", uuid.as_str()],
        };
        Self::new(&[&place[..], &["ack"]].concat(), body)
    }

    /// Ends a run, or one of its ranks.
    pub fn end(run: &Run, rank: Option<Rank>, outcome: EndOutcome) -> Self {
        let mut body = Map::new();
        body.insert("outcome".to_owned(), outcome.as_label().into());
        if let Some(rank) = rank {
            body.insert("rank".to_owned(), rank.get().into());
        }
        Self::new(&["runs", run.as_str(), "end"], body)
    }

    /// Closes the devices for so many seconds; 0 opens them again at once.
    pub fn release(seconds: u64) -> Self {
        Self::new(
            &["nvml", "release"],
            Map::from_iter([("for_seconds".to_owned(), seconds.into())]),
        )
    }

    fn new(path: &[&str], body: Map<String, Value>) -> Self {
        let path = ["v1"].iter().chain(path).map(|part| (*part).to_owned());
        Self { path: path.collect(), body: Value::Object(body) }
    }
}

#[cfg(test)]
mod tests {
    use crate::findings::acks::Ack;
    use crate::kind::DiagnosisKind;
    use crate::wire::control::{decode_ack, decode_device_ack, decode_end, decode_release};
    use crate::wire::request::ControlRequest;
    use stepmem_types::end::EndOutcome;
    use stepmem_types::ids::{GpuUuid, ProcessId, Rank, RankId, Run, SubjectId};

    fn bytes(request: &ControlRequest) -> Vec<u8> {
        request.body.to_string().into_bytes()
    }

    #[test]
    fn acknowledgment_is_read_as_it_was_sent() {
        let (run, uuid) = (Run::new("llm/7b").unwrap(), GpuUuid::new("GPU-7").unwrap());
        let ack = |subject: SubjectId| {
            Ack::new(subject, DiagnosisKind::HighPressure, 3600, "a known cache").unwrap()
        };
        let of_rank =
            ack(SubjectId::Rank(RankId { run: run.clone(), rank: Rank::new(3).unwrap() }));
        let request = ControlRequest::ack(&of_rank);
        assert_eq!(request.path, ["v1", "runs", "llm/7b", "ack"]);
        assert_eq!(decode_ack(run, &bytes(&request)).unwrap(), of_rank);
        let process = ProcessId { uuid: uuid.clone(), pid: 4711 };
        for subject in [SubjectId::Process(process), SubjectId::Device(uuid.clone())] {
            let sent = ack(subject);
            let request = ControlRequest::ack(&sent);
            assert_eq!(request.path, ["v1", "devices", "GPU-7", "ack"]);
            assert_eq!(decode_device_ack(uuid.clone(), &bytes(&request)).unwrap(), sent);
        }
    }

    #[test]
    fn end_and_release_are_read_as_they_were_sent() {
        let run = Run::new("llm").unwrap();
        for rank in [None, Some(Rank::new(3).unwrap())] {
            let request = ControlRequest::end(&run, rank, EndOutcome::Failed);
            let end = decode_end(&bytes(&request)).unwrap();
            assert_eq!((end.rank, end.report.outcome), (rank, EndOutcome::Failed));
        }
        let release = decode_release(&bytes(&ControlRequest::release(600))).unwrap();
        assert_eq!(release.as_secs(), 600);
    }
}
