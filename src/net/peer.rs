//! The identity of the other end of a connection.

use std::fmt;
use std::net::IpAddr;

/// The other end of a connection, as far as the system knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peer {
    /// The address of a TCP connection.
    Address(IpAddr),
    /// The process that connected to a Unix socket. The process id is 0 where it is not visible
    /// from here.
    Process { uid: u32, pid: i32 },
    /// The system did not report it.
    Unknown,
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(address) => write!(f, "{address}"),
            Self::Process { uid, pid: 0 } => write!(f, "uid {uid}"),
            Self::Process { uid, pid } => write!(f, "uid {uid}, pid {pid}"),
            Self::Unknown => f.write_str("unknown"),
        }
    }
}
