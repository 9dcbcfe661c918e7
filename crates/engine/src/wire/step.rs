//! Step records: a single object, an array, or lines; and the list of their keys, by which
//! recordings write them, too.

use std::{fmt, iter};

use serde::de::{
    DeserializeSeed, Deserializer, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor,
};
use serde::ser::SerializeMap;
use serde::{Deserialize, Serialize, Serializer};

use crate::wire::error::{DecodeError, DecodeFault};
use crate::wire::field::{
    PID_MAX, bytes_of, container_of, count_of, device_of, in_field, instance_of, launch_of,
    optional, rank_of, run_of, seconds_of, small_of,
};
use crate::wire::json::{Text, parse};
use crate::wire::number::Number;
use crate::wire::plain::parse_plain;
use stepmem_types::device::{DeviceMemoryKind, OwnProcessMemory, OwnProcessState};
use stepmem_types::host::{
    ContainerReading, HostFigures, HostParts, KernelLimit, MallocReading, ProcessGroup,
};
use stepmem_types::ids::{GpuUuid, Rank, Run};
use stepmem_types::launch::{Instance, Launch};
use stepmem_types::step::{
    Identity, MarkSet, OnDeadline, Phase, PhaseName, STEPS_PER_RECORD_MAX, StepFigures,
    StepMark, StepSample, StepUnit,
};
use stepmem_types::units::{Bytes, INTEGER_MAX};

/// The run of records that do not name one.
pub(crate) const RUN_DEFAULT: &str = "default";

/// Maximum number of records per batch. A decoded record takes more than ten times the bytes of
/// the shortest encoded one. The limit of the body alone would therefore not bound the memory
/// of a batch.
pub(crate) const RECORDS_MAX: usize = 8192;

/// Records for which a batch has place from the beginning: a node's ranks with a few steps each.
const RECORDS_USUAL: usize = 64;

/// The layout of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// One object, or an array of objects.
    Json,
    /// One object per line; blank lines are ignored.
    NdJson,
}

/// Decodes every record of a push body, in order.
///
/// # Errors
/// The first invalid record. Nothing of the body is accepted then.
pub fn decode_steps(body: &[u8], layout: Layout) -> Result<Vec<StepSample>, DecodeError> {
    match layout {
        Layout::NdJson => {
            let lines = lines_of(body).filter(|line| !line.trim_ascii().is_empty());
            let n_breaks = memchr::memchr_iter(b'\n', body).count();
            if n_breaks >= RECORDS_MAX {
                check_count(lines.clone().count())?;
            }
            in_turn(lines, n_breaks)
        }
        Layout::Json if body.trim_ascii_start().first() == Some(&b'[') => {
            if memchr::memchr_iter(b'{', body).count() > RECORDS_MAX {
                check_count(parse::<Vec<IgnoredAny>>(body)?.len())?;
            }
            parse::<Batch>(body)?.0
        }
        Layout::Json => Ok(vec![decode_step(body).map_err(|error| error.at(0))?]),
    }
}

/// Returns the parts between line breaks.
fn lines_of(body: &[u8]) -> impl Iterator<Item = &[u8]> + Clone {
    let mut rest = Some(body);
    iter::from_fn(move || {
        let body = rest?;
        let at = memchr::memchr(b'\n', body).unwrap_or(body.len());
        let (line, more) = body.split_at_checked(at)?;
        rest = more.get(1..);
        Some(line)
    })
}

/// Decodes up to `n_records` one after another. One shares the names of the record before it.
fn in_turn<'a>(
    records: impl Iterator<Item = &'a [u8]>,
    n_records: usize,
) -> Result<Vec<StepSample>, DecodeError> {
    let mut samples = Vec::with_capacity(n_records.min(RECORDS_USUAL));
    let mut raw = RawStep::default();
    for (index, record) in records.enumerate() {
        let sample = raw.parse(record).and_then(|()| raw.checked(samples.last()));
        samples.push(sample.map_err(|error| error.at(index))?);
    }
    Ok(samples)
}

fn check_count(n_records: usize) -> Result<(), DecodeError> {
    if n_records <= RECORDS_MAX {
        return Ok(());
    }
    let problem = DecodeFault::TooManyRecords { n_records, n_max: RECORDS_MAX };
    Err(DecodeError { record: None, field: String::new(), problem })
}

pub(super) fn decode_step(record: &[u8]) -> Result<StepSample, DecodeError> {
    decode_plain_step(record).unwrap_or_else(|| decode_any_step(record))
}

/// Decodes a record as programs write it, without escapes and further blanks; `None` of any
/// other.
pub(super) fn decode_plain_step(record: &[u8]) -> Option<Result<StepSample, DecodeError>> {
    let mut raw = RawStep::default();
    parse_plain(record, Reading(&mut raw))?;
    Some(raw.checked(None))
}

fn decode_any_step(record: &[u8]) -> Result<StepSample, DecodeError> {
    parse::<RawStep<'_>>(record)?.checked(None)
}

/// Returns the name that the record before has, if it is this one; else takes it.
fn name_of<T: Clone>(
    text: &str,
    before: Option<&T>,
    as_str: fn(&T) -> &str,
    take: fn(&str) -> Result<T, DecodeError>,
) -> Result<T, DecodeError> {
    let same = before.filter(|before| as_str(before) == text);
    same.map_or_else(|| take(text), |same| Ok(same.clone()))
}

/// The records of a JSON array, or the first that is invalid. Each is checked as it is read, into
/// one place: a raw one takes more than a KiB.
struct Batch(Result<Vec<StepSample>, DecodeError>);

impl<'de> Deserialize<'de> for Batch {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct BatchVisitor;
        impl<'de> Visitor<'de> for BatchVisitor {
            type Value = Batch;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an array of objects")
            }
            fn visit_seq<A: SeqAccess<'de>>(self, seq: A) -> Result<Batch, A::Error> {
                Batch::read(seq)
            }
        }
        deserializer.deserialize_seq(BatchVisitor)
    }
}

impl Batch {
    fn read<'de, A: SeqAccess<'de>>(mut seq: A) -> Result<Self, A::Error> {
        let mut samples: Vec<StepSample> = Vec::with_capacity(RECORDS_USUAL);
        let mut raw = RawStep::default();
        while seq.next_element_seed(Reading(&mut raw))?.is_some() {
            match raw.checked(samples.last()) {
                Ok(sample) => samples.push(sample),
                Err(error) => {
                    while seq.next_element::<IgnoredAny>()?.is_some() {}
                    return Ok(Self(Err(error.at(samples.len()))));
                }
            }
        }
        Ok(Self(Ok(samples)))
    }
}

/// A key of a record.
#[derive(Clone, Copy, Debug)]
pub struct Key {
    /// The name in JSON.
    pub name: &'static str,
    /// The type that it is decoded as; a required one has no `Option`.
    pub raw: &'static str,
    /// Type, unit and range of its values.
    pub values: &'static str,
    /// The meaning of the key.
    pub meaning: &'static str,
}

impl Key {
    /// Returns whether a record must have it.
    pub fn is_required(&self) -> bool {
        is_required(self.raw)
    }
}

/// Returns whether a key that is decoded as such a type has to be there.
const fn is_required(raw: &str) -> bool {
    !matches!(raw.as_bytes(), [b'O', b'p', b't', b'i', b'o', b'n', ..])
}

/// Makes the two forms of a record, and the table of docs/push.md, of one list of its keys, in the
/// order of recordings: each with the type that it is decoded as, the value that a recording has
/// (`None` for no key), its type, unit and range, and its meaning.
macro_rules! keys {
    (
        ($of:ident, $host:ident, $container:ident)
        $($key:ident: $raw:ty = $value:expr, $values:literal, $meaning:literal;)*
    ) => {
        /// Every key of a record.
        pub const KEYS: &[Key] = &[$(Key {
            name: stringify!($key),
            raw: stringify!($raw),
            values: $values,
            meaning: $meaning,
        }),*];

        #[derive(Default)]
        pub(super) struct RawStep<'a> {
            $($key: $raw,)*
        }

        /// Names one key of a record.
        #[derive(Clone, Copy, Deserialize)]
        #[serde(field_identifier)]
        #[expect(non_camel_case_types, reason = "they are the keys as JSON has them")]
        enum Field {
            $($key,)*
        }

        /// The keys that a record has had so far.
        #[derive(Default)]
        struct Seen {
            $($key: bool,)*
        }

        impl Seen {
            /// Reads the value of a key.
            fn read<'de, A: MapAccess<'de>>(
                &mut self,
                key: Field,
                raw: &mut RawStep<'de>,
                map: &mut A,
            ) -> Result<(), A::Error> {
                match key {
                    $(Field::$key if self.$key => {
                        return Err(A::Error::duplicate_field(stringify!($key)));
                    }
                    Field::$key => {
                        self.$key = true;
                        raw.$key = map.next_value()?;
                    })*
                }
                Ok(())
            }

            /// Checks that none is missing that a record must have.
            fn check<E: serde::de::Error>(&self) -> Result<(), E> {
                $(if const { is_required(stringify!($raw)) } && !self.$key {
                    return Err(E::missing_field(stringify!($key)));
                })*
                Ok(())
            }
        }

        impl Serialize for StepText<'_> {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                let $of = self.0;
                let $host = $of.host.as_deref().copied().unwrap_or_default();
                let $container = $of.container.as_deref();
                let mut record = serializer.serialize_map(None)?;
                $(
                    if let Some(value) = $value {
                        record.serialize_entry(stringify!($key), &value)?;
                    }
                )*
                record.end()
            }
        }
    };
}

/// Reads a record into a place that may have another one, which it clears: to copy a raw record costs
/// more than that.
struct Reading<'r, 'de>(&'r mut RawStep<'de>);

impl<'de> DeserializeSeed<'de> for Reading<'_, 'de> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Reading<'_, 'de> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        *self.0 = RawStep::default();
        let mut seen = Seen::default();
        while let Some(key) = map.next_key::<Field>()? {
            seen.read(key, self.0, &mut map)?;
        }
        seen.check()
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for RawStep<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut raw: RawStep<'de> = RawStep::default();
        Reading(&mut raw).deserialize(deserializer)?;
        Ok(raw)
    }
}

impl<'a> RawStep<'a> {
    /// Reads a record in the place of this one.
    fn parse(&mut self, record: &'a [u8]) -> Result<(), DecodeError> {
        if parse_plain(record, Reading(self)).is_none() {
            *self = parse::<Self>(record)?;
        }
        Ok(())
    }
}

/// A step as the record that it was pushed as.
pub(super) struct StepText<'a>(pub(super) &'a StepSample);

keys! {
    (of, host, container)
    run: Option<Text<'a>> = Some(&of.run),
        "text, 1..=128 bytes, not only blanks, no control or invisible characters \
         (Unicode's default-ignorable ones: bidirectional, zero-width, fillers, variation \
         selectors; also line separators and U+2800), no combining character at its \
         beginning",
        "the training job; `default` if absent";
    attempt: Option<Number> = Some(of.identity.attempt),
        "integer", "restart count of the run, 0 if absent; a higher one starts fresh windows";
    rank: Number = Some(of.rank),
        "integer 0..=1048575", "global rank";
    local_rank: Option<Number> = of.identity.local_rank,
        "integer 0..=1048575", "rank within the node, as torchrun sets it";
    world_size: Option<Number> = of.identity.world_size,
        "integer 1..=1048576", "number of ranks in the run";
    node_rank: Option<Number> = of.identity.node_rank,
        "integer 0..=1048575", "number of the node, as torchrun sets it";
    step: Number = Some(of.figures.step),
        "integer 0..=2^53", "global step just completed";
    total_steps: Option<Number> = of.identity.total_steps,
        "integer 0..=2^53",
        "the value of `step` with which training ends, in each record for as long as it is known \
         ([the end of a run](#the-end-of-a-run)); 0 counts as absent";
    deadline: Option<Number> = of.identity.deadline,
        "Unix seconds, 0..=253402300799",
        "when the run is ended from outside, such as by the time limit of its job; likewise";
    on_deadline: Option<Text<'a>> = of.identity.on_deadline.map(OnDeadline::as_label),
        "`checkpoint`",
        "what the program does when the exporter reports that memory runs out soon, in each record \
         for as long as it would: [write a checkpoint](requests.md#checkpoints)";
    steps: Option<Number> = Some(of.n_steps).filter(|n_steps| *n_steps > 1),
        "integer 1..=1000000",
        "train steps that the record stands for, 1 if absent: this one, and those before it \
         whose memory was not read. Its peaks are the maxima over all of them";
    unit: Option<Text<'a>> = Some(of.identity.unit).filter(|unit| !unit.is_steps()).map(StepUnit::as_label),
        "`steps`, `calls`, `replays`",
        "what `step` and `steps` count, `steps` if absent: [calls](#calls) of a program that takes no \
         steps, such as requests to a server, or iterations that [replay CUDA graphs](#replays)";
    time: Option<Number> = of.time,
        "Unix seconds, 0..=253402300799",
        "when the step ended; the arrival if absent. A time more than 300 s ahead of the \
         arrival is replaced by the arrival and counted as `clock_ahead`";
    step_seconds: Option<Number> = of.figures.step_seconds,
        "seconds", "how long the step took";
    phase: Option<Text<'a>> = phase_text(of),
        "`train`, `eval`, `checkpoint`, `sample`, `idle`, or 1..=32 bytes of letters, digits, \
         `.`, `_`, `-`",
        "what ran since the last record, `train` if absent; `eval`, `checkpoint` and names of \
         the program's own count for peaks only. What is kept after each of up to 16 such names is \
         [compared](#phases). `sample` and `idle` are [records by time](#records-by-time)";
    marks: Option<Vec<Text<'a>>> = Some(of.marks.names()).filter(|names| !names.is_empty()),
        "array of `eval`, `checkpoint`, `epoch`",
        "events since the last record after which memory may be higher: an evaluation, a \
         checkpoint, the start of an epoch";
    device: Option<Text<'a>> = of.identity.device.as_ref(),
        "text, 1..=96 bytes",
        "UUID of the GPU or MIG instance, or `cpu` when the bytes are host memory";
    device_memory: Option<Text<'a>> = of.identity.memory_kind,
        "`unified`, `numa_node`",
        "the kind of the device's memory where that is not its own alone: it is the \
         machine's, or the operating system manages it ([what that \
         changes](host-memory.md#memory-that-device-and-host-share))";
    pid: Option<Number> = of.identity.pid,
        "integer 0..=4194304", "process id of the pusher in its own namespace";
    instance: Option<Text<'a>> = of.instance.map(Instance::digits),
        "text, exactly 16 lower-case hexadecimal digits",
        "random number of the pushing process, the same in all its records; no answer, \
         output or log shows it";
    launch: Option<Text<'a>> = of.launch.as_ref(),
        "text, 1..=64 bytes of letters, digits, `.`, `_`, `:`, `-`; not `.` or `..`",
        "one launch of the run, the same for all its ranks and attempts";
    allocated_bytes: Number = Some(of.figures.allocated),
        "bytes", "live tensor memory at the end of the step";
    requested_bytes: Option<Number> = of.figures.requested,
        "bytes",
        "the part of `allocated_bytes` that the program requested, before the allocator \
         rounds up to blocks. Where it is known, growth and slopes are judged by it";
    live_blocks: Option<Number> = of.figures.live_blocks,
        "count",
        "blocks of the caching allocator that are live at the end of the step, in all its pools \
         (`allocation.all.current`); left out, or 0, where it does not count them";
    peak_allocated_bytes: Option<Number> = of.figures.peak_allocated,
        "bytes", "maximum of allocated memory within the step, or the `steps`";
    reserved_bytes: Option<Number> = of.figures.reserved,
        "bytes",
        "memory that the caching allocator held from the driver at the end of the step";
    peak_reserved_bytes: Option<Number> = of.figures.peak_reserved,
        "bytes", "maximum of reserved memory within the step, or the `steps`";
    high_water_allocated_bytes: Option<Number> = of.high_water_allocated,
        "bytes",
        "maximum of allocated memory since the pusher's process began; never falls within \
         one process";
    high_water_reserved_bytes: Option<Number> = of.high_water_reserved,
        "bytes", "maximum of reserved memory since the pusher's process began";
    private_pools_bytes: Option<Number> = of.figures.private_pools,
        "bytes",
        "the part of `reserved_bytes` in private pools, from which only a CUDA graph or a `MemPool` allocates";
    inactive_split_bytes: Option<Number> = of.figures.inactive_split,
        "bytes", "free parts of split blocks";
    alloc_retries: Option<Number> = of.figures.alloc_retries,
        "count since the process started", "failed mallocs that flushed the cache";
    ooms: Option<Number> = of.figures.ooms,
        "count since the process started", "out-of-memory errors";
    dropped_records: Option<Number> = of.figures.dropped_records,
        "count since the process started",
        "records the pusher gave up on before this one, because its buffer was full or they \
         were refused";
    total_bytes: Option<Number> = of.identity.total,
        "bytes", "capacity of the device as the process sees it";
    free_bytes: Option<Number> = of.figures.free,
        "bytes", "free memory of the device as the process sees it";
    reserved_limit_bytes: Option<Number> = of.identity.reserved_limit,
        "bytes",
        "the most that the allocator may reserve, where the program set less than the \
         device has ([the limits](#limits)). A record without it keeps the last value of \
         its process; one of at least `total_bytes` says that it was lifted, 0 counts as \
         absent";
    process_used_bytes: Option<Number> = of.own_process.and_then(OwnProcessMemory::bytes),
        "bytes",
        "what NVML lists for the pusher's own process on the device, if it was read since \
         the record before; by it the exporter judges memory outside the allocator where \
         its own NVML does not list the process, or was read before. 0 counts as \
         `memory_hidden`";
    process_used_state: Option<Text<'a>> = of.own_process.and_then(OwnProcessMemory::state).map(OwnProcessState::as_label),
        "`foreign_pid_namespace`, `memory_hidden`, `unsupported`, `no_answer`",
        "why `process_used_bytes` is unknown: NVML does not list the process by its own id; \
         lists it without memory; is missing or gives no usable list; hangs";
    host_allocated_bytes: Option<Number> = host.allocated,
        "bytes",
        "host memory of a rank whose other figures are a device's: anonymous and shared, \
         without pages of files and child processes. Judged apart from `allocated_bytes`";
    host_total_bytes: Option<Number> = host.total,
        "bytes",
        "the host memory that its process may use; without `host_allocated_bytes` it has no \
         meaning";
    host_shared_bytes: Option<Number> = host.figures.shared,
        "bytes",
        "shared memory of the rank; part of `host_allocated_bytes`, or of `allocated_bytes` \
         where that is host memory";
    host_split_bytes: Option<Number> = host.figures.split,
        "bytes",
        "the part of `host_shared_bytes` in segments that n ranks map, of which each rank \
         counts one n-th";
    host_pinned_bytes: Option<Number> = host.figures.pinned,
        "bytes",
        "pinned (page-locked) memory that PyTorch's allocator for it holds, in use or cached; \
         a driver may hold it outside of `host_allocated_bytes`";
    host_shm_used_bytes: Option<Number> = host.figures.shm_used,
        "bytes",
        "bytes of the files in `/dev/shm`, whoever made them. The client reads it every second, where \
         its rank is the first of its machine, and leaves it and the next out until they have grown by 32 MiB";
    host_shm_limit_bytes: Option<Number> = host.figures.shm_limit,
        "bytes", "the most that fits into `/dev/shm`";
    workers: Option<Number> = host.workers.count,
        "integer 0..=4194304",
        "processes below the rank's process that `multiprocessing` started (DataLoader \
         workers), except ranks; 0 once they have ended. A record has this field, and the \
         next five, only if they were read since the record before";
    workers_bytes: Option<Number> = host.workers.bytes,
        "bytes",
        "private host memory of them all, summed up; not part of `allocated_bytes`. Left \
         out where it cannot be read; without the count it has no meaning";
    child_processes: Option<Number> = host.others.count,
        "integer 0..=4194304", "other processes below the rank's process, except ranks";
    child_processes_bytes: Option<Number> = host.others.bytes,
        "bytes", "private host memory of them all, as `workers_bytes`";
    workers_own_bytes: Option<Number> = host.workers.own,
        "bytes",
        "the part of `workers_bytes` that does not come from pages that stopped being shared: what \
         each held when it was first read, and its anonymous memory's growth since. Growth of this is \
         judged";
    child_processes_own_bytes: Option<Number> = host.others.own,
        "bytes", "the same part of `child_processes_bytes`";
    host_children_shared_bytes: Option<Number> = host.figures.children_shared,
        "bytes",
        "anonymous memory that these processes share with others, summed up: the most that they take if \
         all of it stops being shared";
    host_children_unread: Option<Number> = host.figures.children_unread,
        "integer 0..=4194304",
        "processes below the rank's process beyond the 256 that the client reads; the memory of all is \
         unknown then. Left out until there are any";
    data_limit_bytes: Option<Number> = host.data.limit,
        "bytes", "`ulimit -d` of the process; absence and 0 are as in `reserved_limit_bytes`";
    data_used_bytes: Option<Number> = host.data.used,
        "bytes",
        "the private writable mappings that it limits. One without the other has no meaning";
    address_space_limit_bytes: Option<Number> = host.address_space.limit,
        "bytes", "`ulimit -v` of the process, likewise";
    address_space_used_bytes: Option<Number> = host.address_space.used,
        "bytes", "its address space, likewise";
    malloc_used_bytes: Option<Number> = host.malloc.used,
        "bytes",
        "what glibc's allocator has given out in the pusher's process, if it was read since \
         the record before ([when](host-memory.md#what-malloc-keeps)). One of this and the next \
         without the other has no meaning";
    malloc_free_bytes: Option<Number> = host.malloc.free,
        "bytes", "what was freed and stays with the allocator, likewise";
    malloc_threads_bytes: Option<Number> = host.malloc.of_threads,
        "bytes",
        "the part of both that is in arenas other than the first, likewise; left out where that is \
         unknown";
    container: Option<Text<'a>> = container.map(|of| &of.id),
        "text, 1..=64 bytes, as `run`",
        "the control group that limits the host memory of the pusher's process: its \
         container's, or one around it. The same name for all its processes, and no other \
         group's. A record has these fields only if they were read since the record before";
    container_limit_bytes: Option<Number> = container.map(|of| of.limit),
        "bytes, 1..=2^53",
        "its limit; without it, or without `container`, the others have no meaning";
    container_used_bytes: Option<Number> = container.and_then(|of| of.used),
        "bytes",
        "what its processes hold that the kernel cannot reclaim: anonymous and shared \
         memory and the kernel's own, without pages of files";
    container_oom_kills: Option<Number> = container.and_then(|of| of.oom_kills),
        "count",
        "processes of the group that the kernel killed for lack of memory, by its own count";
}

impl RawStep<'_> {
    /// Checks it. It shares the names of the record before it, where they are the same.
    pub(super) fn checked(
        &self,
        before: Option<&StepSample>,
    ) -> Result<StepSample, DecodeError> {
        let host = self.host()?;
        let container = self.container()?;
        let own_process = self.own_process()?;
        let phase = self.phase.as_ref().map(|phase| phase_of(&phase.0));
        let (phase, phase_name) = phase.transpose()?.unwrap_or_default();
        let run = self.run.as_ref().map_or(RUN_DEFAULT, |run| &run.0);
        let launch = |text: &Text<'_>| {
            let before = before.and_then(|before| before.launch.as_ref());
            name_of(&text.0, before, Launch::as_str, launch_of)
        };
        Ok(StepSample {
            run: name_of(run, before.map(|before| &before.run), Run::as_str, run_of)?,
            rank: rank_of("rank", self.rank)?,
            identity: self.identity(before)?,
            figures: self.figures()?,
            n_steps: optional(self.steps, |n| small_of("steps", n, 1, STEPS_PER_RECORD_MAX))?
                .unwrap_or(1),
            time: optional(self.time, |n| seconds_of("time", n))?,
            phase,
            phase_name,
            marks: marks_of(self.marks.as_deref().unwrap_or_default())?,
            instance: self.instance.as_ref().map(|text| instance_of(&text.0)).transpose()?,
            launch: self.launch.as_ref().map(launch).transpose()?,
            high_water_allocated: bytes(
                "high_water_allocated_bytes",
                self.high_water_allocated_bytes,
            )?,
            high_water_reserved: bytes(
                "high_water_reserved_bytes",
                self.high_water_reserved_bytes,
            )?,
            own_process,
            host,
            container,
        })
    }

    /// Returns the identity that the rank reports.
    fn identity(&self, before: Option<&StepSample>) -> Result<Identity, DecodeError> {
        let rank = |field, raw: Option<Number>| optional(raw, |n| rank_of(field, n));
        let device = |text: &Text<'_>| {
            let before = before.and_then(|before| before.identity.device.as_ref());
            name_of(&text.0, before, GpuUuid::as_str, device_of)
        };
        let kind = self.device_memory.as_ref().map(|text| memory_kind_of(&text.0));
        Ok(Identity {
            attempt: optional(self.attempt, |n| count_of("attempt", n))?.unwrap_or_default(),
            device: self.device.as_ref().map(device).transpose()?,
            memory_kind: kind.transpose()?,
            pid: optional(self.pid, |n| small_of("pid", n, 0, PID_MAX))?,
            local_rank: rank("local_rank", self.local_rank)?,
            node_rank: rank("node_rank", self.node_rank)?,
            world_size: optional(self.world_size, |n| {
                small_of("world_size", n, 1, Rank::MAX + 1)
            })?,
            total: bytes("total_bytes", self.total_bytes)?,
            reserved_limit: bytes("reserved_limit_bytes", self.reserved_limit_bytes)?,
            total_steps: optional(self.total_steps, |n| count_of("total_steps", n))?
                .filter(|total| total.get() > 0),
            deadline: optional(self.deadline, |n| seconds_of("deadline", n))?
                .filter(|deadline| deadline.get() > 0.0),
            on_deadline: self
                .on_deadline
                .as_ref()
                .map(|text| on_deadline_of(&text.0))
                .transpose()?,
            unit: self
                .unit
                .as_ref()
                .map(|text| unit_of(&text.0))
                .transpose()?
                .unwrap_or_default(),
        })
    }

    /// Returns the figures of the step.
    fn figures(&self) -> Result<StepFigures, DecodeError> {
        let count = |field, raw: Option<Number>| optional(raw, |n| count_of(field, n));
        Ok(StepFigures {
            step: count_of("step", self.step)?,
            step_seconds: optional(self.step_seconds, |n| seconds_of("step_seconds", n))?,
            allocated: bytes_of("allocated_bytes", self.allocated_bytes)?,
            requested: bytes("requested_bytes", self.requested_bytes)?,
            live_blocks: count("live_blocks", self.live_blocks)?,
            peak_allocated: bytes("peak_allocated_bytes", self.peak_allocated_bytes)?,
            reserved: bytes("reserved_bytes", self.reserved_bytes)?,
            peak_reserved: bytes("peak_reserved_bytes", self.peak_reserved_bytes)?,
            private_pools: bytes("private_pools_bytes", self.private_pools_bytes)?,
            inactive_split: bytes("inactive_split_bytes", self.inactive_split_bytes)?,
            alloc_retries: count("alloc_retries", self.alloc_retries)?,
            ooms: count("ooms", self.ooms)?,
            dropped_records: count("dropped_records", self.dropped_records)?,
            free: bytes("free_bytes", self.free_bytes)?,
        })
    }

    /// Returns the process's own memory on the device. A process that uses it holds some: a
    /// driver that hides that answers 0. Known bytes make the state meaningless.
    fn own_process(&self) -> Result<Option<OwnProcessMemory>, DecodeError> {
        let bytes = optional(self.process_used_bytes, |n| bytes_of("process_used_bytes", n))?;
        let state = self.process_used_state.as_ref();
        let state = state.map(|text| own_process_state_of(&text.0)).transpose()?;
        let known = |bytes: Bytes| match bytes.get() {
            0 => OwnProcessMemory::Unknown(OwnProcessState::MemoryHidden),
            _ => OwnProcessMemory::Known(bytes),
        };
        Ok(bytes.map(known).or(state.map(OwnProcessMemory::Unknown)))
    }

    /// Returns host memory next to the figures of `device`; `None` of a record without any.
    fn host(&self) -> Result<Option<Box<HostParts>>, DecodeError> {
        let count =
            |field, raw: Option<Number>| optional(raw, |n| small_of(field, n, 0, PID_MAX));
        let parts = HostParts {
            allocated: bytes("host_allocated_bytes", self.host_allocated_bytes)?,
            total: bytes("host_total_bytes", self.host_total_bytes)?,
            figures: HostFigures {
                shared: bytes("host_shared_bytes", self.host_shared_bytes)?,
                split: bytes("host_split_bytes", self.host_split_bytes)?,
                pinned: bytes("host_pinned_bytes", self.host_pinned_bytes)?,
                shm_used: bytes("host_shm_used_bytes", self.host_shm_used_bytes)?,
                shm_limit: bytes("host_shm_limit_bytes", self.host_shm_limit_bytes)?,
                children_unread: count("host_children_unread", self.host_children_unread)?,
                children_shared: bytes(
                    "host_children_shared_bytes",
                    self.host_children_shared_bytes,
                )?,
            },
            workers: ProcessGroup {
                count: count("workers", self.workers)?,
                bytes: bytes("workers_bytes", self.workers_bytes)?,
                own: bytes("workers_own_bytes", self.workers_own_bytes)?,
            },
            others: ProcessGroup {
                count: count("child_processes", self.child_processes)?,
                bytes: bytes("child_processes_bytes", self.child_processes_bytes)?,
                own: bytes("child_processes_own_bytes", self.child_processes_own_bytes)?,
            },
            data: KernelLimit {
                limit: bytes("data_limit_bytes", self.data_limit_bytes)?,
                used: bytes("data_used_bytes", self.data_used_bytes)?,
            },
            address_space: KernelLimit {
                limit: bytes("address_space_limit_bytes", self.address_space_limit_bytes)?,
                used: bytes("address_space_used_bytes", self.address_space_used_bytes)?,
            },
            malloc: MallocReading {
                used: bytes("malloc_used_bytes", self.malloc_used_bytes)?,
                free: bytes("malloc_free_bytes", self.malloc_free_bytes)?,
                of_threads: bytes("malloc_threads_bytes", self.malloc_threads_bytes)?,
            },
        };
        Ok((parts != HostParts::default()).then(|| Box::new(parts)))
    }

    /// Returns the container; `None` where its name or its limit is missing.
    fn container(&self) -> Result<Option<Box<ContainerReading>>, DecodeError> {
        let id = self.container.as_ref().map(|text| container_of(&text.0)).transpose()?;
        let limit = optional(self.container_limit_bytes, limit_of)?;
        let used =
            optional(self.container_used_bytes, |n| bytes_of("container_used_bytes", n))?;
        let oom_kills =
            optional(self.container_oom_kills, |n| count_of("container_oom_kills", n))?;
        let known = id.zip(limit);
        Ok(known.map(|(id, limit)| Box::new(ContainerReading { id, limit, used, oom_kills })))
    }
}

fn bytes(field: &'static str, raw: Option<Number>) -> Result<Option<Bytes>, DecodeError> {
    optional(raw, |n| bytes_of(field, n))
}

/// Returns the limit of a container: without one it sends none, and a limit of 0 is none.
fn limit_of(raw: Number) -> Result<Bytes, DecodeError> {
    let field = "container_limit_bytes";
    in_field(field, raw.integer(1, INTEGER_MAX))?;
    bytes_of(field, raw)
}

fn phase_of(text: &str) -> Result<(Phase, Option<PhaseName>), DecodeError> {
    let known = Phase::ALL.into_iter().find(|phase| phase.as_label() == text);
    if let Some(phase) = known.filter(|phase| *phase != Phase::Named) {
        return Ok((phase, None));
    }
    let name = in_field("phase", PhaseName::new(text))?;
    Ok((Phase::Named, Some(name)))
}

fn phase_text(of: &StepSample) -> Option<&str> {
    let name = of.phase_name.as_ref().map(PhaseName::as_str);
    let known = Some(of.phase.as_label()).filter(|_| of.phase != Phase::default());
    name.or(known)
}

fn own_process_state_of(text: &str) -> Result<OwnProcessState, DecodeError> {
    let named = OwnProcessState::ALL.into_iter().find(|state| state.as_label() == text);
    let labels = || OwnProcessState::ALL.map(OwnProcessState::as_label).join(", ");
    let fault = || DecodeFault::NotOneOf(text.to_owned(), labels());
    in_field("process_used_state", named.ok_or_else(fault))
}

fn memory_kind_of(text: &str) -> Result<DeviceMemoryKind, DecodeError> {
    let named = DeviceMemoryKind::ALL.into_iter().find(|kind| kind.as_label() == text);
    let labels = || DeviceMemoryKind::ALL.map(DeviceMemoryKind::as_label).join(", ");
    let fault = || DecodeFault::NotOneOf(text.to_owned(), labels());
    in_field("device_memory", named.ok_or_else(fault))
}

fn on_deadline_of(text: &str) -> Result<OnDeadline, DecodeError> {
    let named = OnDeadline::ALL.into_iter().find(|of| of.as_label() == text);
    let labels = || OnDeadline::ALL.map(OnDeadline::as_label).join(", ");
    let fault = || DecodeFault::NotOneOf(text.to_owned(), labels());
    in_field("on_deadline", named.ok_or_else(fault))
}

fn unit_of(text: &str) -> Result<StepUnit, DecodeError> {
    let labels = || StepUnit::ALL.map(StepUnit::as_label).join(", ");
    let fault = || DecodeFault::NotOneOf(text.to_owned(), labels());
    in_field("unit", StepUnit::from_label(text).ok_or_else(fault))
}

fn marks_of(names: &[Text<'_>]) -> Result<MarkSet, DecodeError> {
    let mut marks = MarkSet::default();
    for Text(name) in names {
        let mark = StepMark::ALL.into_iter().find(|mark| mark.as_label() == name);
        let labels = || StepMark::ALL.map(StepMark::as_label).join(", ");
        marks.add(in_field(
            "marks",
            mark.ok_or_else(|| DecodeFault::NotOneOf(name.to_string(), labels())),
        )?);
    }
    Ok(marks)
}

#[cfg(test)]
mod tests {
    use super::{decode_any_step, decode_plain_step, decode_step};

    #[test]
    fn plain_record_is_read_as_in_general() {
        let plain: [&[u8]; 8] = [
            br#"{"rank":0,"step":1,"allocated_bytes":1}"#,
            br#"{"run":"a","rank":3,"world_size":4,"device":"GPU-0","pid":17,"step":1,"time":1763051882.282,"phase":"eval","allocated_bytes":9007199254740992}"#,
            "{\"run\":\"größe\",\"rank\":0,\"step\":18446744073709551615,\"allocated_bytes\":1}".as_bytes(),
            br#"{"rank":0,"step":1,"allocated_bytes":1.0}"#,
            br#"{"rank":0,"step":1,"time":0.1234567890123456789,"allocated_bytes":1}"#,
            br#"{"rank":1048576,"step":1,"phase":"none","allocated_bytes":1}"#,
            br#"{"run": "a", "rank": 0, "step": 1, "time": 5.25, "allocated_bytes": 1}"#,
            br#"{"rank":0,"step":1,"unit":"calls","allocated_bytes":1}"#,
        ];
        for (idx, record) in plain.into_iter().enumerate() {
            // The third has a digit too many.
            assert_eq!(decode_plain_step(record).is_some(), idx != 2);
            assert_eq!(decode_step(record).ok(), decode_any_step(record).ok());
        }
    }

    #[test]
    fn record_that_is_not_plain_is_left_to_the_general_decoder() {
        for record in [
            "",
            "{}",
            "[]",
            r#"{"rank":0,"step":1}"#,
            r#"{"rank" :0,"step":1,"allocated_bytes":1}"#,
            r#"{"rank":  0,"step":1,"allocated_bytes":1}"#,
            r#"{"rank":0 ,"step":1,"allocated_bytes":1}"#,
            r#"{ "rank":0,"step":1,"allocated_bytes":1}"#,
            r#"{"rank":0,"step":1,"allocated_bytes":1, }"#,
            r#"{"rank":0,"step":1,"allocated_bytes":1,}"#,
            r#"{"rank":0,"step":1,"allocated_bytes":1"#,
            r#"{"rank":0,"step":1,"allocated_bytes":1}}"#,
            r#"{,"rank":0,"step":1,"allocated_bytes":1}"#,
            r#"{"rank":0"step":1,"allocated_bytes":1}"#,
            r#"{"rank":00,"step":1,"allocated_bytes":1}"#,
            r#"{"rank":-1,"step":1,"allocated_bytes":1}"#,
            r#"{"rank":0,"step":1,"allocated_bytes":1e3}"#,
            r#"{"rank":0,"step":1,"time":1.,"allocated_bytes":1}"#,
            r#"{"rank":0,"step":1,"time":.5,"allocated_bytes":1}"#,
            r#"{"rank":0,"step":1,"allocated_bytes":1,"reserved_bytes":null}"#,
            r#"{"rank":0,"step":1,"step":1,"allocated_bytes":1}"#,
            r#"{"rank":0,"step":1,"allocated_bytes":1,"unknown":1}"#,
            r#"{"rank":0,"step":1,"allocated_bytes":"1"}"#,
            r#"{"rank":0,"step":1,"allocated_bytes":1,"run":5}"#,
            r#"{"rank":0,"step":1,"allocated_bytes":1,"run":"a\u0062"}"#,
            "{\"rank\":0,\"step\":1,\"allocated_bytes\":1,\"run\":\"a\tb\"}",
            r#"{"nvml":true,"time":1.5}"#,
        ] {
            assert!(decode_plain_step(record.as_bytes()).is_none(), "{record}");
            assert_eq!(
                decode_step(record.as_bytes()).ok(),
                decode_any_step(record.as_bytes()).ok()
            );
        }
        assert!(
            decode_plain_step(
                b"{\"run\":\"\xff\",\"rank\":0,\"step\":1,\"allocated_bytes\":1}"
            )
            .is_none()
        );
        let long = format!(
            r#"{{"run":"{}","rank":0,"step":1,"allocated_bytes":1}}"#,
            "a".repeat(4096)
        );
        assert!(decode_plain_step(long.as_bytes()).is_none());
    }
}
