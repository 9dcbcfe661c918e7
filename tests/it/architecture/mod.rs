//! Documents against the code: the table of bounds, the promises of the security page, the push format; and the tests against
//! each other. `source` reads the files, by lines, and each rule has a planted breach that it must find.

mod source;

mod push_format;

mod bounds;

mod values;

mod standalone;

mod promises;
