//! Every target with its seeds, and with so many mutants of them: the same ones each time, so that a failure is found
//! again. A panic names the input.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::time::Duration;

use stepmem_fuzz_targets::{TARGETS, Target, scratch};
use tokio::time::Instant;

/// The time that a target's mutants take at most; slow machines try fewer.
const WITHIN: Duration = Duration::from_secs(2);
/// Mutants of a target.
const MUTANTS: u32 = 20_000;
/// The longest mutant, in bytes.
const BYTES_MAX: usize = 16 * 1024;
/// What is inserted beside parts of seeds.
const PIECES: [&[u8]; 24] = [
    b"\0",
    b"\xff",
    b"\r\n",
    b"\"",
    b"\\",
    b"{",
    b"}",
    b"[",
    b"]",
    b",",
    b":",
    b"-",
    b"1e308",
    b"18446744073709551616",
    b"9007199254740993",
    b"-1",
    b"null",
    b"\\u001b",
    b"\xe2\x80\xae",
    b"Transfer-Encoding: chunked\r\n",
    b"Host: b\r\n",
    b"ffffffff\r\n",
    b"NaN",
    b"\x80\x02}q\0",
];

/// Numbers that look random, the same for the same seed (xorshift64*).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    fn below(&mut self, n: usize) -> usize {
        usize::try_from(self.next() % u64::try_from(n.max(1)).unwrap()).unwrap()
    }
}

fn seeds(target: &Target) -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../seeds").join(target.name);
    let entries =
        std::fs::read_dir(&folder).unwrap_or_else(|error| panic!("{folder:?}: {error}"));
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths.iter().map(|path| std::fs::read(path).unwrap()).collect()
}

fn mutant(random: &mut Random, seeds: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = seeds[random.below(seeds.len())].clone();
    for _ in 0..=random.below(5) {
        let at = random.below(bytes.len() + 1);
        let end = bytes.len().min(at + random.below(16));
        match random.below(6) {
            0 if at < bytes.len() => bytes[at] ^= 1 << random.below(8),
            1 if at < bytes.len() => bytes[at] = u8::try_from(random.below(256)).unwrap(),
            2 => drop(bytes.drain(at..end)),
            3 => {
                let part = bytes[at..end].to_vec();
                drop(bytes.splice(at..at, part));
            }
            4 => drop(bytes.splice(at..at, PIECES[random.below(PIECES.len())].iter().copied())),
            _ => {
                let other = &seeds[random.below(seeds.len())];
                let from = random.below(other.len() + 1);
                bytes.truncate(at);
                bytes.extend(&other[from..]);
            }
        }
    }
    bytes.truncate(BYTES_MAX);
    bytes
}

fn check(target: &Target, input: &[u8]) {
    let outcome = catch_unwind(AssertUnwindSafe(|| (target.run)(input)));
    assert!(outcome.is_ok(), "{} fails on {:?}", target.name, String::from_utf8_lossy(input));
}

#[test]
fn every_target_withstands_its_seeds_and_mutants_of_them() {
    for target in &TARGETS {
        let seeds = seeds(target);
        assert!(!seeds.is_empty(), "{} has no seeds", target.name);
        seeds.iter().for_each(|seed| check(target, seed));
        let (mut random, began) = (Random(0x9E37_79B9_7F4A_7C15), Instant::now());
        for n in 0..MUTANTS {
            if n % 64 == 0 && began.elapsed() > WITHIN {
                break;
            }
            check(target, &mutant(&mut random, &seeds));
        }
    }
    scratch::remove();
}
