//! Pushes through the real socket: what is taken, what is refused and how, and what it does not disturb.

mod records;
mod roles;

mod bodies;

mod limits;

mod access;
