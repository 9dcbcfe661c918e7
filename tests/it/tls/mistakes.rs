//! Files that are wrong are refused with the key that is wrong.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;

use crate::rig::access::web_config;
use crate::rig::certificates::{Authority, Pair, Validity};
use crate::rig::command::stepmem;
use crate::rig::exporter::Exporter;
use crate::rig::folder::{Folder, text};

/// Starts with the folder's file, which has this mistake.
fn check(folder: &Folder, expected: &str) {
    let path = text(&folder.path("web.yml"));
    let ended = stepmem(&["serve", "--no-nvml", "--web.config.file", &path], &[], b"");
    assert_eq!(ended.code, Some(1), "{expected}: {}", ended.err);
    let place = format!("--web.config.file: {path}: ");
    assert!(ended.err.contains(&place), "{expected}: {}", ended.err);
    assert!(ended.err.contains(expected), "{expected}: {}", ended.err);
}

#[test]
fn mistakes_are_named_by_their_key_and_end_an_ordinary_start() {
    let folder = Folder::new("web-mistakes");
    check(&folder, "No such file");
    for (content, expected) in [
        ("tls_server_confg: {}\n", "unknown field `tls_server_confg`"),
        (
            "tls_server_config:\n  cert_fil: a\n",
            "tls_server_config.cert_fil: unknown field `cert_fil`",
        ),
        ("tls_server_config:\n  key_file: a\n", "tls_server_config.key_file: "),
        (
            "tls_server_config:\n  min_version: TLS12\n",
            "tls_server_config.cert_file: it is missing",
        ),
        ("basic_auth_users:\n  a: secret\n", "basic_auth_users.a: it is not a bcrypt hash"),
        (
            "basic_auth_users:\n  a: $2y$17$JPR3zqAYqMAnHRDeXiQmBOxa1Gz1FYNhC6Kc.yDTLHhIBZgZGmRxK\n",
            "basic_auth_users.a: cost 17 exceeds 16",
        ),
        (
            "http_server_config:\n  headers:\n    Server: x\n",
            "headers.Server: this header cannot",
        ),
        (
            "http_server_config:\n  headers:\n    X-Frame-Options: allow\n",
            "X-Frame-Options: \"allow\" is none of deny, sameorigin",
        ),
        ("rate_limit:\n  interval: soon\n", "rate_limit.interval: \"soon\" is not a duration"),
        ("rate_limit:\n  interval: 1s\n", "rate_limit.burst: it is 0"),
        ("rate_limit: [\n", "line"),
    ] {
        folder.write("web.yml", content);
        check(&folder, expected);
    }
}

#[test]
fn mistakes_of_tls_are_named_by_their_key() {
    let folder = Folder::new("tls-mistakes");
    let authority = Authority::new(&folder, "ca");
    let (server, ca) = (authority.server(&folder), &authority.file);
    let kinds = "client_auth_type: \"All\" is none of NoClientCert, RequestClientCert";
    for (further, expected) in [
        ("  client_auth_type: All\n".to_owned(), kinds),
        (
            "  min_version: TLS10\n".to_owned(),
            "min_version: \"TLS10\" is neither TLS12 nor TLS13",
        ),
        ("  min_version: TLS13\n  max_version: TLS12\n".to_owned(), "min_version: it is above"),
        (
            "  cipher_suites: [RC4]\n".to_owned(),
            "cipher_suites: \"RC4\" is not supported; supported are",
        ),
        (
            "  curve_preferences: [CurveP521]\n".to_owned(),
            "curve_preferences: \"CurveP521\" is",
        ),
        (format!("  client_ca_file: {ca}\n"), "client_ca_file: no certificate is requested"),
        (
            "  client_auth_type: RequireAndVerifyClientCert\n".to_owned(),
            "client_auth_type RequireAndVerifyClientCert needs",
        ),
        ("  client_allowed_sans: [a]\n".to_owned(), "client_allowed_sans: it needs"),
        ("  cert: text\n".to_owned(), "cert: cert_file is set too"),
    ] {
        web_config(&folder, &server, &further);
        check(&folder, expected);
    }
    // A key of another certificate, a file without any, and paths beside the file.
    let other = authority.issue(&folder, "other", &["a"], Validity::Now);
    for (cert, key, expected) in [
        (&*server.cert, &*other.key, "cert_file, key_file: "),
        (&*server.key, &*server.key, "cert_file: it has no certificate"),
        (&*server.cert, &*server.cert, "key_file: "),
        ("server.cert.pem", "absent.pem", "key_file: "),
    ] {
        let pair = Pair { cert: cert.to_owned(), key: key.to_owned() };
        web_config(&folder, &pair, "");
        check(&folder, expected);
    }
}

#[test]
fn check_says_what_is_spoken() {
    let folder = Folder::new("web-check");
    let authority = Authority::new(&folder, "ca");
    authority.server(&folder);
    // Paths are relative to the file's own.
    let content =
        "tls_server_config:\n  cert_file: server.cert.pem\n  key_file: server.key.pem\n";
    let file = folder.write("web.yml", content);
    let arguments = ["check", "--no-nvml", "--web.config.file", &file];
    let ended = stepmem(&arguments, &[], b"");
    assert_eq!(ended.code, Some(0), "{}", ended.err);
    assert!(
        ended.out.contains("page and metrics: https://127.0.0.1:9477/metrics"),
        "{}",
        ended.out
    );
    assert!(ended.out.contains("pushes:           https://127.0.0.1:9478"), "{}", ended.out);
    // Nothing but comments asks for nothing.
    let empty = folder.write("empty.yml", "# nothing yet\ntls_server_config: {}\n");
    let ended = stepmem(&["check", "--no-nvml", "--web.config.file", &empty], &[], b"");
    assert!(
        ended.out.contains("page and metrics: http://127.0.0.1:9477/metrics"),
        "{}",
        ended.out
    );
}

#[test]
fn key_that_every_user_may_read_is_warned_of() {
    let folder = Folder::new("public-key");
    let authority = Authority::new(&folder, "ca");
    let server = authority.server(&folder);
    let file = web_config(&folder, &server, "");
    let set = |path: &str, mode| {
        fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    };
    let warned = |file: &str| {
        let ended = stepmem(&["check", "--no-nvml", "--web.config.file", file], &[], b"");
        assert_eq!(ended.code, Some(0), "{ended:?}");
        ended.out.contains("every user of this machine can read")
    };
    assert!(!warned(&file));
    set(&server.key, 0o640);
    assert!(!warned(&file));
    set(&server.key, 0o644);
    assert!(warned(&file));
    let exporter = Exporter::start(&["--web.config.file", &file]);
    assert_eq!(exporter.logged("WARN", "key_file: every user of this machine can read"), 1);
    assert_eq!(exporter.logged("WARN", &server.key), 1);
    // A directory that nobody else enters keeps it.
    set(&text(&folder.path("")), 0o700);
    assert!(!warned(&file));
    set(&text(&folder.path("")), 0o755);
    // Nor does anyone reach the volume of a pod's secret but its containers.
    let link = folder.path("..data");
    std::os::unix::fs::symlink(".", &link).unwrap();
    assert!(!warned(&file));
    fs::remove_file(link).unwrap();
    // The key may stand in the file itself.
    let indented = |path: &str| fs::read_to_string(path).unwrap().replace('\n', "\n    ");
    let (cert, key) = (indented(&server.cert), indented(&server.key));
    let inline = folder.write(
        "inline.yml",
        &format!("tls_server_config:\n  cert: |\n    {cert}\n  key: |\n    {key}\n"),
    );
    set(&inline, 0o644);
    assert!(warned(&inline));
    set(&inline, 0o600);
    assert!(!warned(&inline));
}
