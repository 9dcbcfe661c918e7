//! Our own programs speak TLS: the commands, and the Python client.

use std::process::Command;

use crate::rig::access::{hash, web_config};
use crate::rig::certificates::{Authority, Pair, Validity};
use crate::rig::command::stepmem;
use crate::rig::curl::curl;
use crate::rig::exporter::Exporter;
use crate::rig::folder::{Folder, root};
use crate::rig::job::Job;
use crate::rig::peers::python;

/// An exporter that asks for a certificate and a user, and what they are.
struct Locked {
    exporter: Exporter,
    authority: Authority,
    client: Pair,
    password: String,
    folder: Folder,
}

impl Locked {
    fn start(name: &str, arguments: &[&str]) -> Self {
        let folder = Folder::new(name);
        let authority = Authority::new(&folder, "ca");
        let client = authority.issue(&folder, "client", &["trainer"], Validity::Now);
        let further = format!(
            "  client_ca_file: {}\n  client_auth_type: RequireAndVerifyClientCert\nbasic_auth_users:\n  operator: {}\n",
            authority.file,
            hash("horse"),
        );
        let file = web_config(&folder, &authority.server(&folder), &further);
        let exporter =
            Exporter::start(&[&["--web.config.file", &file][..], arguments].concat());
        let password = folder.write("password", "horse\n");
        Self { exporter, authority, client, password, folder }
    }

    /// The arguments that show certificate and user.
    fn arguments(&self) -> [&str; 10] {
        let Pair { cert, key } = &self.client;
        [
            "--ca-file",
            &self.authority.file,
            "--cert-file",
            cert,
            "--key-file",
            key,
            "--user",
            "operator",
            "--password-file",
            &self.password,
        ]
    }
}

#[test]
fn commands_show_certificate_and_user_by_arguments_and_variables() {
    let locked = Locked::start("tls-commands", &[]);
    let web = format!("https://{}", locked.exporter.web);
    let push = format!("https://{}", locked.exporter.push);
    let records = Job::new(1, 40).run("llm").recording();
    let records = locked.folder.write("records.jsonl", &records);
    let Pair { cert, key } = &locked.client;
    let curled = curl(&[
        "--cacert",
        &locked.authority.file,
        "--cert",
        cert,
        "--key",
        key,
        "--user",
        "operator:horse",
        "--header",
        "content-type: application/x-ndjson",
        "--data-binary",
        &format!("@{records}"),
        &format!("{push}/v1/steps"),
    ]);
    assert_eq!(curled.status, 200, "{curled:?}");
    for (command, expected) in [
        (&["check", "--url", &web][..], "stepmem is healthy."),
        (&["status", "--url", &web], "llm"),
        (&["status", "--json", "--url", &web], "\"llm\""),
        (&["summary", "--url", &web], "llm"),
        (&["explain", "--rank", "0", "--url", &web], "rank 0"),
        (&["release", "--for", "1m", "--url", &push], "closed for 1 min"),
        (&["end", "--run", "llm", "--outcome", "completed", "--url", &push], ""),
    ] {
        let ended = stepmem(&[command, &locked.arguments()].concat(), &[], b"");
        assert_eq!(ended.code, Some(0), "{command:?}: {}", ended.err);
        assert!(ended.out.contains(expected), "{command:?}: {}", ended.out);
    }
    let take = ["snapshot", "take", "--run", "llm", "--rank", "0", "--url", &web];
    let take = [&take[..], &["--push-url", &push], &locked.arguments()].concat();
    let ended = stepmem(&take, &[], b"");
    assert!(ended.err.contains("answers 4"), "{}", ended.err);

    let variables = [
        ("STEPMEM_PUSH_CA_FILE", &*locked.authority.file),
        ("STEPMEM_PUSH_CERT_FILE", cert),
        ("STEPMEM_PUSH_KEY_FILE", key),
        ("STEPMEM_PUSH_USER", "operator"),
        ("STEPMEM_PUSH_PASSWORD_FILE", &locked.password),
    ];
    let status = |variables: &[_]| stepmem(&["status", "--url", &web], variables, b"");
    assert_eq!(status(&variables).code, Some(0), "{}", status(&variables).err);
    let without_user = status(&variables[..3]);
    assert!(without_user.err.contains("answers 401"), "{}", without_user.err);
    let without_certificate = status(&variables[..1]);
    assert_eq!(without_certificate.code, Some(1));
    let without_authority = status(&variables[1..]);
    assert_eq!(without_authority.code, Some(1));
    let half = status(&variables[3..4]);
    assert!(half.err.contains("--user needs --password-file"), "{}", half.err);
}

#[test]
fn python_client_pushes_with_its_certificate_over_tls() {
    let folder = Folder::new("tls-client-token");
    let token = folder.write("token", "secret");
    let locked = Locked::start("tls-client", &["--push.token-file", &token]);
    let push = |cert: &Pair| {
        let script =
            "import stepmem\nfor n in range(1, 4): stepmem.step_end(n)\nprint(stepmem.close())";
        let output = Command::new(python())
            .args(["-c", script])
            .current_dir(root())
            .env("PYTHONPATH", root().join("python"))
            .env("STEPMEM_RUN", "over-tls")
            .env("STEPMEM_PUSH_URL", format!("https://{}", locked.exporter.push))
            .env("STEPMEM_PUSH_TOKEN_FILE", &token)
            .env("STEPMEM_PUSH_CA_FILE", &locked.authority.file)
            .env("STEPMEM_PUSH_CERT_FILE", &cert.cert)
            .env("STEPMEM_PUSH_KEY_FILE", &cert.key)
            .output()
            .unwrap();
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let said = push(&locked.client);
    let status = || {
        let ended = stepmem(
            &[
                &["status", "--json", "--url", &format!("https://{}", locked.exporter.web)][..],
                &locked.arguments(),
            ]
            .concat(),
            &[],
            b"",
        );
        ended.out
    };
    assert!(status().contains("over-tls"), "{said}: {}", status());
    // One of another authority is refused, and training goes on.
    let other = Authority::new(&folder, "other");
    let foreign = other.issue(&folder, "foreign", &["trainer"], Validity::Now);
    let said = push(&foreign);
    assert!(said.contains("stepmem"), "{said}");
}
