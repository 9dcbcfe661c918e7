//! Who trusts whom: the exporter's certificate, and those of clients.

use crate::rig::access::web_config;
use crate::rig::certificates::{Authority, Pair, Validity};
use crate::rig::curl::curl;
use crate::rig::exporter::Exporter;
use crate::rig::folder::Folder;
use crate::rig::job::record;

#[test]
fn both_listeners_speak_tls_and_curl_checks_their_certificate() {
    let folder = Folder::new("tls-server");
    let authority = Authority::new(&folder, "ca");
    let other = Authority::new(&folder, "other");
    let file = web_config(&folder, &authority.server(&folder), "");
    let exporter = Exporter::start(&["--web.config.file", &file]);
    let metrics = format!("https://{}/metrics", exporter.web);
    let answer = curl(&["--cacert", &authority.file, &metrics]);
    assert_eq!((answer.code, answer.status), (0, 200), "{answer:?}");
    assert!(answer.body.contains("stepmem_build_info"), "{}", answer.body);
    let push = format!("https://{}/v1/steps", exporter.push);
    let json = ["--header", "content-type: application/json", "--data"];
    let body = record(0, 1, 1);
    let arguments = [&["--cacert", &authority.file][..], &json, &[&body, &push]].concat();
    assert_eq!(curl(&arguments).status, 200);
    // An authority that did not sign it; no TLS at all.
    assert_eq!(curl(&["--cacert", &other.file, &metrics]).code, 60);
    assert_eq!(curl(&[&metrics.replace("https", "http")]).status, 0);
    // HTTP/2 is offered and not taken.
    let answer = curl(&["--http2", "--cacert", &authority.file, &metrics]);
    assert_eq!(answer.status, 200);
}

#[test]
fn certificates_that_expired_or_name_another_server_are_not_trusted() {
    let folder = Folder::new("tls-untrusted");
    let authority = Authority::new(&folder, "ca");
    for (name, subjects, validity) in [
        ("expired", &["127.0.0.1"][..], Validity::Past),
        ("other-name", &["stepmem.example.com"][..], Validity::Now),
    ] {
        let server = authority.issue(&folder, name, subjects, validity);
        let file = web_config(&folder, &server, "");
        let exporter = Exporter::start(&["--web.config.file", &file]);
        let url = format!("https://{}/metrics", exporter.web);
        assert_eq!(curl(&["--cacert", &authority.file, &url]).code, 60, "{name}");
    }
}

/// The status of a scrape: 0 where the connection is refused.
fn scraped(exporter: &Exporter, authority: &Authority, client: Option<&Pair>) -> u16 {
    let url = format!("https://{}/metrics", exporter.web);
    let mut arguments = vec!["--cacert", &authority.file];
    if let Some(Pair { cert, key }) = client {
        arguments.extend(["--cert", cert, "--key", key]);
    }
    curl(&[&arguments[..], &[&url]].concat()).status
}

#[test]
fn clients_are_asked_for_certificates_as_each_type_says() {
    let folder = Folder::new("tls-clients");
    let (authority, other) = (Authority::new(&folder, "ca"), Authority::new(&folder, "other"));
    let server = authority.server(&folder);
    let known = authority.issue(&folder, "known", &["prometheus"], Validity::Now);
    let expired = authority.issue(&folder, "expired", &["prometheus"], Validity::Past);
    let foreign = other.issue(&folder, "foreign", &["prometheus"], Validity::Now);
    let with_authority = format!("  client_ca_file: {}\n", authority.file);
    // Of no certificate, one of the authority, an expired one, one of another authority: which are let in.
    for (kind, further, expected) in [
        ("NoClientCert", "", [200, 200, 200, 200]),
        ("RequestClientCert", "", [200, 200, 200, 200]),
        ("RequireAnyClientCert", "", [0, 200, 200, 200]),
        ("VerifyClientCertIfGiven", &*with_authority, [200, 200, 0, 0]),
        ("RequireAndVerifyClientCert", &*with_authority, [0, 200, 0, 0]),
    ] {
        let further = format!("  client_auth_type: {kind}\n{further}");
        let file = web_config(&folder, &server, &further);
        let exporter = Exporter::start(&["--web.config.file", &file]);
        let found = [None, Some(&known), Some(&expired), Some(&foreign)]
            .map(|client| scraped(&exporter, &authority, client));
        assert_eq!(found, expected, "{kind}");
        let answer = authority.client(Some(&known)).get(exporter.web, "/metrics", &[]);
        let refused = expected.iter().filter(|status| **status == 0).count();
        let series =
            format!("stepmem_access_refused_total{{reason=\"handshake\"}} {refused}\n");
        assert!(answer.body.contains(&series), "{kind}: {}", answer.body);
    }
}

#[test]
fn only_certificates_with_an_allowed_name_are_let_in() {
    let folder = Folder::new("tls-names");
    let authority = Authority::new(&folder, "ca");
    let further = format!(
        "  client_ca_file: {}\n  client_auth_type: RequireAndVerifyClientCert\n  client_allowed_sans: [prometheus, 10.0.0.7]\n",
        authority.file
    );
    let file = web_config(&folder, &authority.server(&folder), &further);
    let exporter = Exporter::start(&["--web.config.file", &file]);
    for (subjects, expected) in [
        (&["prometheus"][..], 200),
        (&["another", "prometheus"], 200),
        (&["10.0.0.7"], 200),
        (&["prometheus.evil"], 0),
        (&["10.0.0.70"], 0),
        (&[], 0),
    ] {
        let client = authority.issue(&folder, "client", subjects, Validity::Now);
        assert_eq!(scraped(&exporter, &authority, Some(&client)), expected, "{subjects:?}");
    }
}

#[test]
fn long_chains_are_taken_up_to_the_bound_of_a_handshake() {
    let folder = Folder::new("tls-chains");
    let authority = Authority::new(&folder, "ca");
    let further = format!(
        "  client_ca_file: {}\n  client_auth_type: RequireAndVerifyClientCert\n",
        authority.file
    );
    let file = web_config(&folder, &authority.server(&folder), &further);
    let exporter = Exporter::start(&["--web.config.file", &file]);
    let mut n_refused = 0;
    // What a client shows, of so many KiB: what is promised, nearly all that a handshake may have, and more.
    for (n_kib, expected) in [(16, 200), (35, 200), (41, 0)] {
        let names: Vec<String> = (0..n_kib * 16)
            .map(|n| format!("trainer-{n:08}.{}.example", "n".repeat(37)))
            .collect();
        assert_eq!(names[0].len(), 62, "with its own length and kind, 64 bytes");
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let client = authority.issue(&folder, "long", &names, Validity::Now);
        assert_eq!(scraped(&exporter, &authority, Some(&client)), expected, "{n_kib} KiB");
        n_refused += u32::from(expected == 0);
    }
    let known = authority.issue(&folder, "known", &["prometheus"], Validity::Now);
    let text = authority.client(Some(&known)).get(exporter.web, "/metrics", &[]).body;
    let series = format!("stepmem_access_refused_total{{reason=\"handshake\"}} {n_refused}\n");
    assert!(text.contains(&series), "{text}");
}

#[test]
fn versions_suites_and_curves_are_those_that_are_set() {
    let folder = Folder::new("tls-versions");
    let authority = Authority::new(&folder, "ca");
    let server = authority.server(&folder);
    let curled = |further: &str, arguments: &[&str]| {
        let file = web_config(&folder, &server, further);
        let exporter = Exporter::start(&["--web.config.file", &file]);
        let url = format!("https://{}/metrics", exporter.web);
        curl(&[arguments, &["--cacert", &authority.file, &url]].concat()).status
    };
    let old = ["--tls-max", "1.2"];
    assert_eq!(curled("", &old), 200);
    assert_eq!(curled("  min_version: TLS13\n", &old), 0);
    assert_eq!(curled("  max_version: TLS12\n", &["--tlsv1.3"]), 0);
    let suite = "  cipher_suites: [TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384]\n";
    let with = |cipher: &'static str| [&old[..], &["--ciphers", cipher]].concat();
    assert_eq!(curled(suite, &with("ECDHE-ECDSA-AES256-GCM-SHA384")), 200);
    assert_eq!(curled(suite, &with("ECDHE-ECDSA-AES128-GCM-SHA256")), 0);
    let curve = "  curve_preferences: [CurveP384]\n";
    assert_eq!(curled(curve, &["--curves", "P-384"]), 200);
    assert_eq!(curled(curve, &["--curves", "X25519"]), 0);
}
