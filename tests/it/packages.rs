//! What is published: the crate, the Debian package and its systemd unit. The wheel is tested in `python/tests`.

use std::fs;
use std::path::{Path, PathBuf};
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
    // As systemd does for `StateDirectory`.
    fs::create_dir_all(Path::new(&value).parent().unwrap()).unwrap();
    let checked = stepmem(&["check", "--no-nvml"], &[(name, &value)], b"");
    assert_eq!(checked.code, Some(0), "{}", checked.err);
    assert!(!checked.err.contains(name), "{}", checked.err);
}

const URL: &str = "https://git.host/stepmem";
const PAGES: &str = "https://pages.host/stepmem";

/// A checkout with a commit of its own: this one may have changes.
struct Checkout {
    folder: PathBuf,
}

impl Checkout {
    /// Makes one of these files of the repository.
    fn new(folder: &Folder, files: &[&str]) -> Self {
        let checkout = Self { folder: folder.path("checkout") };
        for file in files {
            let to = checkout.folder.join(file);
            fs::create_dir_all(to.parent().unwrap()).unwrap();
            fs::copy(root().join(file), to).unwrap();
        }
        checkout.git(&["init", "--quiet"]);
        checkout.git(&["add", "."]);
        checkout.git(&["commit", "--quiet", "-m", "test"]);
        checkout
    }

    fn git(&self, arguments: &[&str]) {
        let user = ["-c", "user.name=test", "-c", "user.email=test"];
        let mut command = Command::new("git");
        command.args(user).args(arguments).current_dir(&self.folder);
        assert!(command.output().unwrap().status.success(), "{arguments:?}");
    }

    /// Runs a script of a release with its inputs: repository, documentation, builder, base. Returns what it prints, or why it refuses.
    fn release(&self, script: &str, inputs: [&str; 4]) -> Result<String, String> {
        let [repository, documentation, builder, base] = inputs;
        let output = Command::new(self.folder.join("packaging/release").join(script))
            .arg(if script == "inputs.sh" { "9.8.7" } else { "staged" })
            .envs([("REPOSITORY", repository), ("DOCUMENTATION", documentation)])
            .envs([("BUILDER", builder), ("BASE", base)])
            .output()
            .unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        if output.status.success() { Ok(text(output.stdout)) } else { Err(text(output.stderr)) }
    }
}

/// An image by digest.
fn image(name: &str) -> String {
    format!("{name}@sha256:{}", "0123456789abcdef".repeat(4))
}

#[test]
fn release_names_its_urls_and_its_images_by_digest_or_there_is_none() {
    let folder = Folder::new("release-inputs");
    let checkout = Checkout::new(&folder, &["packaging/release/inputs.sh"]);
    let release = |inputs: [&str; 4]| checkout.release("inputs.sh", inputs);
    let builder = image("docker.io/library/rust:1.95");
    let base = image("gcr.io/distroless/cc-debian12");
    let named: serde_json::Value =
        serde_json::from_str(&release([URL, PAGES, &builder, &base]).unwrap()).unwrap();
    assert_eq!((&named["repository"], &named["version"]), (&URL.into(), &"9.8.7".into()));
    assert_eq!(named["documentation"], PAGES);
    assert_eq!((&named["builder"], &named["base"]), (&builder.into(), &base.clone().into()));
    assert_eq!((&named["signed"], named["revision"].as_str().unwrap().len()), (&json!([]), 40));
    let refused = |inputs: [&str; 4], expected: &str| {
        let reason = release(inputs).unwrap_err();
        let usage = "make release REPOSITORY=https://HOST/PATH DOCUMENTATION=https://HOST/PATH BUILDER=IMAGE@sha256:DIGEST";
        assert!(reason.contains(expected) && reason.contains(usage), "{expected}: {reason}");
    };
    refused(["", PAGES, &base, &base], "REPOSITORY is missing");
    refused([URL, "", &base, &base], "DOCUMENTATION is missing");
    for wrong in [
        "git.host/stepmem",
        "http://git.host/stepmem",
        "https://git.host",
        "https://user:hidden@git.host/stepmem",
        "https://git.host/step mem",
        "https://git.host/a\"b",
        "https://git.host/a?b=c",
    ] {
        refused([wrong, PAGES, &base, &base], "REPOSITORY is not https://HOST/PATH");
        refused([URL, wrong, &base, &base], "DOCUMENTATION is not https://HOST/PATH");
    }
    for example in ["example.com", "git.example.org", "stepmem.invalid", "a.test"] {
        let example = format!("https://{example}/stepmem");
        refused([&example, PAGES, &base, &base], "REPOSITORY is at");
        refused([URL, &example, &base, &base], "DOCUMENTATION is at");
    }
    for wrong in [
        "gcr.io/distroless/cc-debian12:nonroot",
        "gcr.io/distroless/cc-debian12@sha256:0123",
        &base.to_uppercase(),
        &format!("{base} --privileged"),
    ] {
        refused([URL, PAGES, wrong, &base], "BUILDER is not IMAGE@sha256: and 64 digits");
        refused([URL, PAGES, &base, wrong], "BASE is not IMAGE@sha256: and 64 digits");
    }
    refused([URL, PAGES, "", &base], "BUILDER is missing");
    refused([URL, PAGES, &base, ""], "BASE is missing");
    let script = checkout.folder.join("packaging/release/inputs.sh");
    fs::write(script.with_extension("sh.new"), "not of the commit").unwrap();
    assert!(release([URL, PAGES, &base, &base]).is_ok());
    let changed = fs::read_to_string(&script).unwrap() + "\n";
    fs::write(&script, changed).unwrap();
    refused([URL, PAGES, &base, &base], "files differ from the commit");
}

#[test]
fn release_writes_its_urls_and_images_into_every_package() {
    let folder = Folder::new("release-stage");
    let checkout = Checkout::new(
        &folder,
        &[
            "packaging/release/inputs.sh",
            "packaging/release/stage.sh",
            "packaging/release/annotations.py",
            "CHANGELOG.md",
            "Cargo.toml",
            "tests/fake-nvml/Cargo.toml",
            "pyproject.toml",
            "python/pyproject.toml",
            "helm/stepmem/Chart.yaml",
            "Containerfile",
        ],
    );
    let (builder, base) = (image("docker.io/library/rust:1.95"), image("gcr.io/base"));
    checkout.release("stage.sh", [URL, PAGES, &builder, &base]).unwrap();
    let staged =
        |file: &str| fs::read_to_string(checkout.folder.join("staged").join(file)).unwrap();
    let table = |file: &str| staged(file).parse::<toml::Table>().unwrap();
    let package = &table("Cargo.toml")["package"];
    let urls = |from: &toml::Value, keys: [&str; 2]| {
        keys.map(|key| from[key].as_str().map(str::to_owned))
    };
    let expected = [URL, PAGES].map(|url| Some(url.to_owned()));
    assert_eq!(urls(package, ["repository", "documentation"]), expected);
    assert!(table("tests/fake-nvml/Cargo.toml")["package"].get("repository").is_none());
    for file in ["pyproject.toml", "python/pyproject.toml"] {
        let project = &table(file)["project"];
        assert_eq!(urls(&project["urls"], ["Repository", "Documentation"]), expected, "{file}");
    }
    let chart: serde_json::Value =
        serde_saphyr::from_str(&staged("helm/stepmem/Chart.yaml")).unwrap();
    assert_eq!((&chart["home"], &chart["sources"]), (&PAGES.into(), &json!([URL])));
    check_annotations(&chart, package["version"].as_str().unwrap());
    let recipe = staged("Containerfile");
    let version = package["version"].as_str().unwrap();
    for argument in [
        ("BUILDER", &*builder),
        ("BASE", &base),
        ("VERSION", version),
        ("SOURCE", URL),
        ("DOCUMENTATION", PAGES),
    ] {
        let line = format!("\nARG {}={}\n", argument.0, argument.1);
        assert!(recipe.contains(&line), "{line}{recipe}");
    }
    assert!(!recipe.contains("REVISION=unknown"));
}

/// Checks what Artifact Hub reads of a staged chart: lists in YAML, and whole sentences.
fn check_annotations(chart: &serde_json::Value, version: &str) {
    let of = |name: &str| chart["annotations"][format!("artifacthub.io/{name}")].as_str();
    let list = |name: &str| -> Vec<serde_json::Value> {
        serde_saphyr::from_str(of(name).unwrap_or_else(|| panic!("no {name}"))).unwrap()
    };
    assert_eq!(of("category"), Some("monitoring-logging"));
    assert_eq!((of("license"), of("prerelease")), (Some("Apache-2.0"), Some("false")));
    let image = format!("stepmem:{version}");
    assert_eq!(list("images"), [json!({"name": "stepmem", "image": image})]);
    let links =
        json!([{"name": "documentation", "url": PAGES}, {"name": "repository", "url": URL}]);
    assert_eq!(json!(list("links")), links);
    assert!(list("recommendations")[0]["url"].is_string());
    let changes = list("changes");
    let changelog = fs::read_to_string(root().join("CHANGELOG.md")).unwrap();
    let section = changelog.split(&format!("\n## [{version}]")).nth(1).unwrap();
    let section = section.split("\n## ").next().unwrap();
    assert_eq!(changes.len(), section.matches("\n- ").count());
    let is_security = section.contains("### Security").to_string();
    assert_eq!(of("containsSecurityUpdates"), Some(&*is_security));
    for change in changes {
        let text = change["description"].as_str().unwrap();
        let kind = change["kind"].as_str().unwrap();
        assert!(["added", "changed", "removed", "fixed", "security"].contains(&kind), "{kind}");
        assert!(text.len() > 10 && !text.contains(['`', '[', '\n']), "{text}");
    }
}

#[test]
fn workflows_call_make_and_test_the_oldest_rust_that_is_promised() {
    let makefile = fs::read_to_string(root().join("Makefile")).unwrap();
    let is_target = |name: &str| makefile.contains(&format!("\n{name}:"));
    let mut all = String::new();
    for entry in fs::read_dir(root().join(".github/workflows")).unwrap() {
        all += &fs::read_to_string(entry.unwrap().path()).unwrap();
    }
    let called = all.lines().filter_map(|line| line.trim().strip_prefix("- run: make "));
    let listed = all.lines().filter_map(|line| line.trim().strip_prefix("target: ["));
    let called = called.filter(|line| !line.starts_with("${{")).flat_map(str::split_whitespace);
    let listed = listed.flat_map(|line| line.trim_end_matches(']').split(", "));
    let targets: Vec<&str> = called.chain(listed).collect();
    let unknown: Vec<&&str> = targets.iter().filter(|name| !is_target(name)).collect();
    assert!(targets.len() > 15 && unknown.is_empty(), "{unknown:?} of {targets:?}");
    let manifest: toml::Table =
        fs::read_to_string(root().join("Cargo.toml")).unwrap().parse().unwrap();
    let oldest = manifest["package"]["rust-version"].as_str().unwrap();
    assert!(all.contains(&format!("rust: [stable, \"{oldest}\"]")), "{oldest}");
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

/// Texts after which a file names the version of stepmem.
const BEFORE_VERSION: [&str; 8] = [
    "\nversion = \"",
    "\", version = \"",
    "\n__version__ = \"",
    "\nversion: ",
    "\nappVersion: ",
    "\nARG VERSION=",
    "image: stepmem:",
    "/stepmem:",
];

#[test]
fn every_part_has_the_version_of_the_program_and_the_changelog_its_date() {
    let version = env!("CARGO_PKG_VERSION");
    let manifests =
        ["crates", "examples/kubernetes", "-name", "Cargo.toml", "-o", "-name", "*.yaml"];
    let found = output("find", &manifests);
    let others = [
        "Cargo.toml",
        "Containerfile",
        "README.md",
        "helm/stepmem/Chart.yaml",
        "python/pyproject.toml",
        "python/stepmem/__init__.py",
    ];
    let mut n_named = 0;
    for file in found.lines().chain(others) {
        let text = fs::read_to_string(root().join(file)).unwrap();
        for before in BEFORE_VERSION {
            for after in text.split(before).skip(1) {
                let named = after.split(|c: char| !c.is_ascii_digit() && c != '.').next();
                assert_eq!(named, Some(version), "{file}, after {before:?}");
                n_named += 1;
            }
        }
    }
    assert!(n_named >= 28, "{n_named}");
    let changes = fs::read_to_string(root().join("CHANGELOG.md")).unwrap();
    let mut versions = changes.lines().filter_map(|line| line.strip_prefix("## ["));
    let newest = versions.find(|line| *line != "Unreleased]");
    let date = newest.and_then(|line| line.strip_prefix(&format!("{version}] - ")));
    let is_date = |text: &str| {
        text.len() == 10 && text.split('-').all(|part| part.parse::<u16>().is_ok())
    };
    assert!(date.is_some_and(is_date), "{date:?}");
}

#[test]
fn make_test_says_first_what_it_installs_builds_and_skips_and_how_long_that_takes() {
    let script = root().join("tests/run.sh");
    let output = Command::new(script).env("PLAN", "1").output().unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    let first = said.lines().next().unwrap_or_default();
    assert!(output.status.success(), "{said}");
    for words in
        ["make test: installs ", " GB below target/debug", " minutes", "make test-torch"]
    {
        assert!(first.contains(words), "no {words}: {first}");
    }
}
