//! Devices and their processes, by a library with NVML's C ABI that is loaded as the driver's is. First the poller alone,
//! then the exporter around it, then everything at once and for long.

mod devices;

mod processes;

mod losses;

mod choice;

mod faults;

mod release;

mod xids;

mod owners;

mod own_process;

mod given;

mod kubepods;

mod silent;

mod storm;
mod unified;

mod soak;
