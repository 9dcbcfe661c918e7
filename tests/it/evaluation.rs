//! Figures of the detector that README and docs quote are those of `eval/results.json`. `STEPMEM_BLESS=1` writes them.

use std::process::Command;

use crate::rig::folder::root;

#[test]
fn every_quoted_figure_is_as_measured() {
    let mut report = Command::new("python3");
    report.args(["-B", "-m", "score.report"]).current_dir(root().join("eval"));
    if std::env::var_os("STEPMEM_BLESS").is_none() {
        report.arg("--check");
    }
    let output = report.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}
