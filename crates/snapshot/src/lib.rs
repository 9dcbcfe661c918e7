//! PyTorch memory snapshots: from the bytes of a pickle to the line that leaks.

pub mod num;

pub mod arena;

pub mod value;

pub mod keys;

pub mod fault;

pub mod sniff;

pub mod rounding;

pub mod model;

pub mod raw;

pub mod lists;

pub mod schema;

pub mod pickle;

pub mod load;

pub mod replay;

pub mod sites;

pub mod roles;

pub mod phases;

pub mod heads;

pub mod steps;

pub mod scene;

pub mod floors;

pub mod queues;

pub mod leak;

pub mod fragmentation;

pub mod past;

pub mod oom;

pub mod categories;

pub mod note;

pub mod skipped;

pub mod gradients;

pub mod lingering;

pub mod casts;

pub mod notes;

pub mod stages;

pub mod causes;

pub mod study;

pub mod fit;

pub mod words;

pub mod answer;

pub mod places;

pub mod diff;

pub mod ranks;

pub mod passes;

pub mod shown;

pub mod page;

pub mod page_of_many;

pub mod events;

pub mod html;

pub mod writer;
