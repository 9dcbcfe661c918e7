//! The names of a certificate, in the form of X.509. The certificate's chain and signature are
//! checked elsewhere.

use std::net::IpAddr;

/// The object identifier of subject alternative names, 2.5.29.17.
const ALTERNATIVE_NAMES: [u8; 3] = [0x55, 0x1D, 0x11];
const SEQUENCE: u8 = 0x30;
const OCTETS: u8 = 0x04;
/// The extensions among the fields of a certificate.
const EXTENSIONS: u8 = 0xA3;
/// The kinds of names.
const EMAIL: u8 = 0x81;
const DNS: u8 = 0x82;
const URI: u8 = 0x86;
const ADDRESS: u8 = 0x87;

/// Returns the names of hosts, the addresses, the mail addresses and the URIs that a
/// certificate is for. `None` if the bytes are not a certificate.
pub(super) fn alternative_names(certificate: &[u8]) -> Option<Vec<String>> {
    let certificate = Elements(certificate).next_of(SEQUENCE)?;
    let fields = Elements(Elements(certificate).next_of(SEQUENCE)?);
    let mut names = Vec::new();
    for (tag, field) in fields {
        if tag != EXTENSIONS {
            continue;
        }
        for (_, extension) in Elements(Elements(field).next_of(SEQUENCE)?) {
            let mut parts = Elements(extension);
            let (_, identifier) = parts.next()?;
            // A flag may come in between, which marks the extension as critical.
            let (_, value) = parts.find(|(tag, _)| *tag == OCTETS)?;
            if identifier == ALTERNATIVE_NAMES {
                let of_extension = Elements(Elements(value).next_of(SEQUENCE)?);
                names.extend(of_extension.filter_map(|(tag, name)| text(tag, name)));
            }
        }
    }
    Some(names)
}

/// Returns a name of a known kind as text.
fn text(tag: u8, name: &[u8]) -> Option<String> {
    match tag {
        EMAIL | DNS | URI => std::str::from_utf8(name).ok().map(str::to_owned),
        ADDRESS => {
            let of_four = <[u8; 4]>::try_from(name).map(IpAddr::from).ok();
            let of_sixteen = || <[u8; 16]>::try_from(name).map(IpAddr::from).ok();
            of_four.or_else(of_sixteen).map(|address| address.to_canonical().to_string())
        }
        _ => None,
    }
}

/// The elements of a DER value, as tag and content. Ends at the first that is incomplete.
struct Elements<'d>(&'d [u8]);

impl<'d> Elements<'d> {
    /// Returns the content of the next element, which has this tag.
    fn next_of(mut self, tag: u8) -> Option<&'d [u8]> {
        self.next().filter(|(of_next, _)| *of_next == tag).map(|(_, content)| content)
    }
}

impl<'d> Iterator for Elements<'d> {
    type Item = (u8, &'d [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        let ([tag, length], rest) = self.0.split_first_chunk()?;
        let (n_bytes, rest) = match length {
            short @ ..=0x7F => (usize::from(*short), rest),
            // A certificate has less than 16 MiB.
            long @ 0x81..=0x83 => {
                let (digits, rest) = rest.split_at_checked(usize::from(long & 0x0F))?;
                (digits.iter().fold(0, |sum, digit| (sum << 8) | usize::from(*digit)), rest)
            }
            _ => return None,
        };
        let (content, rest) = rest.split_at_checked(n_bytes)?;
        self.0 = rest;
        Some((*tag, content))
    }
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, KeyPair, SanType};

    use crate::net::certificate::alternative_names;

    fn certificate() -> Vec<u8> {
        let mut params = CertificateParams::new(vec!["scraper.team".to_owned()]).unwrap();
        let uri = "spiffe://cluster.local/ns/monitoring/sa/prometheus";
        params.subject_alt_names.extend([
            SanType::URI(uri.try_into().unwrap()),
            SanType::Rfc822Name("ops@example.com".try_into().unwrap()),
            SanType::IpAddress("10.0.0.7".parse().unwrap()),
            SanType::IpAddress("fd00::7".parse().unwrap()),
        ]);
        params.self_signed(&KeyPair::generate().unwrap()).unwrap().der().to_vec()
    }

    #[test]
    fn names_of_every_kind_are_read() {
        let expected = [
            "scraper.team",
            "spiffe://cluster.local/ns/monitoring/sa/prometheus",
            "ops@example.com",
            "10.0.0.7",
            "fd00::7",
        ];
        assert_eq!(alternative_names(&certificate()).unwrap(), expected);
        let params = CertificateParams::new(Vec::new()).unwrap();
        let nameless = params.self_signed(&KeyPair::generate().unwrap()).unwrap();
        assert_eq!(alternative_names(nameless.der()), Some(Vec::new()));
    }

    #[test]
    fn broken_certificates_have_no_names_that_the_whole_one_has_not() {
        let whole = certificate();
        let names = alternative_names(&whole).unwrap();
        for end in 0..whole.len() {
            assert_eq!(alternative_names(&whole[..end]), None, "{end}");
        }
        for idx in 0..whole.len() {
            let mut broken = whole.clone();
            broken[idx] ^= 0x80;
            let n_names = alternative_names(&broken).map_or(0, |names| names.len());
            assert!(n_names <= names.len(), "{idx}");
        }
    }
}
