//! Zstandard: files of several frames, as tools and loggers write them.

use std::io::{self, BufRead, Read};

use ruzstd::decoding::{FrameDecoder, StreamingDecoder};
use ruzstd::encoding::{CompressionLevel, compress_to_vec};

/// Returns a separate frame, which readers decompress regardless of the data before it.
pub fn frame(content: &[u8]) -> Vec<u8> {
    compress_to_vec(content, CompressionLevel::Fastest)
}

/// Reads frames of Zstandard one after the other; skippable ones are skipped.
pub struct ZstdFrames<R: BufRead> {
    source: Option<R>,
    frame: Option<Box<StreamingDecoder<R, FrameDecoder>>>,
}

impl<R: BufRead> ZstdFrames<R> {
    pub fn new(source: R) -> Self {
        Self { source: Some(source), frame: None }
    }
}

impl<R: BufRead> Read for ZstdFrames<R> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        loop {
            if let Some(frame) = &mut self.frame {
                let n_read = frame.read(out)?;
                if n_read > 0 || out.is_empty() {
                    return Ok(n_read);
                }
                self.source = self.frame.take().map(|frame| frame.into_inner());
            }
            let Some(mut source) = self.source.take() else { return Ok(0) };
            if source.fill_buf()?.is_empty() {
                return Ok(0);
            }
            // A skippable frame: its header names its length.
            let is_skippable = matches!(source.fill_buf()?, [0x50..=0x5f, 0x2a, ..]);
            if is_skippable {
                let mut header = [0; 8];
                source.read_exact(&mut header)?;
                let [.., a, b, c, d] = header;
                let length = u64::from(u32::from_le_bytes([a, b, c, d]));
                io::copy(&mut source.by_ref().take(length), &mut io::sink())?;
                self.source = Some(source);
                continue;
            }
            let frame = StreamingDecoder::new(source).map_err(io::Error::other)?;
            self.frame = Some(Box::new(frame));
        }
    }
}
