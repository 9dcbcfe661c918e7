//! The words of a name.

/// Returns the words of a name in small letters, also those that only a capital begins.
pub(super) fn words(name: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut word = String::new();
    let mut was_small = false;
    for c in name.chars() {
        let is_begun = c.is_ascii_uppercase() && was_small;
        if (is_begun || !c.is_ascii_alphanumeric()) && !word.is_empty() {
            words.push(std::mem::take(&mut word));
        }
        if c.is_ascii_alphanumeric() {
            word.push(c.to_ascii_lowercase());
        }
        was_small = c.is_ascii_lowercase() || c.is_ascii_digit();
    }
    words.extend(Some(word).filter(|word| !word.is_empty()));
    words
}

#[cfg(test)]
mod tests {
    use super::words;

    #[test]
    fn capitals_begin_words() {
        assert_eq!(words("memoryAllocatedBytes"), ["memory", "allocated", "bytes"]);
        assert_eq!(words("DCGM_FI_DEV_FB_USED"), ["dcgm", "fi", "dev", "fb", "used"]);
        assert_eq!(words("gpu0Mem (GB)"), ["gpu0", "mem", "gb"]);
        assert!(words("—").is_empty());
    }
}
