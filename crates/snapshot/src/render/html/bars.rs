//! Bars: pictures of a few figures, as shapes in the markup. They need no script and follow the
//! reader's colors.

use crate::render::html::escape::escaped;

/// Units that a picture is wide.
const WIDTH: f64 = 1000.0;
/// A shape that is there is at least so wide.
const SEEN: f64 = 2.0;

/// A piece of a bar: where it begins and ends, its class in page.css, and its label for a
/// pointer.
#[derive(Clone, Debug, Default)]
pub(crate) struct BarPiece {
    pub from: f64,
    pub to: f64,
    pub class: String,
    pub label: String,
}

/// A bar whose pieces are parts of `whole`, the first at the bottom. The figures are to stand
/// next to it.
pub(crate) fn bar(pieces: &[BarPiece], whole: f64) -> String {
    let mut html = String::from(
        "<svg class=\"bar\" viewBox=\"0 0 1000 14\" preserveAspectRatio=\"none\" aria-hidden=\"true\">",
    );
    for piece in pieces.iter().filter(|piece| piece.to > piece.from) {
        let [left, right] = [piece.from, piece.to]
            .map(|part| (part / whole.max(1.0) * WIDTH).clamp(0.0, WIDTH));
        let width = (right - left).max(SEEN);
        let left = left.min(WIDTH - SEEN);
        let shape = format!(
            "<rect class=\"{}\" x=\"{left:.1}\" y=\"0\" width=\"{width:.1}\" height=\"14\">",
            piece.class
        );
        html.push_str(&shape);
        if !piece.label.is_empty() {
            html.push_str("<title>");
            html.push_str(&escaped(&piece.label));
            html.push_str("</title>");
        }
        html.push_str("</rect>");
    }
    html.push_str("</svg>");
    html
}

/// A bar to the right of the middle for growth, to the left for what shrank. `most`: what fills
/// one side.
pub(crate) fn growth(change: f64, most: f64) -> String {
    let class = if change >= 0.0 { "is-growth" } else { "is-fall" }.to_owned();
    let (from, to) = (most + change.min(0.0), most + change.max(0.0));
    bar(&[BarPiece { from, to, class, ..BarPiece::default() }], 2.0 * most)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn piece(from: f64, to: f64) -> BarPiece {
        BarPiece { from, to, class: "band-0".to_owned(), label: "<b>".to_owned() }
    }

    #[test]
    fn pieces_are_as_wide_as_their_share() {
        let html = bar(&[piece(0.0, 50.0), piece(50.0, 50.0), piece(50.0, 200.0)], 200.0);
        assert!(html.contains("x=\"0.0\" y=\"0\" width=\"250.0\""), "{html}");
        assert!(html.contains("x=\"250.0\" y=\"0\" width=\"750.0\""), "{html}");
        assert!(
            html.contains("<title>&lt;b&gt;</title>") && html.matches("<rect").count() == 2
        );
    }

    #[test]
    fn a_sliver_is_seen_and_nothing_leaves_the_picture() {
        assert!(bar(&[piece(0.0, 1.0)], 1e18).contains("x=\"0.0\" y=\"0\" width=\"2.0\""));
        let end = bar(&[piece(1e18 - 1.0, 1e18)], 1e18);
        assert!(!end.contains("<rect") || end.contains("x=\"998.0\" y=\"0\" width=\"2.0\""));
        assert!(growth(-9.0, 7.0).contains("x=\"0.0\" y=\"0\" width=\"500.0\""));
        assert!(growth(7.0, 7.0).contains("x=\"500.0\" y=\"0\" width=\"500.0\""));
    }
}
