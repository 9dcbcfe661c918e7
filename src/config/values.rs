//! Parsers of single values. An empty value means "none" where a setting may be absent.

use std::net::{SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::time::Duration;

use axum::http::Uri;

use crate::config::error::ValueError;
use crate::config::settings::PushSocket;
use crate::config::token;
use crate::config::web_file::WebFile;
use crate::input::push::deadline::Deadline;
use crate::input::push::http::TokenFile;
use crate::input::push::roles::Token;
use crate::output::otlp::config::{METRICS_PATH, Transport};
use crate::output::web::is_reserved;
use stepmem_types::device::{DevicePod, PodName};
use stepmem_types::units::{Bytes, checked_name, checked_text, parse_size};
use stepmem_types::url::without_user;

/// The default mode of a push socket: the permissions of its directory decide about access,
/// because any process of a node can push to the node's loopback address.
const SOCKET_MODE_DEFAULT: u32 = 0o666;
/// The greatest mode of a socket.
const SOCKET_MODE_MAX: u32 = 0o777;
const RATIO_MAX: f64 = 10.0;
/// Longest name of a workload, in bytes.
const WORKLOAD_BYTES_MAX: usize = 128;
/// The longest duration: a year.
const DURATION_MAX: Duration = Duration::from_hours(366 * 24);

/// Parses an integer of `min..=max`.
pub(super) fn number<N: TryFrom<u64>>(
    min: u64,
    max: impl TryInto<u64>,
) -> impl FnOnce(&str) -> Result<N, ValueError> {
    let max = max.try_into().unwrap_or(u64::MAX);
    move |value| {
        value
            .parse::<u64>()
            .ok()
            .filter(|number| (min..=max).contains(number))
            .and_then(|number| N::try_from(number).ok())
            .ok_or_else(|| ValueError::Integer { value: value.to_owned(), min, max })
    }
}

/// Parses a size in bytes above 0, such as `2GiB`, `512 MB` or `1000000`; empty is none.
pub(super) fn size(value: &str) -> Result<Option<f64>, ValueError> {
    if value.is_empty() {
        return Ok(None);
    }
    parse_size(value).map(Some).ok_or_else(|| ValueError::Size(value.to_owned()))
}

/// Parses the name of a workload; empty is none.
pub(super) fn workload(value: &str) -> Result<Option<Box<str>>, ValueError> {
    if value.is_empty() {
        return Ok(None);
    }
    let name = checked_name(value, WORKLOAD_BYTES_MAX);
    name.map(Some).map_err(|problem| ValueError::Workload(problem.to_string()))
}

/// Parses a size in bytes of `min` to `max`.
pub(super) fn bytes(min: u64, max: u64) -> impl Fn(&str) -> Result<u64, ValueError> {
    move |value| {
        let size = size(value)?.and_then(|bytes| Bytes::rounded(bytes).ok()).map(Bytes::get);
        let outside = || ValueError::SizeRange { value: value.to_owned(), min, max };
        size.filter(|bytes| (min..=max).contains(bytes)).ok_or_else(outside)
    }
}

pub(super) fn ratio(value: &str) -> Result<f64, ValueError> {
    value
        .parse::<f64>()
        .ok()
        .filter(|ratio| (0.0..=RATIO_MAX).contains(ratio))
        .ok_or_else(|| ValueError::Ratio { value: value.to_owned(), max: RATIO_MAX })
}

/// Parses a duration of 0 to a year.
pub(super) fn any_duration(value: &str) -> Result<Duration, ValueError> {
    humantime::parse_duration(value)
        .ok()
        .filter(|duration| *duration <= DURATION_MAX)
        .ok_or_else(|| {
            let is_number =
                !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_digit());
            let error = if is_number { ValueError::UnitMissing } else { ValueError::Duration };
            error(value.to_owned())
        })
}

/// Parses a duration above 0 and up to a year.
pub(super) fn duration(value: &str) -> Result<Duration, ValueError> {
    any_duration(value).and_then(|duration| {
        if duration.is_zero() { Err(ValueError::ZeroDuration) } else { Ok(duration) }
    })
}

/// Parses a time or a duration from the start; empty is none.
pub(super) fn deadline(value: &str) -> Result<Option<Deadline>, ValueError> {
    if value.is_empty() {
        return Ok(None);
    }
    let after = || duration(value).ok().map(Deadline::After);
    let known = Deadline::at(value).or_else(after);
    known.map(Some).ok_or_else(|| ValueError::Deadline(value.to_owned()))
}

pub(super) fn milliseconds(value: &str) -> Result<Duration, ValueError> {
    let parsed = value.parse().map(Duration::from_millis);
    parsed.map_err(|_| ValueError::Milliseconds(value.to_owned()))
}

pub(super) fn switch(value: &str) -> Result<bool, ValueError> {
    match value {
        "true" | "1" => Ok(true),
        "false" | "0" | "" => Ok(false),
        other => Err(ValueError::Switch(other.to_owned())),
    }
}

pub(super) fn one_of(
    allowed: &'static [&'static str],
) -> impl FnOnce(&str) -> Result<String, ValueError> {
    move |value| {
        if allowed.contains(&value) {
            Ok(value.to_owned())
        } else {
            Err(ValueError::Word { value: value.to_owned(), allowed: allowed.join(", ") })
        }
    }
}

pub(super) fn transport(value: &str) -> Result<Option<Transport>, ValueError> {
    match value {
        "" => Ok(None),
        "grpc" => Ok(Some(Transport::Grpc)),
        "http/protobuf" => Ok(Some(Transport::Http)),
        other => Err(ValueError::Transport(other.to_owned())),
    }
}

/// Parses the URL of a receiver of all signals.
pub(super) fn endpoint(value: &str) -> Result<Option<String>, ValueError> {
    if value.is_empty() {
        return Ok(None);
    }
    if ["http://", "https://"].into_iter().all(|scheme| !value.starts_with(scheme)) {
        return Err(ValueError::Url(value.to_owned()));
    }
    if without_user(value).url.parse::<Uri>().is_err() {
        return Err(ValueError::NotAUrl(value.to_owned()));
    }
    match value.trim_end_matches('/').strip_suffix(METRICS_PATH) {
        Some(base) if base.ends_with('/') => Err(ValueError::MetricsUrl {
            value: value.to_owned(),
            base: base.trim_end_matches('/').to_owned(),
        }),
        _ => Ok(Some(value.to_owned())),
    }
}

/// Parses addresses; empty ones are skipped.
pub(super) fn addresses(values: &[String]) -> Result<Vec<SocketAddr>, ValueError> {
    values.iter().filter(|value| !value.is_empty()).map(|value| address(value)).collect()
}

fn address(value: &str) -> Result<SocketAddr, ValueError> {
    let full =
        if value.starts_with(':') { format!("0.0.0.0{value}") } else { value.to_owned() };
    full.to_socket_addrs()
        .ok()
        .and_then(|mut addresses| addresses.next())
        .ok_or_else(|| ValueError::Address(value.to_owned()))
}

pub(super) fn telemetry_path(value: &str) -> Result<String, ValueError> {
    let is_plain =
        |character: char| character.is_ascii_alphanumeric() || "/-_.".contains(character);
    let is_free = !is_reserved(value);
    if value.starts_with('/') && value.chars().all(is_plain) && is_free {
        Ok(value.to_owned())
    } else {
        Err(ValueError::TelemetryPath(value.to_owned()))
    }
}

/// Parses `PATH` or `PATH:MODE`.
pub(super) fn socket(value: &str) -> Result<Option<PushSocket>, ValueError> {
    if value.is_empty() {
        return Ok(None);
    }
    let (path, mode) = match value.rsplit_once(':') {
        Some((path, mode)) => (path, socket_mode(mode)?),
        None => (value, SOCKET_MODE_DEFAULT),
    };
    match absolute(path)? {
        Some(path) => Ok(Some(PushSocket { path, mode })),
        None => Err(ValueError::RelativePath(path.to_owned())),
    }
}

fn socket_mode(mode: &str) -> Result<u32, ValueError> {
    u32::from_str_radix(mode, 8)
        .ok()
        .filter(|mode| *mode <= SOCKET_MODE_MAX)
        .ok_or_else(|| ValueError::Mode(mode.to_owned()))
}

/// Parses a path of any kind.
pub(super) fn path(value: &str) -> Option<PathBuf> {
    (!value.is_empty()).then(|| PathBuf::from(value))
}

pub(super) fn absolute(value: &str) -> Result<Option<PathBuf>, ValueError> {
    match value {
        "" => Ok(None),
        path if path.starts_with('/') => Ok(Some(PathBuf::from(path))),
        path => Err(ValueError::RelativePath(path.to_owned())),
    }
}

/// Parses a pod as `NAMESPACE/NAME`.
pub(super) fn pod(value: &str) -> Result<Option<PodName>, ValueError> {
    if value.is_empty() {
        return Ok(None);
    }
    let part = |text: &str| checked_text(text, DevicePod::NAME_BYTES_MAX).ok();
    let parts = value.split_once('/').filter(|(_, name)| !name.contains('/'));
    parts
        .and_then(|(namespace, name)| {
            Some(PodName { namespace: part(namespace)?, name: part(name)? })
        })
        .map(Some)
        .ok_or_else(|| ValueError::Pod(value.to_owned()))
}

/// Reads the token of a file; empty is none.
pub(super) fn token_file(value: &str) -> Result<Option<TokenFile>, ValueError> {
    let read = |path: PathBuf| {
        let token = Token(token::read(&path)?);
        Ok(TokenFile { path, token })
    };
    path(value).map(read).transpose()
}

/// Reads the file of TLS and users; empty is none.
pub(super) fn web_file(value: &str) -> Result<Option<WebFile>, ValueError> {
    path(value).map(|path| WebFile::read(&path)).transpose()
}

/// Parses names of hosts, without ports.
pub(super) fn hosts(values: &[String]) -> Result<Vec<String>, ValueError> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || ".-_".contains(c);
    let named = values.iter().filter(|value| !value.is_empty());
    named
        .map(|value| {
            let is_name = value.chars().all(is_plain);
            is_name.then(|| value.clone()).ok_or_else(|| ValueError::Host(value.clone()))
        })
        .collect()
}
