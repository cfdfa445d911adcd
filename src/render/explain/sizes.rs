//! Sizes, figures and lists of numbers in words. Units are those of NCCL's
//! tools: KiB are 1024 bytes, GB/s are 1e9 bytes.

use super::block::{NOT_AVAILABLE, Tone};

/// A size in the largest unit in which it is a whole number: `64 KiB`.
pub fn bytes(bytes: u64) -> String {
    const UNITS: [(&str, u64); 3] = [("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];
    let fits = UNITS.iter().find(|(_, unit)| bytes > 0 && bytes.is_multiple_of(*unit));
    fits.map_or_else(|| format!("{bytes} B"), |(name, unit)| format!("{} {name}", bytes / unit))
}

/// The smallest and the largest size of several.
pub fn bytes_span(from: u64, to: u64) -> String {
    if from == to { bytes(from) } else { format!("{} - {}", bytes(from), bytes(to)) }
}

/// A figure with as many digits as an estimate deserves, and at least those
/// that NCCL's own log has where it is small.
pub fn figure(value: f64) -> String {
    match value.abs() {
        v if !v.is_finite() => NOT_AVAILABLE.into(),
        0.0 => "0".into(),
        v if v < 0.01 => "<0.01".into(),
        v if v < 0.995 => format!("{value:.2}"),
        v if v < 99.95 => format!("{value:.1}"),
        _ => format!("{value:.0}"),
    }
}

/// The fewest and the most, once when they are the same.
pub fn span([from, to]: [String; 2]) -> String {
    if from == to { from } else { format!("{from}-{to}") }
}

/// Numbers, with neighbours as ranges: `0-11, 14`.
pub fn numbers(list: &[u32]) -> String {
    let runs = list.chunk_by(|a, b| a.checked_add(1) == Some(*b));
    let run = |run: &[u32]| match run {
        [first, .., last] => format!("{first}-{last}"),
        one => one.iter().map(u32::to_string).collect(),
    };
    runs.map(run).collect::<Vec<_>>().join(", ")
}

/// Ratios of times in words, for the smallest and the largest size: above 1 is
/// slower.
pub fn slower(ratio: [f64; 2]) -> (String, Tone) {
    let [first, last] = ratio.map(factor);
    let text = match (&first, &last) {
        (Some((a, way)), Some((b, other))) if way == other => match way {
            Way::Same => "same".into(),
            way => format!("{}x {}", span([a.clone(), b.clone()]), way.word()),
        },
        (Some(a), Some(b)) => format!("{} to {}", whole(a), whole(b)),
        _ => NOT_AVAILABLE.into(),
    };
    let ways = [first, last].map(|side| side.map(|(_, way)| way));
    let tone = match ways {
        ways if ways.contains(&Some(Way::Slower)) => Tone::Bad,
        ways if ways.contains(&Some(Way::Faster)) => Tone::Good,
        _ => Tone::Plain,
    };
    (text, tone)
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Same,
    Slower,
    Faster,
}

impl Way {
    fn word(self) -> &'static str {
        match self {
            Self::Same => "same",
            Self::Slower => "slower",
            Self::Faster => "faster",
        }
    }
}

fn whole((factor, way): &(String, Way)) -> String {
    if *way == Way::Same { "same".into() } else { format!("{factor}x {}", way.word()) }
}

/// How many times slower or faster. Half a percent is no difference.
fn factor(ratio: f64) -> Option<(String, Way)> {
    if !ratio.is_finite() || ratio <= 0.0 {
        return None;
    }
    let factor = ratio.max(1.0 / ratio);
    let way = match ratio {
        _ if factor < 1.005 => Way::Same,
        r if r > 1.0 => Way::Slower,
        _ => Way::Faster,
    };
    let digits = match factor {
        f if f < 1.095 => 2,
        f if f < 99.5 => 1,
        _ => 0,
    };
    Some((format!("{factor:.digits$}"), way))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_exact() {
        for (size, text) in [
            (0, "0 B"),
            (8, "8 B"),
            (1000, "1000 B"),
            (1024, "1 KiB"),
            (4_915_200, "4800 KiB"),
            (1 << 20, "1 MiB"),
            ((1 << 20) + 4, "1048580 B"),
            (3 << 30, "3 GiB"),
            (u64::MAX, "18446744073709551615 B"),
        ] {
            assert_eq!(bytes(size), text);
        }
        assert_eq!(bytes_span(8, 65536), "8 B - 64 KiB");
        assert_eq!(bytes_span(8, 8), "8 B");
    }

    #[test]
    fn figures_have_sensible_digits() {
        for (value, text) in [
            (0.0, "0"),
            (0.0005, "<0.01"),
            (0.1, "0.10"),
            (0.999, "1.0"),
            (7.84, "7.8"),
            (37.9, "37.9"),
            (99.97, "100"),
            (220.8, "221"),
            (1_234_567.8, "1234568"),
            (f64::NAN, "n/a"),
            (f64::INFINITY, "n/a"),
        ] {
            assert_eq!(figure(value), text);
        }
    }

    #[test]
    fn numbers_are_folded() {
        assert_eq!(numbers(&[]), "");
        assert_eq!(numbers(&[3]), "3");
        assert_eq!(numbers(&[0, 1, 2, 5, 7, 8]), "0-2, 5, 7-8");
        assert_eq!(numbers(&[u32::MAX, 0]), "4294967295, 0");
    }

    #[test]
    fn ratios_are_said_from_the_other_sides_view() {
        for (ratio, text, tone) in [
            ([1.0, 1.004], "same", Tone::Plain),
            ([1.9, 1.9], "1.9x slower", Tone::Bad),
            ([1.2, 1.94], "1.2-1.9x slower", Tone::Bad),
            ([0.5, 0.5], "2.0x faster", Tone::Good),
            ([1.05, 1.05], "1.05x slower", Tone::Bad),
            ([0.5, 1.0], "2.0x faster to same", Tone::Good),
            ([1.0, 150.0], "same to 150x slower", Tone::Bad),
            ([0.0, 1.0], "n/a", Tone::Plain),
            ([f64::NAN, f64::INFINITY], "n/a", Tone::Plain),
        ] {
            assert_eq!(slower(ratio), (text.to_owned(), tone));
        }
    }
}
