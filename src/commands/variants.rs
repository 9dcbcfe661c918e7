//! `stepmem variants`, only with the feature `without`: writes the transitions of a recording as `replay` does, once for each
//! variant of the estimator of creep. The recording is read once.

use std::io::{self, BufWriter, Write};

use anyhow::Context;
use clap::{Arg, ArgMatches};
use serde::Serialize;

use crate::analysis::config::EngineConfig;
use crate::analysis::creep::rules::CreepSettings;
use crate::analysis::creep::without::Without;
use crate::analysis::findings::Transition;
use crate::commands::args::{self, CommandError, CommandRow, Exit, recordings};
use crate::commands::playback::Playback;
use crate::input::recording::played;

/// `stepmem variants`.
pub(super) const VARIANTS: CommandRow =
    CommandRow { name: "variants", arguments, run: command };

fn arguments() -> clap::Command {
    clap::Command::new("variants")
        .about("Play recordings with single rules left out or single constants changed; print a JSON line for every diagnosis raised or cleared")
        .arg(recordings())
        .arg(
            Arg::new("VARIANT")
                .long("of")
                .action(clap::ArgAction::Append)
                .allow_hyphen_values(true)
                .help("The name of a rule to leave out, CONSTANT=VALUE, or nothing for the rules as they are"),
        )
}

fn command(matches: &ArgMatches) -> Result<Exit, CommandError> {
    let names = matches.get_many::<String>("VARIANT").into_iter().flatten();
    run(args::files(matches), names)?;
    Ok(Exit::Success)
}

fn run<'f>(
    files: impl IntoIterator<Item = &'f std::path::PathBuf>,
    names: impl Iterator<Item = &'f String>,
) -> anyhow::Result<()> {
    let out = std::cell::RefCell::new(BufWriter::new(io::stdout().lock()));
    let mut variants = Vec::new();
    for name in names {
        let without = Without::parse(name).with_context(|| format!("no variant {name}"))?;
        let creep = CreepSettings { without, ..CreepSettings::default() };
        let config = EngineConfig { creep, ..EngineConfig::default() };
        let out = &out;
        variants.push(Playback::new(config, move |_, _, transitions: &[Transition]| {
            for of in transitions {
                let mut out = out.borrow_mut();
                serde_json::to_writer(&mut *out, &VariantLine { variant: name, of })?;
                out.write_all(b"\n")?;
            }
            Ok(())
        }));
    }
    played(files, |line| {
        variants.iter_mut().try_for_each(|variant| variant.take(line.clone()))
    })?;
    variants.into_iter().try_for_each(|variant| variant.finish().map(drop))?;
    out.borrow_mut().flush()?;
    Ok(())
}

#[derive(Serialize)]
struct VariantLine<'a> {
    variant: &'a str,
    #[serde(flatten)]
    of: &'a Transition,
}
