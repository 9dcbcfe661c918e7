//! After the run: what a person reads when it has ended, and how they see that a fix worked. Pure: recordings, files and
//! the time come from outside.

pub mod summary;

pub mod explain;

pub mod section;

pub mod card;

pub mod side;

pub mod compare;

pub mod traceml;

pub mod traceml_card;
