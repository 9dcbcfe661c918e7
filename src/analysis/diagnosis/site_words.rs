//! The words about the code behind growth: the line that allocates, and the object that holds.

use crate::model::site::{LeakSite, SiteVerdict, TensorHolder};
use crate::text::units::{bytes, grouped, many, percent};

/// Says which line a snapshot shows, or that it shows none.
pub fn of(site: &LeakSite) -> String {
    match (site.verdict, &site.at) {
        (SiteVerdict::Leak, Some(at)) => {
            let share = site.share_ratio.map_or("most".to_owned(), percent);
            format!("{share} of it is allocated at {at}")
        }
        (SiteVerdict::InsufficientHistory, _) => {
            let steps = many(site.steps, "whole step");
            format!("its snapshot has {steps}, too few for a verdict")
        }
        (SiteVerdict::Leak | SiteVerdict::None, _) => {
            let most = site.at.as_ref().zip(site.bytes_per_step);
            let most = most.map_or_else(String::new, |(at, rate)| {
                format!("; the largest growth in its snapshot is {}/step at {at}", bytes(rate))
            });
            format!("no single line explains it{most}")
        }
    }
}

/// Returns what to look at first where a line or an object is known.
pub fn advice(site: Option<&LeakSite>, holder: Option<&TensorHolder>) -> Option<String> {
    let line = site.filter(|site| site.verdict == SiteVerdict::Leak);
    let line = line.and_then(|site| site.at.as_ref());
    match (holder, line) {
        (Some(TensorHolder { name, at: Some(at), .. }), _) => {
            Some(format!("Look at {name} of {at}: it keeps more at every step. {REMEDY}"))
        }
        (Some(TensorHolder { name, at: None, .. }), Some(at)) => Some(format!(
            "Look at {name}, and at {at}, which allocates what it keeps. {REMEDY}"
        )),
        (Some(TensorHolder { name, at: None, .. }), None) => {
            Some(format!("Look at {name}: it keeps more at every step. {REMEDY}"))
        }
        (None, Some(at)) => {
            Some(format!("Look at {at}: what it allocates is kept across steps. {REMEDY}"))
        }
        (None, None) => None,
    }
}

/// What ends most leaks whose line is known.
const REMEDY: &str =
    "Keep detached values or numbers (detach(), item()), bound it, or empty it.";

/// Tensors that take less than this share of the growth are not what takes the memory: what they keep alive is, such as the
/// graph behind a loss, whose bytes no search sees.
const OWN_SHARE_MIN: f64 = 0.1;

/// Says which object holds the tensors, of a process that grows by `slope` bytes a step.
pub fn of_holder(holder: &TensorHolder, slope: Option<f64>) -> String {
    let tensors = holder.tensors.get();
    let noun = if tensors == 1 { "tensor" } else { "tensors" };
    let (name, kind, n) = (&holder.name, &holder.kind, grouped(tensors));
    let own = holder.bytes_per_step;
    let mut text = if slope.is_some_and(|slope| own < OWN_SHARE_MIN * slope) {
        let they_keep = if tensors == 1 { "it keeps" } else { "they keep" };
        format!("{name} ({kind}, {n} {noun} and what {they_keep} alive)")
    } else {
        let (own, all) = (bytes(own), bytes(holder.bytes.as_f64()));
        format!("{name} ({kind}, {own} more/step; {n} {noun}, {all})")
    };
    if let Some(at) = &holder.at {
        text = format!("{text} of {at}");
    }
    text
}
