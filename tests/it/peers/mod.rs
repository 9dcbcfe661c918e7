//! The exporter against programs that others wrote. `tests/peers/install.sh` installs them, `make tools` calls it.

mod demo;

mod otlp;
mod otlp_failures;
mod otlp_names;
mod otlp_stack;
