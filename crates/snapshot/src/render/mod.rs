//! An analysis as text, JSON and an HTML document.

mod born;
pub mod html;
pub mod json;
pub mod layout;
pub mod text;
pub mod text_of_many;
pub mod words;
