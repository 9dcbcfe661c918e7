//! The sources of values: flags override environment variables, which override the file, which
//! overrides defaults.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::PathBuf;

use crate::config::devices::DeviceEnvironment;
use crate::config::environment::{self, Environment};
use crate::config::error::{Mistake, StartupProblem};
use crate::config::settings::{ConfigError, Draft, Settings, StartMode};
use crate::config::table::{SETTINGS, Setting};
use crate::config::web_file::WebFile;
use crate::config::{file, keys, misspelled, otlp};

/// The command line's part of the settings.
#[derive(Clone, Debug, Default)]
pub struct Sources {
    /// Values given as flags, by key.
    pub flags: BTreeMap<&'static str, Vec<String>>,
    /// The file, if a flag names one.
    pub file: Option<PathBuf>,
    /// Arguments with mistakes, without which a sidecar goes on.
    pub unknown_arguments: Vec<String>,
    /// The mistakes that are not errors.
    pub leniency: Leniency,
    /// Defaults of the command that differ from those of the table, by key.
    pub defaults: &'static [(&'static str, &'static str)],
}

/// The mistakes that the exporter tolerates. All others are errors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Leniency {
    #[default]
    None,
    /// The mistakes that a sidecar tolerates.
    Sidecar,
    /// Mistakes in the environment and the file: a command that is started must start.
    Command,
}

impl Leniency {
    fn forgives(self, mistakes: &[Mistake], is_sidecar: bool) -> bool {
        match self {
            Self::None => mistakes.is_empty(),
            Self::Sidecar => mistakes.is_empty() || is_sidecar,
            Self::Command => mistakes.iter().all(|it| !it.source_name().starts_with("--")),
        }
    }
}

/// Returns whether the command line or the environment of this process asks for a sidecar.
pub fn is_sidecar(arguments: &[OsString]) -> bool {
    arguments.iter().any(|argument| argument == "--sidecar")
        || is_on(environment::of_process(SIDECAR_VARIABLE).as_deref())
}

/// The flag that names the file of settings.
const FILE_FLAG: &str = "--config.file";
const SIDECAR_VARIABLE: &str = "STEPMEM_SIDECAR";

/// Returns whether a switch is on. A value that a switch does not take counts as on: a sidecar
/// must not end for it.
fn is_on(value: Option<&str>) -> bool {
    value.is_some_and(|value| !["", "0", "false"].contains(&value))
}

/// The values of one setting, and the flag, variable or key that has them.
struct SourceValues {
    source_name: String,
    values: Vec<String>,
}

impl Sources {
    /// Reads every setting, together with the environment of this process.
    ///
    /// # Errors
    /// Every mistake in any source.
    pub fn read(&self) -> Result<Settings, ConfigError> {
        let names = environment::names();
        let mut warnings = misspelled::sentences(names.iter().map(String::as_str));
        let settings = self.read_in(&environment::of_process)?;
        warnings.extend(settings.web_file.as_ref().and_then(WebFile::warning));
        Ok(Settings { warnings, ..settings })
    }

    fn read_in(&self, environment: Environment<'_>) -> Result<Settings, ConfigError> {
        let mut mistakes: Vec<Mistake> =
            self.unknown_arguments.iter().cloned().map(Mistake::UnknownArgument).collect();
        let (file, in_file) = self.read_file(environment, &mut mistakes);
        let hides_settings = mistakes.iter().any(Mistake::hides_settings);
        let otlp = otlp::of_environment(environment, &mut mistakes);
        let mut draft = Draft::new(otlp, DeviceEnvironment::read(environment));
        let mut closed = Vec::new();
        let mut is_sidecar = false;
        for setting in SETTINGS {
            let given = self.of_flag(setting).or_else(|| of_variable(setting, environment));
            let of_file = || {
                let values = in_file.get(setting.key)?.clone();
                Some(SourceValues { source_name: format!("{file}: {}", setting.key), values })
            };
            let given = given.or_else(of_file);
            if setting.is_guard && hides_settings && given.is_none() {
                closed.push(setting);
            }
            let SourceValues { source_name, values } = given.unwrap_or_else(|| SourceValues {
                source_name: setting.key.to_owned(),
                values: vec![self.default_of(setting).to_owned()],
            });
            is_sidecar |=
                setting.key == keys::SIDECAR && is_on(values.first().map(String::as_str));
            if values.len() > 1 && !setting.is_repeatable {
                let n_values = values.len();
                mistakes.push(Mistake::Repeated { source_name, n_values });
                closed.push(setting);
            } else if let Err(error) = setting.set(&mut draft, &values) {
                mistakes.push(Mistake::Value { source_name, error });
                closed.push(setting);
            }
        }
        draft.settings.start = match self.leniency {
            _ if is_sidecar => StartMode::Sidecar,
            Leniency::Command => StartMode::Command,
            Leniency::None | Leniency::Sidecar => StartMode::Strict,
        };
        for setting in closed {
            setting.close(&mut draft);
        }
        let settings = draft.finish(&mut mistakes);
        if self.leniency.forgives(&mistakes, is_sidecar) {
            Ok(Settings { problems: mistakes.iter().map(problem).collect(), ..settings })
        } else {
            Err(ConfigError { mistakes, usable: Box::new(settings) })
        }
    }

    fn default_of(&self, setting: &Setting) -> &'static str {
        let own = self.defaults.iter().find(|(key, _)| *key == setting.key);
        own.map_or(setting.default, |(_, default)| default)
    }

    fn of_flag(&self, setting: &Setting) -> Option<SourceValues> {
        let values = self.flags.get(setting.key)?.clone();
        Some(SourceValues { source_name: format!("--{}", setting.key), values })
    }

    /// The file, and its values by key; a file that cannot be read has none, and is a mistake.
    fn read_file(
        &self,
        environment: Environment<'_>,
        mistakes: &mut Vec<Mistake>,
    ) -> (String, BTreeMap<String, Vec<String>>) {
        let of_flag = self.file.clone().map(|path| (FILE_FLAG, path));
        let of_variable = || {
            let path = environment(keys::FILE_VARIABLE)?;
            Some((keys::FILE_VARIABLE, PathBuf::from(path)))
        };
        let Some((source_name, path)) = of_flag.or_else(of_variable) else {
            return Default::default();
        };
        let file = path.display().to_string();
        let values = file::read(&path, source_name);
        let values = values.unwrap_or_else(|mistake| {
            mistakes.push(mistake);
            BTreeMap::new()
        });
        let unknown =
            values.keys().filter(|key| SETTINGS.iter().all(|setting| setting.key != **key));
        mistakes.extend(unknown.map(|key| Mistake::UnknownKey {
            file: file.clone(),
            key: key.clone(),
            meant: misspelled::meant(key),
        }));
        (file, values)
    }
}

fn problem(mistake: &Mistake) -> StartupProblem {
    let source_name = mistake.source_name();
    let is_source = |setting: &&Setting| {
        let key = source_name.strip_prefix("--").or(source_name.rsplit(": ").next());
        setting.variable() == source_name || key == Some(setting.key)
    };
    let of_no_row = match source_name {
        FILE_FLAG | keys::FILE_VARIABLE => "config.file",
        other => other,
    };
    let setting = SETTINGS.iter().find(is_source).map_or(of_no_row, |setting| setting.key);
    StartupProblem { setting: setting.to_owned(), reason: mistake.to_string() }
}

fn of_variable(setting: &Setting, environment: Environment<'_>) -> Option<SourceValues> {
    let source_name = setting.variable();
    let value = environment(&source_name)?;
    let values = if setting.is_repeatable {
        value.split(',').map(|part| part.trim().to_owned()).collect()
    } else {
        vec![value]
    };
    Some(SourceValues { source_name, values })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::time::Duration;

    use crate::config::settings::Settings;
    use crate::config::sources::Sources;
    use crate::config::table::{SETTINGS, Setting};

    /// Returns the settings by these flags in an environment with these variables, or the
    /// mistakes.
    fn read(
        flags: &[(&'static str, &str)],
        variables: &[(&str, &str)],
    ) -> Result<Settings, String> {
        let mut sources = Sources::default();
        for (key, value) in flags {
            sources.flags.entry(key).or_default().push((*value).to_owned());
        }
        let variables: BTreeMap<_, _> = variables.iter().copied().collect();
        let environment = |name: &str| variables.get(name).map(|value| (*value).to_owned());
        sources.read_in(&environment).map_err(|error| error.to_string())
    }

    #[test]
    fn defaults_of_the_table_are_those_of_the_rooms() {
        let of_table = read(&[], &[]).unwrap();
        assert_eq!(format!("{of_table:#?}"), format!("{:#?}", Settings::default()));
    }

    /// A value of each setting that is not its default.
    const OTHERS: &[(&str, &str)] = &[
        ("web.listen-address", "127.0.0.1:1"),
        ("web.telemetry-path", "/other"),
        ("web.allowed-hosts", "stepmem.example.com"),
        ("web.config.file", "tests/data/web-config.yml"),
        ("web.admin", "true"),
        ("push.listen-address", ":2"),
        ("push.unix-socket", "/run/push.sock:600"),
        ("push.token-file", "rustfmt.toml"),
        ("push.insecure", "true"),
        ("admin.token-file", "clippy.toml"),
        ("push.body-max", "1024"),
        ("rank.ttl", "1m"),
        ("rank.retention", "1h"),
        ("rank.max", "65535"),
        ("rank.peak-interval", "2m"),
        ("run.max", "1"),
        ("deadline", "90m"),
        ("creep.warmup-steps", "0"),
        ("creep.process-warmup", "0s"),
        ("creep.process-interval", "1s"),
        ("creep.capacity", "2GiB"),
        ("creep.critical-eta", "1h 30m"),
        ("pressure.warning", "0"),
        ("pressure.critical", "10"),
        ("imbalance.warning", "0.1"),
        ("imbalance.critical", "0.5"),
        ("no-nvml", "true"),
        ("nvml.library", "lib.so"),
        ("nvml.interval", "1s"),
        ("nvml.timeout", "1s"),
        ("nvml.devices", "GPU-a"),
        ("nvml.open-given-after", "2m"),
        ("nvml.no-process-names", "true"),
        ("kubelet.socket", "/run/kubelet.sock"),
        ("kubelet.pod", "team/train-0"),
        ("kubelet.cgroups", "/host/sys/fs/cgroup"),
        ("nvml.processes.max", "0"),
        ("snapshot.on-creep", "1"),
        ("snapshot.read-directory", "/snapshots"),
        ("snapshot.timeline-directory", "/timelines"),
        ("snapshot.steps", "1000"),
        ("snapshot.run-max", "64"),
        ("snapshot.cooldown", "0s"),
        ("holders.on-creep", "1"),
        ("checkpoint.before", "0s"),
        ("otlp.endpoint", "https://collector:4318"),
        ("otlp.protocol", "grpc"),
        ("otlp.interval", "90s"),
        ("otlp.semconv", "true"),
        ("state.file", "state"),
        ("summary.dir", "summaries"),
        ("summary.launches-max", "1"),
        ("workload", "llm-7b"),
        ("record.directory", "recordings"),
        ("record.max-bytes", "1MiB"),
        ("stop.linger", "1s"),
        ("sidecar", "true"),
        ("termination-message-path", "/run/message"),
        ("log.level", "debug"),
        ("log.format", "json"),
    ];

    #[test]
    fn every_row_sets_what_no_other_row_sets() {
        let keys: Vec<&str> = SETTINGS.iter().map(|setting| setting.key).collect();
        let of_others: Vec<&str> = OTHERS.iter().map(|(key, _)| *key).collect();
        assert_eq!(of_others, keys, "a row without a value here");
        // With a collector, an open push endpoint and a token on loopback, every part can be seen.
        let visible = |key: &'static str, value| {
            let mut flags = vec![
                ("otlp.endpoint", "http://c:1"),
                ("push.insecure", "true"),
                ("admin.token-file", "rustfmt.toml"),
                ("web.listen-address", "127.0.0.1:9477"),
            ];
            flags.retain(|(part, _)| *part != key);
            flags.extend((!key.is_empty()).then_some((key, value)));
            format!("{:?}", read(&flags, &[]).unwrap_or_else(|error| panic!("{key}: {error}")))
        };
        let rest = OTHERS.iter().filter(|(key, _)| *key != "push.insecure");
        let mut results: Vec<String> = rest.map(|(key, value)| visible(key, value)).collect();
        results.push(visible("", ""));
        let open = ("push.listen-address", ":2");
        assert!(read(&[open], &[]).unwrap_err().contains("--push.insecure"));
        assert!(read(&[open, ("push.insecure", "true")], &[]).is_ok());
        let n_results = results.len();
        results.sort();
        results.dedup();
        assert_eq!(results.len(), n_results, "two rows have the same effect, or one has none");
    }

    #[test]
    fn variables_name_one_setting_each() {
        let mut variables: Vec<String> = SETTINGS.iter().map(Setting::variable).collect();
        assert!(variables.contains(&"STEPMEM_NVML_PROCESSES_MAX".to_owned()));
        variables.sort();
        variables.dedup();
        assert_eq!(variables.len(), SETTINGS.len());
    }

    #[test]
    fn values_beyond_a_bound_are_refused_with_the_bound() {
        let check = |key: &'static str, value: &str, expected: &str| {
            let mistakes = read(&[(key, value)], &[]).unwrap_err();
            assert_eq!(mistakes, format!("--{key}: {expected}"));
        };
        check("push.body-max", "1023", "\"1023\" is not an integer of 1024 to 8388608");
        check("push.body-max", "8388609", "\"8388609\" is not an integer of 1024 to 8388608");
        check("nvml.processes.max", "4097", "\"4097\" is not an integer of 0 to 4096");
        check("snapshot.steps", "0", "\"0\" is not an integer of 6 to 1000");
        check("imbalance.critical", "10.1", "\"10.1\" is not a number of 0 to 10");
        check("imbalance.critical", "NaN", "\"NaN\" is not a number of 0 to 10");
        check("creep.warmup-steps", "1000001", "\"1000001\" is not an integer of 0 to 1000000");
        for size in ["GiB", "2 GiBs", "0", "-1GiB", "9000TiB", "1e3", "1..5GB"] {
            let sizes = "is not a size such as 2GiB, 512MB or 1000000, from 1 byte to 8PiB";
            check("creep.capacity", size, &format!("{size:?} {sizes}"));
        }
        check(
            "creep.warmup-steps",
            "=3",
            "\"=3\": run: a text of 0 bytes is outside 1..=128 bytes",
        );
        check(
            "stop.linger",
            "367days",
            "\"367days\" is not a duration such as 90s, 10m or 6h, up to a year",
        );
        check("stop.linger", "5", "\"5\" has no unit: write 5s, 5m or 5h");
        check("push.unix-socket", ":600", "\"\" is not an absolute path");
        check("push.unix-socket", "/s:1000", "mode \"1000\" is not octal, of 0 to 777");
        check("log.level", "loud", "\"loud\" is none of off, error, warn, info, debug, trace");
        check("otlp.protocol", "http", "\"http\" is neither http/protobuf nor grpc");
        check("otlp.endpoint", "c:1", "\"c:1\" begins with neither http:// nor https://");
        check(
            "otlp.endpoint",
            "http://c:4318/x/v1/metrics",
            "\"http://c:4318/x/v1/metrics\" ends in v1/metrics, which is appended: write http://c:4318/x",
        );
    }

    #[test]
    fn endpoint_of_all_signals_gets_the_path_of_metrics_and_that_of_metrics_does_not() {
        let url = |flags: &[(&'static str, &str)], variables: &[(&str, &str)]| {
            read(flags, variables).unwrap().otlp.unwrap().url()
        };
        let base = "http://prometheus:9090/api/v1/otlp";
        let metrics = "http://prometheus:9090/api/v1/otlp/v1/metrics";
        assert_eq!(url(&[("otlp.endpoint", base)], &[]), metrics);
        assert_eq!(url(&[], &[("OTEL_EXPORTER_OTLP_ENDPOINT", base)]), metrics);
        let both = [
            ("OTEL_EXPORTER_OTLP_ENDPOINT", base),
            ("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", "http://c/own"),
        ];
        assert_eq!(url(&[], &both), "http://c/own");
        assert_eq!(url(&[("otlp.endpoint", base)], &both), metrics);
    }

    #[test]
    fn variables_of_opentelemetry_fill_what_the_settings_leave_open() {
        let variables = [
            ("OTEL_EXPORTER_OTLP_METRICS_PROTOCOL", ""),
            ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"),
            ("OTEL_EXPORTER_OTLP_ENDPOINT", "https://of-all-signals:1"),
            ("OTEL_EXPORTER_OTLP_METRICS_TIMEOUT", "2500"),
            ("OTEL_METRIC_EXPORT_INTERVAL", "1500"),
        ];
        let otlp = read(&[], &variables).unwrap().otlp.unwrap();
        assert_eq!(format!("{:?}", otlp.transport), "Grpc");
        assert_eq!(otlp.timeout, Duration::from_millis(2500));
        assert_eq!(otlp.interval, Duration::from_millis(1500));
        assert_eq!(otlp.url(), "https://of-all-signals:1");
        let flags = [("otlp.interval", "9s"), ("otlp.endpoint", "http://c:1")];
        let otlp = read(&flags, &variables).unwrap().otlp.unwrap();
        assert_eq!((otlp.interval, &*otlp.url()), (Duration::from_secs(9), "http://c:1"));
        let mistake = read(&[], &[("OTEL_METRIC_EXPORT_INTERVAL", "1m")]).unwrap_err();
        let expected = "OTEL_METRIC_EXPORT_INTERVAL: \"1m\" is not a number of milliseconds";
        assert_eq!(mistake, expected);
    }

    #[test]
    fn mistakes_of_several_settings_together_are_named() {
        let check = |flags: &[(&'static str, &str)], expected: &str| {
            assert_eq!(read(flags, &[]).unwrap_err(), expected);
        };
        check(
            &[("imbalance.warning", "0.4")],
            "imbalance.warning: 0.4 exceeds imbalance.critical, which is 0.3",
        );
        check(&[("rank.ttl", "7h")], "rank.retention: it is shorter than rank.ttl");
    }
}
