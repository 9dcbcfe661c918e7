//! The allocations that are alive at a moment as a tree: from the outermost frame of the
//! program to the line that allocated.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use crate::analyze::device_report::DeviceReport;
use crate::analyze::sites::{Site, Sum};
use crate::integer::at;
use crate::render::words;

/// Frames of a stack that have branches of their own in a tree: the innermost ones.
pub(crate) const TREE_DEPTH_MAX: usize = 64;

/// A frame with everything below it.
#[derive(Clone, Debug)]
pub struct TreeRow {
    /// 0 for an outermost frame.
    pub depth: usize,
    pub site: Site,
    /// The node's name for a page.
    pub name: String,
    /// The bytes that are alive below it.
    pub sum: Sum,
    /// Number of frames that are directly below it.
    pub n_children: usize,
}

/// The key of a branch at a depth: a frame by number, or a site where a stack has no frame of
/// the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum BranchKey {
    Frame(u32),
    Site(u32),
}

/// A node before it has its place.
struct Node {
    key: BranchKey,
    sum: Sum,
    children: BTreeMap<BranchKey, usize>,
}

/// The allocations that are alive in a state, from the outside in; of two, the larger first.
pub fn alive(report: &DeviceReport<'_>, state: Option<u32>) -> Vec<TreeRow> {
    let nodes = grow(report, state);
    let mut rows = Vec::with_capacity(nodes.len());
    let mut open: Vec<(usize, usize)> = Vec::new();
    let by_size = |children: &BTreeMap<BranchKey, usize>| {
        let mut children: Vec<usize> = children.values().copied().collect();
        // The next one is taken from the end.
        children.sort_by_key(|child| {
            let node = nodes.get(*child);
            (node.map_or(0, |node| node.sum.bytes), Reverse(node.map(|node| node.key)))
        });
        children
    };
    if let Some(root) = nodes.first() {
        open.extend(by_size(&root.children).into_iter().map(|child| (child, 0)));
    }
    while let Some((number, depth)) = open.pop() {
        let Some(node) = nodes.get(number) else { continue };
        let (site, name) = site_of(report, node.key, state);
        rows.push(TreeRow {
            depth,
            site,
            name,
            sum: node.sum,
            n_children: node.children.len(),
        });
        open.extend(by_size(&node.children).into_iter().map(|child| (child, depth + 1)));
    }
    rows
}

/// The nodes; the first is the root of them all.
fn grow(report: &DeviceReport<'_>, state: Option<u32>) -> Vec<Node> {
    let scene = &report.scene;
    let mut of_origin = vec![Sum::default(); scene.sites.n_origins()];
    for allocation in &scene.timeline.allocations {
        let is_alive = allocation.is_alive_in(state);
        if let Some(sum) =
            of_origin.get_mut(at(scene.sites.origin(allocation))).filter(|_| is_alive)
        {
            sum.add(allocation);
        }
    }
    let node = |key| Node { key, sum: Sum::default(), children: BTreeMap::new() };
    let mut nodes = vec![node(BranchKey::Site(0))];
    for (origin, sum) in (0..).zip(of_origin).filter(|(_, sum)| sum.blocks > 0) {
        let mut place = 0;
        for key in path(report, origin) {
            let next = nodes.len();
            let Some(parent) = nodes.get_mut(place) else { break };
            place = *parent.children.entry(key).or_insert(next);
            if place == next {
                nodes.push(node(key));
            }
            if let Some(node) = nodes.get_mut(place) {
                node.sum.join(sum);
            }
        }
    }
    nodes
}

/// The frames of the program from the outermost one; the site alone where there are none.
fn path(report: &DeviceReport<'_>, origin: u32) -> Vec<BranchKey> {
    let sites = report.scene.sites;
    let frames = sites.user_frames(report.scene.snapshot, origin).take(TREE_DEPTH_MAX);
    let mut keys: Vec<BranchKey> = frames.map(BranchKey::Frame).collect();
    keys.reverse();
    if keys.is_empty() {
        keys.push(BranchKey::Site(sites.of_origin(origin)));
    }
    keys
}

/// The site of a branch, and its name.
fn site_of(report: &DeviceReport<'_>, key: BranchKey, state: Option<u32>) -> (Site, String) {
    let scene = &report.scene;
    match key {
        BranchKey::Frame(frame) => {
            let site = Site::of_frame(scene.snapshot, frame);
            let name = words::name(&site);
            (site, name)
        }
        BranchKey::Site(site) => (
            scene.sites.site(site).cloned().unwrap_or(Site::NOWHERE),
            words::name_in(scene, site, state),
        ),
    }
}
