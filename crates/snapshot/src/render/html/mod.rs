//! One document for a browser: the pictures of a snapshot with its tables and verdicts, in one
//! file that asks the network for nothing. What is drawn is summed up before it is written, so
//! that the file is small whatever the snapshot's size.

pub mod escape;

pub mod markup;

pub mod bars;

pub mod detail;

pub mod samples;

pub mod bands;

pub mod map;

pub mod blocks;

pub mod picture;

pub mod tables;

pub mod document;

pub mod compared;
