//! Lines of several files side by side: paths are cut to the folder that they share. Two
//! checkouts of one project, and two environments with one package, can then be compared.

use std::collections::HashSet;

use crate::analyze::sites::{FrameKind, Site, Sites};
use crate::integer::at;
use crate::model::Snapshot;

/// The folders of a file's own code and of its packages.
#[derive(Clone, Debug, Default)]
pub(crate) struct PathNormalizer {
    /// Files of the user.
    files: HashSet<String>,
}

impl PathNormalizer {
    /// The user's files of a snapshot.
    pub(crate) fn new(snapshot: &Snapshot, sites: &Sites) -> Self {
        let frames = snapshot.frames.iter().zip(&sites.frame_kinds);
        let files: HashSet<u32> = frames
            .filter(|(_, kind)| **kind == FrameKind::User)
            .map(|(frame, _)| frame.file)
            .collect();
        Self {
            files: files
                .into_iter()
                .map(|file| snapshot.text(file).replace('\\', "/"))
                .collect(),
        }
    }

    /// Returns whether both have a file of the user with the same path.
    fn meets(&self, other: &Self) -> bool {
        self.files.is_empty() || other.files.is_empty() || !self.files.is_disjoint(&other.files)
    }

    /// The folder that all files of the user are in, with its last slash; the shortest of them
    /// otherwise.
    fn root(&self) -> String {
        let mut folders = self
            .files
            .iter()
            .filter_map(|file| file.rsplit_once('/').map(|(folder, _)| folder));
        let Some(first) = folders.next() else { return String::new() };
        let mut shared: Vec<&str> = first.split('/').collect();
        for folder in folders {
            let same =
                shared.iter().zip(folder.split('/')).take_while(|(a, b)| **a == *b).count();
            shared.truncate(same);
        }
        shared.join("/") + "/"
    }
}

/// Returns the prefix that is cut from the paths of each file: nothing if the files have files
/// of the user in common.
pub(crate) fn roots(normalizers: &[PathNormalizer]) -> Vec<String> {
    let is_shared = normalizers
        .first()
        .is_none_or(|first| normalizers.iter().all(|each| first.meets(each)));
    normalizers.iter().map(|each| if is_shared { String::new() } else { each.root() }).collect()
}

/// A site as it is compared.
pub(crate) fn comparable(site: &Site, root: &str) -> Site {
    let Some(file) = &site.file else { return site.clone() };
    let path = file.replace('\\', "/");
    let packages = ["/site-packages/", "/dist-packages/"];
    let inner =
        packages.iter().find_map(|folder| path.split_once(folder).map(|(_, inner)| inner));
    let cut = inner.or(path.strip_prefix(root)).unwrap_or(&path);
    Site { file: Some(cut.to_owned()), ..site.clone() }
}

/// The sites of a snapshot as they are compared, by number.
pub(crate) fn all_comparable(sites: &Sites, root: &str) -> Vec<Site> {
    sites.sites.iter().map(|site| comparable(site, root)).collect()
}

/// The comparable form of a site by number.
pub(crate) fn of(comparable: &[Site], site: u32) -> &Site {
    comparable.get(at(site)).unwrap_or(&Site::NOWHERE)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn normalizers(files: &[&str]) -> PathNormalizer {
        PathNormalizer { files: files.iter().map(|file| (*file).to_owned()).collect() }
    }

    #[test]
    fn two_checkouts_are_cut_to_their_roots() {
        let both = [
            normalizers(&["/a/job/train.py", "/a/job/src/m.py"]),
            normalizers(&["/b/train.py"]),
        ];
        assert_eq!(roots(&both), ["/a/job/", "/b/"]);
        let site = Site { file: Some("/a/job/src/m.py".to_owned()), ..Site::NOWHERE };
        assert_eq!(comparable(&site, "/a/job/").file.as_deref(), Some("src/m.py"));
    }

    #[test]
    fn one_checkout_keeps_its_paths() {
        let both = [normalizers(&["/a/train.py", "/log/x.py"]), normalizers(&["/a/train.py"])];
        assert_eq!(roots(&both), ["", ""]);
    }
}
