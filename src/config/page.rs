//! The settings as a page of documentation.

use crate::config::table::SETTINGS;

/// Returns the page: `docs/settings.md`.
pub fn document() -> String {
    let mut page = String::from(
        "# Settings\n\nGenerated from the table in `src/config/table.rs`. A flag overrides its environment variable, which \
         overrides the\nfile (`--config.file`, or `STEPMEM_CONFIG_FILE`; TOML or YAML by its extension, keys nested or \
         dotted), which overrides\nthe default. Durations are written as `90s`, `10m` or `1h 30m`.\n\n\
         | flag, file key | environment | default | description |\n|---|---|---|---|\n",
    );
    for setting in SETTINGS {
        let value = if setting.is_switch() {
            String::new()
        } else {
            format!(" {}", setting.value_name)
        };
        let default = match setting.default {
            "" => "none".to_owned(),
            default => format!("`{default}`"),
        };
        let repeatable = if setting.is_repeatable { " Repeatable." } else { "" };
        let (key, variable, help) = (setting.key, setting.variable(), setting.help);
        let row =
            format!("| `--{key}{value}` | `{variable}` | {default} | {help}{repeatable} |\n");
        page.push_str(&row);
    }
    page
}
