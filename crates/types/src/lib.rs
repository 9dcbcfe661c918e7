//! The vocabulary: names, quantities, steps and devices. It depends on nothing; if a value
//! exists, it is in range.
//!
//! ```
//! use stepmem_types::format::units::bytes;
//! use stepmem_types::units::Bytes;
//!
//! let read = Bytes::new(3 << 29).unwrap();
//! assert_eq!(bytes(read.as_f64()), "1.50 GiB");
//! assert!(Bytes::new(u64::MAX).is_err());
//! ```

#![warn(missing_docs)]

pub mod characters;
pub mod claims;
pub mod device;
pub mod end;
pub mod format;
pub mod host;
pub mod ids;
pub mod launch;
pub mod nvml_code;
pub mod refused;
pub mod saved;
pub mod site;
pub mod step;
pub mod units;
pub mod url;
