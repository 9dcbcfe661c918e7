//! Protection against requests that a browser sends on behalf of foreign pages: checks of Host,
//! Origin and Sec-Fetch-Site, and headers of every answer.

use std::net::{Ipv4Addr, Ipv6Addr};

use axum::http::header::{
    ACCEPT_LANGUAGE, CONTENT_SECURITY_POLICY, HOST, ORIGIN, REFERER, UPGRADE_INSECURE_REQUESTS,
    USER_AGENT, X_CONTENT_TYPE_OPTIONS,
};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, Uri, Version};

/// Endings of names that no public name server answers for, so that no foreign page can have
/// them.
const PRIVATE_ENDINGS: [&str; 5] = [".localhost", ".local", ".internal", ".svc", ".test"];
/// The policy of answers that set none themselves: they are not pages.
const POLICY: &str = "default-src 'none'; frame-ancestors 'none'";
/// The header in which browsers report where the request of a page comes from.
const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");
/// Headers that decide about requests: if one occurs twice, other programs may read the other
/// value.
const ONCE: [HeaderName; 3] = [HOST, ORIGIN, SEC_FETCH_SITE];
/// Headers that browsers send and scrapers do not; a page cannot leave out Accept-Language.
const OF_BROWSERS: [HeaderName; 4] =
    [ORIGIN, REFERER, ACCEPT_LANGUAGE, UPGRADE_INSECURE_REQUESTS];
/// Prefix of the names of headers that only browsers set, and no page can.
const OF_BROWSERS_PREFIX: &str = "sec-";
/// Prefix of every browser's User-Agent.
const BROWSER_AGENT: &[u8] = b"Mozilla/";

/// Checks the requests of one server.
#[derive(Clone, Debug, Default)]
pub struct Guard {
    /// Names by which browsers reach it, next to addresses and private names.
    pub hosts: Vec<String>,
    /// Paths, and beginnings of paths that end in `/`, whose Host is checked for browsers only.
    pub open_paths: Vec<String>,
}

/// Everything of a request before its body.
#[derive(Clone, Copy, Debug)]
pub struct RequestHead<'r> {
    pub method: &'r Method,
    pub uri: &'r Uri,
    pub version: Version,
    pub headers: &'r HeaderMap,
}

/// Reasons that a request is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GuardRefusal {
    /// A head that is not one of HTTP/1.1.
    Malformed(&'static str),
    /// A request that may come from a foreign page.
    Foreign(&'static str),
}

impl Guard {
    /// Checks a request by its head.
    ///
    /// # Errors
    /// The head is malformed, or the request may come from a foreign page.
    pub fn check(&self, head: &RequestHead<'_>) -> Result<(), GuardRefusal> {
        check_form(head)?;
        let RequestHead { method, uri, headers, .. } = head;
        let host = headers.get(HOST).map(HeaderValue::as_bytes);
        if !(*method == Method::GET || *method == Method::HEAD) {
            check_origin(headers, host)?;
        }
        let path = uri.path();
        let is_open = self.open_paths.iter().any(|open| {
            path == open || (open.ends_with('/') && path.starts_with(open.as_str()))
        });
        // A target may name a host, too, which has priority over the header.
        let of_target = uri.authority().map(|authority| authority.as_str().as_bytes());
        let is_known = host.into_iter().chain(of_target).all(|host| self.knows(host));
        if is_known || (is_open && !is_of_browser(headers)) {
            return Ok(());
        }
        Err(GuardRefusal::Foreign(
            "the name in the Host header is not a name of this server: add it to web.allowed-hosts",
        ))
    }

    /// Returns whether no foreign page can have this host: an address, a private name, or a
    /// configured one.
    fn knows(&self, host: &[u8]) -> bool {
        let Some(host) = std::str::from_utf8(host).ok().and_then(HostName::read) else {
            return false;
        };
        let name = match host {
            HostName::Address => return true,
            HostName::Name(name) => name.to_ascii_lowercase(),
        };
        !name.contains('.')
            || PRIVATE_ENDINGS.iter().any(|ending| name.ends_with(ending))
            || name.ends_with(".svc.cluster.local")
            || self.hosts.iter().any(|known| known.eq_ignore_ascii_case(&name))
    }
}

/// A host, in the form of RFC 3986.
enum HostName<'h> {
    Address,
    /// A name, without the dot that ends a full one.
    Name(&'h str),
}

impl<'h> HostName<'h> {
    /// Reads a Host header; `None` for any other form, such as one with a user or a second
    /// port.
    fn read(host: &'h str) -> Option<Self> {
        let is_port = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
        if let Some(rest) = host.strip_prefix('[') {
            let (address, port) = rest.split_once(']')?;
            let is_whole = port.is_empty() || port.strip_prefix(':').is_some_and(is_port);
            return (is_whole && address.parse::<Ipv6Addr>().is_ok()).then_some(Self::Address);
        }
        let name = match host.split_once(':') {
            Some((name, port)) if is_port(port) => name,
            Some(_) => return None,
            None => host,
        };
        if name.parse::<Ipv4Addr>().is_ok() {
            return Some(Self::Address);
        }
        let name = name.strip_suffix('.').unwrap_or(name);
        let is_label = |label: &str| {
            let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
            !label.is_empty() && label.bytes().all(is_plain)
        };
        name.split('.').all(is_label).then_some(Self::Name(name))
    }
}

/// Checks that a head has the form that HTTP/1.1 requires, and that each header that decides
/// comes once.
fn check_form(head: &RequestHead<'_>) -> Result<(), GuardRefusal> {
    let RequestHead { version, headers, .. } = head;
    if *version == Version::HTTP_11 && !headers.contains_key(HOST) {
        return Err(GuardRefusal::Malformed("an HTTP/1.1 request must have a Host header"));
    }
    if ONCE.iter().any(|name| headers.get_all(name).iter().nth(1).is_some()) {
        return Err(GuardRefusal::Malformed(
            "a request must have one Host header, and at most one Origin and one Sec-Fetch-Site",
        ));
    }
    Ok(())
}

/// Checks that a request that changes something does not come from a page of another site or
/// origin.
fn check_origin(headers: &HeaderMap, host: Option<&[u8]>) -> Result<(), GuardRefusal> {
    let is_own = |site: &HeaderValue| [&b"same-origin"[..], b"none"].contains(&site.as_bytes());
    if headers.get(SEC_FETCH_SITE).is_some_and(|site| !is_own(site)) {
        return Err(GuardRefusal::Foreign("the request comes from a page of another site"));
    }
    let Some(origin) = headers.get(ORIGIN) else { return Ok(()) };
    let of_origin = origin.as_bytes().split(|byte| *byte == b'/').nth(2);
    let is_same = of_origin.zip(host).is_some_and(|(of, host)| of.eq_ignore_ascii_case(host));
    if is_same {
        Ok(())
    } else {
        Err(GuardRefusal::Foreign("the request comes from a page of another origin"))
    }
}

/// Returns whether a head has headers that only browsers send.
fn is_of_browser(headers: &HeaderMap) -> bool {
    let is_browser = |agent: &HeaderValue| {
        let beginning = agent.as_bytes().get(..BROWSER_AGENT.len());
        beginning.is_some_and(|beginning| beginning.eq_ignore_ascii_case(BROWSER_AGENT))
    };
    OF_BROWSERS.iter().any(|name| headers.contains_key(name))
        || headers.keys().any(|name| name.as_str().starts_with(OF_BROWSERS_PREFIX))
        || headers.get_all(USER_AGENT).iter().any(is_browser)
}

/// Adds the headers with which every answer instructs browsers, unless the answer has its own.
pub(super) fn complete(headers: &mut HeaderMap) {
    headers.entry(X_CONTENT_TYPE_OPTIONS).or_insert(HeaderValue::from_static("nosniff"));
    headers.entry(CONTENT_SECURITY_POLICY).or_insert(HeaderValue::from_static(POLICY));
}
