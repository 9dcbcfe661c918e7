//! What keeps a browser from being turned against a server: the Host, Origin and Sec-Fetch-Site of requests that a
//! browser can send, and headers of every answer.

use std::net::IpAddr;

use axum::http::header::{CONTENT_SECURITY_POLICY, HOST, ORIGIN, X_CONTENT_TYPE_OPTIONS};
use axum::http::{HeaderMap, HeaderValue, Method};

/// Endings of names that no public name server answers for, so that no page of others can have them.
const PRIVATE_ENDINGS: [&str; 5] = [".localhost", ".local", ".internal", ".svc", ".test"];
/// The policy of answers that bring none of their own: they are no pages.
const POLICY: &str = "default-src 'none'; frame-ancestors 'none'";

/// Checks the requests of one server.
#[derive(Clone, Debug, Default)]
pub struct Guard {
    /// Names by which browsers reach it, beside addresses and private names.
    pub hosts: Vec<String>,
    /// Paths, and beginnings of paths that end in `/`, whose Host is checked for browsers only.
    pub open_paths: Vec<String>,
}

/// Why a request is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GuardRefusal(pub &'static str);

impl Guard {
    /// Checks a request by its head.
    ///
    /// # Errors
    /// It may come from a page of others.
    pub fn check(
        &self,
        method: &Method,
        path: &str,
        headers: &HeaderMap,
    ) -> Result<(), GuardRefusal> {
        let origin = headers.get(ORIGIN);
        let site = headers.get("sec-fetch-site");
        let is_of_browser = origin.is_some() || site.is_some();
        let changes = !(method == Method::GET || method == Method::HEAD);
        if changes
            && let Some(site) = site
            && ![&b"same-origin"[..], b"none"].contains(&site.as_bytes())
        {
            return Err(GuardRefusal("the request comes from a page of another site"));
        }
        let host = headers.get(HOST).map(HeaderValue::as_bytes);
        if changes && let Some(origin) = origin {
            let of_origin = origin.as_bytes().split(|byte| *byte == b'/').nth(2);
            let is_same =
                of_origin.zip(host).is_some_and(|(of, host)| of.eq_ignore_ascii_case(host));
            if !is_same {
                return Err(GuardRefusal("the request comes from a page of another origin"));
            }
        }
        let is_open = self.open_paths.iter().any(|open| {
            path == open || (open.ends_with('/') && path.starts_with(open.as_str()))
        });
        if (is_of_browser || !is_open) && host.is_some_and(|host| !self.knows(host)) {
            return Err(GuardRefusal(
                "the name in the Host header is not one of this server: add it to web.allowed-hosts",
            ));
        }
        Ok(())
    }

    /// Whether no page of others can have this host: an address, a private name, or one that is set.
    fn knows(&self, host: &[u8]) -> bool {
        let Ok(host) = std::str::from_utf8(host) else { return false };
        let name = match host.rsplit_once(':') {
            Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
            _ => host,
        };
        let name = name.trim_end_matches('.').to_ascii_lowercase();
        let address = name.trim_start_matches('[').trim_end_matches(']');
        address.parse::<IpAddr>().is_ok()
            || !name.contains('.')
            || PRIVATE_ENDINGS.iter().any(|ending| name.ends_with(ending))
            || name.ends_with(".svc.cluster.local")
            || self.hosts.iter().any(|known| known.eq_ignore_ascii_case(&name))
    }
}

/// Adds what every answer says to browsers, unless it says so itself.
pub(super) fn complete(headers: &mut HeaderMap) {
    headers.entry(X_CONTENT_TYPE_OPTIONS).or_insert(HeaderValue::from_static("nosniff"));
    headers.entry(CONTENT_SECURITY_POLICY).or_insert(HeaderValue::from_static(POLICY));
}

#[cfg(test)]
mod tests {
    use axum::http::{HeaderMap, HeaderName, HeaderValue, Method};

    use crate::net::guard::Guard;

    fn is_let_in(
        method: &Method,
        path: &str,
        headers: &[(&'static str, &'static str)],
    ) -> bool {
        let guard = Guard {
            hosts: vec!["stepmem.example.com".to_owned()],
            open_paths: vec!["/metrics".to_owned(), "/-/".to_owned(), "/v1/".to_owned()],
        };
        let headers: HeaderMap = headers
            .iter()
            .map(|(name, value)| {
                (HeaderName::from_static(name), HeaderValue::from_static(value))
            })
            .collect();
        guard.check(method, path, &headers).is_ok()
    }

    #[test]
    fn page_is_shown_by_address_private_name_or_a_name_that_is_set() {
        let get = |host| is_let_in(&Method::GET, "/api/v1/status", &[("host", host)]);
        for host in [
            "10.1.2.3:9477",
            "[::1]:9477",
            "localhost",
            "a.localhost:1",
            "stepmem.monitoring.svc",
            "stepmem.monitoring.svc.cluster.local.",
            "node-7",
            "STEPMEM.example.com:443",
        ] {
            assert!(get(host), "{host}");
        }
        for host in ["evil.example", "rebound.example.com:9477", "127.0.0.1.evil.com", "a b.c"]
        {
            assert!(!get(host), "{host}");
        }
    }

    #[test]
    fn scrapes_and_pushes_that_no_browser_sends_have_any_host() {
        for path in ["/metrics", "/-/healthy", "/v1/steps"] {
            assert!(is_let_in(&Method::POST, path, &[("host", "evil.example")]), "{path}");
            let rebound = [("host", "evil.example"), ("origin", "http://evil.example")];
            assert!(!is_let_in(&Method::POST, path, &rebound), "{path}");
        }
    }

    #[test]
    fn no_page_of_others_changes_anything() {
        let post = |headers: &[_]| is_let_in(&Method::POST, "/v1/runs/r/ack", headers);
        assert!(post(&[("host", "10.0.0.1:1"), ("origin", "http://10.0.0.1:1")]));
        assert!(post(&[("host", "10.0.0.1:1"), ("sec-fetch-site", "same-origin")]));
        assert!(!post(&[("host", "10.0.0.1:1"), ("origin", "http://10.0.0.1:2")]));
        assert!(!post(&[("host", "10.0.0.1:1"), ("origin", "null")]));
        assert!(!post(&[("host", "10.0.0.1:1"), ("sec-fetch-site", "cross-site")]));
    }
}
