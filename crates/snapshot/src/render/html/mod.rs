//! One document for a browser: the pictures of a snapshot with its tables and verdicts, in one
//! file that asks the network for nothing. What is drawn is summed up before it is written, so
//! that the file is small whatever the snapshot's size.

pub(crate) mod escape;

pub(crate) mod markup;

pub(crate) mod bars;

pub(crate) mod detail;

pub(crate) mod samples;

pub(crate) mod bands;

pub(crate) mod map;

pub(crate) mod blocks;

pub(crate) mod picture;

pub(crate) mod tables;

pub(crate) mod document;

pub(crate) mod compared;
