//! Reads a summary: ours, TraceML's `final_summary.json`, or the output of `summary --policy
//! traceml --json`.

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::compare::figures::{NotASummary, RunFigures};
use crate::compare::{from_stepmem, from_traceml};
use crate::policy::PolicyName;
use crate::summary::model::SCHEMA_VERSION;
use crate::traceml::file::TraceMlFile;

/// The keys that show whose summary it is.
#[derive(Deserialize)]
struct Author {
    generator: Option<AuthorGenerator>,
    policy: Option<PolicyName>,
}

#[derive(Deserialize)]
struct AuthorGenerator {
    name: Option<String>,
    schema_version: Option<u32>,
}

/// Reads the figures of a summary.
///
/// # Errors
/// The document is not a summary, or is one of a later schema.
pub fn read(summary: Value) -> Result<RunFigures, NotASummary> {
    if !summary.is_object() {
        return Err(NotASummary("it is not a JSON object".to_owned()));
    }
    let Author { generator, policy } = Author::deserialize(&summary).map_err(invalid)?;
    if let Some(generator) = generator.filter(|of| of.name.as_deref() == Some("stepmem")) {
        check_version(generator.schema_version)?;
        return from_stepmem::figures(&typed(summary)?);
    }
    if policy == Some(PolicyName::TraceMl) {
        return from_traceml::figures(None, typed(summary)?);
    }
    let TraceMlFile { meta, step_memory } = typed(summary)?;
    match step_memory {
        Some(section) if section.diagnosis.is_some() => {
            from_traceml::figures(meta.and_then(|meta| meta.run_name), section)
        }
        Some(_) => Err(NotASummary("step_memory has no diagnosis".to_owned())),
        None => Err(NotASummary("it has no step_memory".to_owned())),
    }
}

fn check_version(version: Option<u32>) -> Result<(), NotASummary> {
    if version.is_some_and(|version| version <= SCHEMA_VERSION) {
        return Ok(());
    }
    let shown = version.map_or("missing".to_owned(), |version| version.to_string());
    let reason = format!(
        "generator.schema_version is {shown}; this version reads up to {SCHEMA_VERSION}"
    );
    Err(NotASummary(reason))
}

fn typed<T: DeserializeOwned>(summary: Value) -> Result<T, NotASummary> {
    serde_path_to_error::deserialize(summary).map_err(invalid)
}

fn invalid(error: impl std::fmt::Display) -> NotASummary {
    NotASummary(error.to_string())
}
