//! The file of `--web.config.file`: TLS, users, headers and a rate of the listeners over TCP,
//! in the format that the exporters of Prometheus share. The files that it names are read with
//! it; their paths are relative to its own.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use axum::http::{HeaderMap, HeaderName, HeaderValue};
use bcrypt::HashParts;
use serde::Deserialize;

use crate::config::error::ValueError;
use crate::config::yaml;
use crate::net::access::{AccessPolicy, RateLimit};
use crate::net::passwords::HASH_COST_MAX;
use crate::net::tls_config::{ClientAuth, PrivateKey, TlsSettings, TlsVersion};
use crate::store::open;

/// The longest file, in bytes: this one, and each that it names.
const WEB_FILE_BYTES_MAX: u64 = 256 * 1024;
/// The headers that can be set, and the allowed values; any if the list is empty.
const HEADERS: [(&str, &[&str]); 5] = [
    ("Strict-Transport-Security", &[]),
    ("X-Content-Type-Options", &["nosniff"]),
    ("X-Frame-Options", &["deny", "sameorigin"]),
    ("X-XSS-Protection", &[]),
    ("Content-Security-Policy", &[]),
];

/// The file with its content as read.
#[derive(Clone)]
pub struct WebFile {
    path: PathBuf,
    content: WebContent,
    policy: Arc<AccessPolicy>,
}

/// The contents of the file and of those that it names.
#[derive(Clone, PartialEq)]
struct WebContent {
    raw: RawWebFile,
    tls: Option<TlsSettings>,
}

#[derive(Clone, Default, Deserialize, PartialEq)]
#[serde(default, deny_unknown_fields)]
struct RawWebFile {
    tls_server_config: Option<RawTls>,
    http_server_config: Option<RawHttp>,
    basic_auth_users: Option<BTreeMap<String, String>>,
    rate_limit: Option<RawRate>,
}

#[derive(Clone, Default, Deserialize, PartialEq)]
#[serde(default, deny_unknown_fields)]
struct RawTls {
    cert: Option<String>,
    key: Option<String>,
    client_ca: Option<String>,
    cert_file: Option<PathBuf>,
    key_file: Option<PathBuf>,
    client_ca_file: Option<PathBuf>,
    client_auth_type: Option<String>,
    client_allowed_sans: Option<Vec<String>>,
    min_version: Option<String>,
    max_version: Option<String>,
    cipher_suites: Option<Vec<String>>,
    prefer_server_cipher_suites: Option<bool>,
    curve_preferences: Option<Vec<String>>,
}

#[derive(Clone, Debug, Default, Deserialize, PartialEq)]
#[serde(default, deny_unknown_fields)]
struct RawHttp {
    /// Parsed, but without effect: clients agree on HTTP/1.1.
    http2: Option<bool>,
    headers: Option<BTreeMap<String, String>>,
}

#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
struct RawRate {
    interval: RawInterval,
    #[serde(default)]
    burst: u32,
}

/// A duration in Go's form: with a unit, or in nanoseconds.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(untagged)]
enum RawInterval {
    Nanoseconds(u64),
    Text(String),
}

impl fmt::Debug for WebFile {
    /// Names the file and leaves out its keys and hashes.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WebFile").field("path", &self.path).finish_non_exhaustive()
    }
}

impl WebFile {
    /// Reads the file and those that it names.
    ///
    /// # Errors
    /// One of them cannot be read, or a key or value is wrong.
    pub fn read(path: &Path) -> Result<Self, ValueError> {
        let shown = || path.display().to_string();
        let content = read_content(path)?;
        let policy =
            content.policy().map_err(|reason| ValueError::WebFile { path: shown(), reason })?;
        Ok(Self { path: path.to_owned(), content, policy: Arc::new(policy) })
    }

    /// Reads it again; `None` if nothing changed.
    ///
    /// # Errors
    /// As of [`Self::read`]; or the new content would open access that was closed, as an empty
    /// file does.
    pub fn reread(&self) -> Result<Option<Self>, ValueError> {
        if read_content(&self.path)? == self.content {
            return Ok(None);
        }
        let fresh = Self::read(&self.path)?;
        let refuse = |reason: &str| {
            let path = self.path.display().to_string();
            Err(ValueError::WebFile { path, reason: reason.to_owned() })
        };
        if fresh.speaks_tls() != self.speaks_tls() {
            return refuse("only a restart can add or remove tls_server_config");
        }
        if fresh.policy.users.is_empty() && !self.policy.users.is_empty() {
            return refuse("only a restart can remove basic_auth_users");
        }
        Ok(Some(fresh))
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns a sentence if other users of this machine may read the key of TLS.
    pub fn warning(&self) -> Option<String> {
        let tls = self.content.raw.tls_server_config.as_ref()?;
        let (key, place) = match (&tls.key_file, &tls.key) {
            (Some(file), _) => ("key_file", self.path.parent()?.join(file)),
            (None, Some(_)) => ("key", self.path.clone()),
            (None, None) => return None,
        };
        let mode = open::public_mode(&place)?;
        Some(format!(
            "{}: tls_server_config.{key}: every user of this machine can read {} (mode {mode:o}); chmod o= prevents that",
            self.path.display(),
            place.display()
        ))
    }

    /// Returns the access rules for clients.
    pub fn policy(&self) -> Arc<AccessPolicy> {
        Arc::clone(&self.policy)
    }

    /// Returns whether every client over TCP shows a password, or a certificate of an
    /// authority.
    pub fn knows_clients(&self) -> bool {
        let verifies = |tls: &TlsSettings| tls.client_auth == ClientAuth::RequireAndVerify;
        !self.policy.users.is_empty() || self.content.tls.as_ref().is_some_and(verifies)
    }

    /// Returns whether the listeners speak TLS.
    pub fn speaks_tls(&self) -> bool {
        self.content.tls.is_some()
    }
}

fn read_content(path: &Path) -> Result<WebContent, ValueError> {
    let bytes = read_file(path)?;
    let wrong =
        |reason: String| ValueError::WebFile { path: path.display().to_string(), reason };
    let text = String::from_utf8(bytes).map_err(|error| wrong(error.to_string()))?;
    let raw: Option<RawWebFile> = yaml::read(&text).map_err(wrong)?;
    let raw = raw.unwrap_or_default();
    let folder = path.parent().unwrap_or(Path::new(""));
    let of_tls = raw.tls_server_config.clone().filter(|tls| *tls != RawTls::default());
    let tls = of_tls.map(|tls| tls.read(folder)).transpose();
    let tls = tls.map_err(|reason| wrong(format!("tls_server_config.{reason}")))?;
    Ok(WebContent { raw, tls })
}

fn read_file(path: &Path) -> Result<Vec<u8>, ValueError> {
    open::read_regular(path, WEB_FILE_BYTES_MAX).map_err(|error| ValueError::Unreadable {
        path: path.display().to_string(),
        reason: error.to_string(),
    })
}

impl RawTls {
    /// Reads the files.
    fn read(self, folder: &Path) -> Result<TlsSettings, String> {
        let part = |name: &str, text: Option<String>, file: Option<PathBuf>| match (text, file)
        {
            (Some(_), Some(_)) => Err(format!("{name}: {name}_file is set too")),
            (Some(text), None) => Ok(Some(text.into_bytes())),
            (None, Some(file)) => read_file(&folder.join(file))
                .map(Some)
                .map_err(|error| format!("{name}_file: {error}")),
            (None, None) => Ok(None),
        };
        let certificates = part("cert", self.cert, self.cert_file)?;
        let key = part("key", self.key, self.key_file)?;
        let lowest = version("min_version", self.min_version.as_deref(), TlsVersion::Tls12)?;
        let highest = version("max_version", self.max_version.as_deref(), TlsVersion::Tls13)?;
        Ok(TlsSettings {
            certificates: certificates.ok_or("cert_file: it is missing")?,
            key: PrivateKey(key.ok_or("key_file: it is missing")?),
            client_authorities: part("client_ca", self.client_ca, self.client_ca_file)?,
            client_auth: client_auth(self.client_auth_type.as_deref().unwrap_or_default())?,
            allowed_names: self.client_allowed_sans,
            versions: [lowest, highest],
            cipher_suites: self.cipher_suites.unwrap_or_default(),
            prefers_own_suites: self.prefer_server_cipher_suites.unwrap_or(true),
            curves: self.curve_preferences.unwrap_or_default(),
        })
    }
}

fn version(
    key: &str,
    name: Option<&str>,
    by_default: TlsVersion,
) -> Result<TlsVersion, String> {
    match name {
        None => Ok(by_default),
        Some("TLS12") => Ok(TlsVersion::Tls12),
        Some("TLS13") => Ok(TlsVersion::Tls13),
        Some(other) => Err(format!("{key}: {other:?} is neither TLS12 nor TLS13")),
    }
}

fn client_auth(name: &str) -> Result<ClientAuth, String> {
    match name {
        "" | "NoClientCert" => Ok(ClientAuth::None),
        "RequestClientCert" => Ok(ClientAuth::Request),
        "RequireAnyClientCert" | "RequireClientCert" => Ok(ClientAuth::RequireAny),
        "VerifyClientCertIfGiven" => Ok(ClientAuth::VerifyIfGiven),
        "RequireAndVerifyClientCert" => Ok(ClientAuth::RequireAndVerify),
        other => Err(format!(
            "client_auth_type: {other:?} is none of NoClientCert, RequestClientCert, \
             RequireAnyClientCert, VerifyClientCertIfGiven, RequireAndVerifyClientCert"
        )),
    }
}

impl WebContent {
    /// Returns the access rules for clients; an error names the key.
    fn policy(&self) -> Result<AccessPolicy, String> {
        let tls = self.tls.as_ref().map(TlsSettings::server).transpose();
        let headers =
            self.raw.http_server_config.as_ref().and_then(|http| http.headers.as_ref());
        Ok(AccessPolicy {
            tls: tls.map_err(|error| format!("tls_server_config.{error}"))?,
            users: users(self.raw.basic_auth_users.clone().unwrap_or_default())?,
            headers: headers.map(header_map).transpose()?.unwrap_or_default(),
            rate: self.raw.rate_limit.as_ref().map(rate).transpose()?.flatten(),
        })
    }
}

/// Returns the users. Refuses hashes whose comparison takes too long.
fn users(users: BTreeMap<String, String>) -> Result<BTreeMap<String, String>, String> {
    for (user, hash) in &users {
        // The hash itself is a secret.
        let parts = hash.parse::<HashParts>();
        let cost = parts
            .map_err(|_| format!("basic_auth_users.{user}: it is not a bcrypt hash"))?
            .get_cost();
        if cost > HASH_COST_MAX {
            return Err(format!(
                "basic_auth_users.{user}: cost {cost} exceeds {HASH_COST_MAX}"
            ));
        }
    }
    Ok(users)
}

fn header_map(headers: &BTreeMap<String, String>) -> Result<HeaderMap, String> {
    let mut map = HeaderMap::new();
    for (name, value) in headers {
        let key = format!("http_server_config.headers.{name}");
        let known = HEADERS.iter().find(|(known, _)| known == name);
        let (_, allowed) = known.ok_or_else(|| {
            let names = HEADERS.map(|(name, _)| name).join(", ");
            format!("{key}: this header cannot be set; these can: {names}")
        })?;
        if value.is_empty() {
            continue;
        }
        if !allowed.is_empty() && !allowed.contains(&value.as_str()) {
            return Err(format!("{key}: {value:?} is none of {}", allowed.join(", ")));
        }
        let of_name = HeaderName::try_from(name.as_str());
        let of_value = HeaderValue::try_from(value.as_str());
        let (Ok(of_name), Ok(of_value)) = (of_name, of_value) else {
            return Err(format!("{key}: {value:?} cannot be a header's value"));
        };
        map.insert(of_name, of_value);
    }
    Ok(map)
}

/// Returns the rate; `None` at an interval of 0.
fn rate(raw: &RawRate) -> Result<Option<RateLimit>, String> {
    let interval = match &raw.interval {
        RawInterval::Nanoseconds(n) => Duration::from_nanos(*n),
        RawInterval::Text(text) => humantime::parse_duration(text).map_err(|_| {
            format!("rate_limit.interval: {text:?} is not a duration such as 100ms")
        })?,
    };
    if interval.is_zero() {
        return Ok(None);
    }
    if raw.burst == 0 {
        return Err("rate_limit.burst: it is 0, so no request would be answered".to_owned());
    }
    Ok(Some(RateLimit { interval, burst: raw.burst }))
}
