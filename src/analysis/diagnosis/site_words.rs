//! The words about the code behind growth: the line that allocates, and the object that holds.

use crate::model::site::{LeakSite, SiteVerdict, TensorHolder};
use crate::text::units::{bytes, grouped, percent};

/// Says which line a snapshot shows, or that it shows none.
pub fn of(site: &LeakSite) -> String {
    match (site.verdict, &site.at) {
        (SiteVerdict::Leak, Some(at)) => {
            let share = site.share_ratio.map_or("most".to_owned(), percent);
            format!("{share} of it is allocated at {at}")
        }
        (SiteVerdict::InsufficientHistory, _) => {
            format!("its snapshot has {} whole steps, too few for a verdict", site.steps)
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

/// Says which object holds the tensors.
pub fn of_holder(holder: &TensorHolder) -> String {
    let tensors = holder.tensors.get();
    let noun = if tensors == 1 { "tensor" } else { "tensors" };
    let mut text = format!(
        "{} ({}, {} more/step; {} {noun}, {})",
        holder.name,
        holder.kind,
        bytes(holder.bytes_per_step),
        grouped(tensors),
        bytes(holder.bytes.as_f64())
    );
    if let Some(at) = &holder.at {
        text = format!("{text} of {at}");
    }
    text
}
