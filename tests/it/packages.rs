//! What is published: the crate, the Debian package and its systemd unit. The wheel is tested in `python/tests`.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::json;

use crate::rig::command::stepmem;
use crate::rig::folder::{Folder, root, text};

/// Files of the repository as they are published, unpacked.
const CRATE_BYTES_MAX: u64 = 4 << 20;
/// Ten times the exposure that systemd computes for the unit, 0 to 100: the rest is network, NVML and other users' names.
const EXPOSURE_MAX: &str = "20";

const UNIT: &str = "packaging/stepmem.service";

fn output(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).current_dir(root()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {arguments:?}: {said}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn published_crate_has_what_its_build_reads_and_no_tests() {
    let listed = output(
        env!("CARGO"),
        &["package", "--list", "--allow-dirty", "--offline", "--quiet", "--package", "stepmem"],
    );
    let listed: Vec<&str> = listed.lines().collect();
    let sources = ["src", "build.rs", "python/stepmem", "python/run", "-type", "f"];
    let unread = ["-not", "-name", "*.pyc", "-not", "-name", "py.typed"];
    let read = output("find", &[&sources[..], &unread].concat());
    let missing: Vec<&str> = read.lines().filter(|path| !listed.contains(path)).collect();
    assert_eq!(missing, [""; 0]);
    let rooms = ["tests/", "docs/", "helm/", "benches/", "python/tests/", "target/"];
    let foreign: Vec<&&str> =
        listed.iter().filter(|path| rooms.iter().any(|room| path.starts_with(room))).collect();
    assert_eq!(foreign, [&""; 0]);
    let size = |path: &&str| fs::metadata(root().join(path)).map_or(0, |found| found.len());
    let n_bytes: u64 = listed.iter().map(size).sum();
    assert!(n_bytes < CRATE_BYTES_MAX, "{n_bytes}");
}

#[test]
fn every_asset_of_the_debian_package_is_there() {
    let folder = Folder::new("packages-share");
    let share = text(&folder.path("share"));
    output("packaging/extras.sh", &[env!("CARGO_BIN_EXE_stepmem"), &share]);
    let manifest = fs::read_to_string(root().join("Cargo.toml")).unwrap();
    let manifest: toml::Table = manifest.parse().unwrap();
    let assets = manifest["package"]["metadata"]["deb"]["assets"].as_array().unwrap();
    let sources: Vec<&str> = assets.iter().map(|asset| asset[0].as_str().unwrap()).collect();
    assert!(sources.contains(&UNIT) && sources.contains(&"target/release/stepmem"));
    for source in sources.into_iter().filter(|source| !source.starts_with("target/release/")) {
        let path = source.strip_prefix("target/share/").map_or_else(
            || root().join(source),
            |below| Path::new(&share).join(below.replace('*', "stepmem-run")),
        );
        assert!(fs::metadata(&path).is_ok_and(|file| file.len() > 0), "{source}");
    }
}

#[test]
fn unit_is_valid_starts_what_the_program_takes_and_exposes_little() {
    let folder = Folder::new("packages-unit");
    let unit = fs::read_to_string(root().join(UNIT)).unwrap();
    let begin = unit.lines().find_map(|line| line.strip_prefix("ExecStart=")).unwrap();
    assert_eq!(begin, "/usr/bin/stepmem serve");
    let here = unit.replace("/usr/bin/stepmem", env!("CARGO_BIN_EXE_stepmem"));
    let path = folder.write("stepmem.service", &here);
    output("systemd-analyze", &["verify", "--man=no", &path]);
    output(
        "systemd-analyze",
        &["security", "--offline=true", &format!("--threshold={EXPOSURE_MAX}"), &path],
    );
    let state = unit.lines().find_map(|line| line.strip_prefix("Environment=")).unwrap();
    let (name, value) = state.split_once('=').unwrap();
    let value = value.replace("%S", &text(&folder.path("state")));
    let checked = stepmem(&["check", "--no-nvml"], &[(name, &value)], b"");
    assert_eq!(checked.code, Some(0), "{}", checked.err);
    assert!(!checked.err.contains(name), "{}", checked.err);
}

/// Checks the inputs of a release: repository, builder and base. Returns the JSON that names them, or why they are refused.
fn release(script: &Path, inputs: [&str; 3]) -> Result<String, String> {
    let [repository, builder, base] = inputs;
    let output = Command::new(script)
        .arg("9.8.7")
        .envs([("REPOSITORY", repository), ("BUILDER", builder), ("BASE", base)])
        .output()
        .unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    if output.status.success() { Ok(text(output.stdout)) } else { Err(text(output.stderr)) }
}

#[test]
fn release_names_its_repository_and_its_images_by_digest_or_there_is_none() {
    // A checkout of its own: this one may have changes.
    let folder = Folder::new("release-inputs");
    let checkout = folder.path("checkout");
    fs::create_dir_all(checkout.join("tests/release")).unwrap();
    let script = checkout.join("tests/release/inputs.sh");
    fs::copy(root().join("tests/release/inputs.sh"), &script).unwrap();
    let git = |arguments: &[&str]| {
        let user = ["-c", "user.name=test", "-c", "user.email=test"];
        let mut command = Command::new("git");
        command.args(user).args(arguments).current_dir(&checkout);
        assert!(command.output().unwrap().status.success(), "{arguments:?}");
    };
    git(&["init", "--quiet"]);
    git(&["add", "."]);
    git(&["commit", "--quiet", "-m", "test"]);
    let (url, digest) = ("https://git.host/stepmem", "0123456789abcdef".repeat(4));
    let builder = format!("docker.io/library/rust:1.95@sha256:{digest}");
    let base = format!("gcr.io/distroless/cc-debian12@sha256:{digest}");
    let named: serde_json::Value =
        serde_json::from_str(&release(&script, [url, &builder, &base]).unwrap()).unwrap();
    assert_eq!((&named["repository"], &named["version"]), (&url.into(), &"9.8.7".into()));
    assert_eq!((&named["builder"], &named["base"]), (&builder.into(), &base.clone().into()));
    assert_eq!((&named["signed"], named["revision"].as_str().unwrap().len()), (&json!([]), 40));
    let refused = |inputs: [&str; 3], expected: &str| {
        let reason = release(&script, inputs).unwrap_err();
        let usage = "make release REPOSITORY=https://HOST/PATH BUILDER=IMAGE@sha256:DIGEST";
        assert!(reason.contains(expected) && reason.contains(usage), "{expected}: {reason}");
    };
    refused(["", &base, &base], "REPOSITORY is missing");
    for wrong in [
        "git.host/stepmem",
        "http://git.host/stepmem",
        "https://git.host",
        "https://user:hidden@git.host/stepmem",
        "https://git.host/step mem",
        "https://git.host/a\"b",
        "https://git.host/a?b=c",
    ] {
        refused([wrong, &base, &base], "REPOSITORY is not https://HOST/PATH");
    }
    for example in ["example.com", "git.example.org", "stepmem.invalid", "a.test"] {
        refused([&format!("https://{example}/stepmem"), &base, &base], "REPOSITORY is at");
    }
    for wrong in [
        "gcr.io/distroless/cc-debian12:nonroot",
        "gcr.io/distroless/cc-debian12@sha256:0123",
        &base.to_uppercase(),
        &format!("{base} --privileged"),
    ] {
        refused([url, wrong, &base], "BUILDER is not IMAGE@sha256: and 64 digits");
        refused([url, &base, wrong], "BASE is not IMAGE@sha256: and 64 digits");
    }
    refused([url, "", &base], "BUILDER is missing");
    refused([url, &base, ""], "BASE is missing");
    fs::write(checkout.join("tests/release/inputs.sh.new"), "not of the commit").unwrap();
    assert!(release(&script, [url, &base, &base]).is_ok());
    let changed = fs::read_to_string(&script).unwrap() + "\n";
    fs::write(&script, changed).unwrap();
    refused([url, &base, &base], "files differ from the commit");
}

#[test]
fn make_release_builds_nothing_without_its_inputs() {
    let output = Command::new("make")
        .args(["release", "CARGO=false"])
        .env_remove("REPOSITORY")
        .current_dir(root())
        .output()
        .unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success() && said.contains("REPOSITORY is missing"), "{said}");
}
