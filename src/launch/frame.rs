//! Reports as text: how a probe that cannot reach the driver's socket (another
//! namespace, another machine) gets its report through, between whatever else
//! is printed. A report is cut into short lines that survive prefixes,
//! carriage returns and the lines of other ranks:
//! `@nccldiag:TOKEN:SENDER:INDEX:LAST:HEX@`, LAST being 1 on the final one.

use crate::probes::wire::Fields;
use memchr::memmem;
use std::collections::BTreeMap;
use std::fmt::Write as _;

/// What a framed line has in it.
pub const MARK: &str = "@nccldiag:";
/// Payload bytes on one line, so that a line is shorter than 512 bytes: pipes
/// pass that in one piece.
const CHUNK: usize = 192;
/// The most reports that one output may hold.
const MAX_SENDERS: usize = 4096;
/// The most lines that one report may have.
const MAX_LINES: u32 = 65_536;

/// A report as lines to print. `sender` (letters and digits) tells reports of
/// one token apart.
pub fn encode(token: &str, sender: &str, report: &Fields) -> String {
    let bytes = report.encode();
    let count = bytes.len().div_ceil(CHUNK).max(1);
    let mut text = String::new();
    for index in 0..count {
        let part = &bytes[index * CHUNK..bytes.len().min((index + 1) * CHUNK)];
        let last = u8::from(index + 1 == count);
        let _ = writeln!(text, "{MARK}{token}:{sender}:{index}:{last}:{}@", hex(part));
    }
    text
}

/// The whole reports in some output, one for each sender, in the order of
/// their first line. Damaged or incomplete ones are left out.
pub fn decode(output: &[u8], token: &str) -> Vec<Fields> {
    let mut senders: Vec<(&[u8], Pieces)> = Vec::new();
    for start in memmem::find_iter(output, MARK) {
        let rest = &output[start + MARK.len()..];
        let Some(line) = parse(rest, token) else { continue };
        let known = senders.iter().position(|(sender, _)| *sender == line.sender);
        let index = match known {
            Some(index) => index,
            None if senders.len() < MAX_SENDERS => {
                senders.push((line.sender, Pieces::default()));
                senders.len() - 1
            }
            None => continue,
        };
        senders[index].1.add(line);
    }
    senders.iter().filter_map(|(_, pieces)| pieces.whole()).collect()
}

struct Line<'a> {
    sender: &'a [u8],
    index: u32,
    last: bool,
    payload: Vec<u8>,
}

fn parse<'a>(rest: &'a [u8], token: &str) -> Option<Line<'a>> {
    let end = rest.iter().take(4096).position(|&b| b == b'@')?;
    let mut parts = rest[..end].split(|&b| b == b':');
    let mut next = || parts.next();
    if next()? != token.as_bytes() {
        return None;
    }
    let sender = next()?;
    let index = std::str::from_utf8(next()?).ok()?.parse().ok().filter(|&i| i < MAX_LINES)?;
    let last = next()? == b"1";
    let payload = unhex(next()?)?;
    Some(Line { sender, index, last, payload })
}

/// Bytes as lower-case hexadecimal digits.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// The bytes behind hexadecimal digits; `None` for anything else.
pub fn unhex(text: &[u8]) -> Option<Vec<u8>> {
    let (pairs, odd) = text.as_chunks::<2>();
    let digit = |b: u8| char::from(b).to_digit(16);
    if !odd.is_empty() {
        return None;
    }
    pairs.iter().map(|[a, b]| u8::try_from(digit(*a)? * 16 + digit(*b)?).ok()).collect()
}

#[derive(Default)]
struct Pieces {
    parts: BTreeMap<u32, Vec<u8>>,
    last: Option<u32>,
}

impl Pieces {
    fn add(&mut self, line: Line) {
        if line.last {
            self.last = Some(line.index);
        }
        self.parts.insert(line.index, line.payload);
    }

    fn whole(&self) -> Option<Fields> {
        let last = self.last?;
        if self.parts.range(..=last).count() != last as usize + 1 {
            return None;
        }
        let bytes: Vec<u8> = self.parts.range(..=last).flat_map(|(_, p)| p).copied().collect();
        Some(Fields::decode(&bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn report(size: usize) -> Fields {
        let mut fields = Fields::default();
        fields.push("role", "probe").push("live", vec![b'x'; size]);
        fields
    }

    #[test]
    fn two_ranks_with_prefixes_and_noise_are_told_apart() {
        let (a, b) = (report(700), report(3));
        let (first, second) = (encode("t", "n1p5", &a), encode("t", "n2p5", &b));
        let mut output = String::from("Welcome!\r\n");
        let mut lines_b = second.lines();
        for line in first.lines() {
            let _ = write!(output, "[0]: {line}\r\n[1]: {}\n", lines_b.next().unwrap_or("noise @"));
        }
        assert_eq!(decode(output.as_bytes(), "t"), [a, b]);
        assert!(decode(output.as_bytes(), "other").is_empty());
    }

    #[test]
    fn a_report_with_a_missing_line_is_left_out() {
        let text = encode("t", "s", &report(700));
        let cut: String = text.lines().skip(1).map(|l| format!("{l}\n")).collect();
        assert!(decode(cut.as_bytes(), "t").is_empty());
    }

    proptest! {
        #[test]
        fn any_output_is_read_without_panic(bytes in proptest::collection::vec(any::<u8>(), 0..512)) {
            let mut output = b"@nccldiag:t:s:0:1:".to_vec();
            output.extend_from_slice(&bytes);
            decode(&output, "t");
        }
    }
}
