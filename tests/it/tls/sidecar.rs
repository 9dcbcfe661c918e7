//! A sidecar leaves out the listeners that it cannot protect, and everything else runs.

use std::os::unix::net::UnixStream;

use crate::rig::command::stepmem;
use crate::rig::exporter::Exporter;
use crate::rig::folder::{Folder, text};
use crate::rig::http::{JSON, converse, head};
use crate::rig::job::record;

#[test]
fn without_its_certificate_a_sidecar_listens_on_its_socket_only() {
    let folder = Folder::new("sidecar-tls");
    let content = "tls_server_config:\n  cert_file: absent.pem\n  key_file: absent.pem\n";
    let (file, socket) = (folder.write("web.yml", content), text(&folder.path("push.sock")));
    let arguments = ["--web.config.file", &file, "--push.unix-socket", &socket];
    let exporter = Exporter::start_closed_sidecar(&arguments);
    assert_eq!((exporter.web.port(), exporter.push.port()), (0, 0));
    assert_eq!(exporter.logged("ERROR", "cert_file: "), 1);
    let url = format!("unix://{socket}");
    let probe = || stepmem(&["check", "--url", &url], &[], b"");
    assert_eq!((probe().code, &*probe().out), (Some(0), "stepmem is healthy.\n"));
    let mut stream = UnixStream::connect(&socket).unwrap();
    let body = record(0, 1, 1);
    let head = head("POST", "/v1/steps", &[JSON], body.len());
    assert_eq!(converse(&mut stream, &head, body.as_bytes()).status, 200);
    exporter.stop();
    assert_eq!(probe().code, Some(1));
}
