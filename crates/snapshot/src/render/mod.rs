//! An analysis as text, JSON and an HTML document.

mod born;
pub(crate) mod compared;
pub(crate) mod html;
pub(crate) mod json;
pub(crate) mod layout;
pub(crate) mod text;
pub(crate) mod text_of_many;
pub(crate) mod words;
