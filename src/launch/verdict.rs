//! Decides, from the four views of one variable in one process, what became of
//! one setting. Pure: reads nothing, prints nothing.

use crate::model::{Code, Latched, Place, Seen, Verdict};

/// Everything known about one variable in one observed process, seen from one
/// place that set it.
pub struct Evidence<'a> {
    /// The place in question.
    pub place: Place,
    /// What it set.
    pub expected: &'a [u8],
    /// What other places on the same way set.
    pub rivals: &'a [(Place, Vec<u8>)],
    /// View E.
    pub exec: &'a Seen,
    /// E shows signs of a process title written over it.
    pub exec_damaged: bool,
    /// E has this very value too, behind another entry of the same name.
    pub exec_shadowed: bool,
    /// View L.
    pub live: &'a Seen,
    /// View N.
    pub latched: &'a Latched,
    /// What NCCL's last `getenv` of the name was answered.
    pub read: &'a Seen,
    /// The name begins with `NCCL_`: only those are listed in the library.
    pub is_nccl_name: bool,
    /// NCCL's `getenv` calls were recorded, so that one not seen was not made.
    pub witnessed: bool,
    /// Python's mapping, of this process or of its parent, has the value.
    pub in_mapping: bool,
}

/// The verdict, and the finding that explains it when there is something to
/// explain.
pub fn judge(e: &Evidence) -> (Verdict, Option<Code>) {
    match e.live {
        Seen::Unreadable(_) => (Verdict::CannotTell, Some(Code::CannotTell)),
        Seen::Value(live) if live == e.expected => arrived(e),
        _ => lost(e),
    }
}

/// The value is live: did NCCL take it, and how did it get here?
fn arrived(e: &Evidence) -> (Verdict, Option<Code>) {
    if let Some(verdict) = taken_differently(e) {
        return verdict;
    }
    match e.exec {
        Seen::Value(exec) if exec == e.expected => (Verdict::Delivered, remark(e)),
        _ if e.exec_damaged => (Verdict::ExecOverwritten, Some(Code::ExecBlockOverwritten)),
        Seen::Unreadable(_) => (Verdict::CannotTell, Some(Code::CannotTell)),
        _ => (Verdict::LiveOnly, Some(Code::LiveOnly)),
    }
}

/// A verdict when NCCL has something else than the live value.
fn taken_differently(e: &Evidence) -> Option<(Verdict, Option<Code>)> {
    let parsed = || Some((Verdict::ParsedDifferently, Some(Code::ParsedDifferently)));
    let too_late = || Some((Verdict::SetAfterLatched, Some(Code::SetAfterLatched)));
    match e.read {
        // The answer that NCCL was given says more than its cache, which may
        // hold the default and so equal the value by chance.
        Seen::Absent => return too_late(),
        Seen::Value(read) if read != e.expected => return too_late(),
        _ => {}
    }
    match e.latched {
        // A name that NCCL was seen reading is known to it.
        Latched::NoSuchParameter if e.read.is_known() || !e.is_nccl_name => None,
        Latched::NoSuchParameter => Some((Verdict::UnknownVariable, Some(Code::UnknownVariable))),
        Latched::Value(n) => match parse_like_nccl(e.expected) {
            // An empty string counts as unset: the cache says nothing.
            Parsed::Empty => None,
            Parsed::Whole(m) if m == *n => None,
            Parsed::Prefix(m) | Parsed::Octal(m) if m == *n => parsed(),
            Parsed::Overflow => parsed(),
            Parsed::Whole(_) | Parsed::Prefix(_) | Parsed::Octal(_) => too_late(),
        },
        // Not read yet, but NCCL will make something else of it.
        Latched::NotRead => match parse_like_nccl(e.expected) {
            Parsed::Prefix(_) | Parsed::Octal(_) | Parsed::Overflow => parsed(),
            Parsed::Whole(_) | Parsed::Empty => None,
        },
        _ => None,
    }
}

/// A delivered value may still be worth a remark.
fn remark(e: &Evidence) -> Option<Code> {
    match e.latched {
        Latched::NotRead => Some(Code::NotRead),
        Latched::NoSuchParameter if !e.read.is_known() => Some(Code::NotRead),
        Latched::NotCached if e.read.is_known() => None,
        Latched::NotCached if e.witnessed => Some(Code::NotRead),
        Latched::NotCached => Some(Code::NcclNotChecked),
        Latched::Unreadable(_) => Some(Code::NcclNotChecked),
        _ => None,
    }
}

/// The live environ has another value or none.
fn lost(e: &Evidence) -> (Verdict, Option<Code>) {
    let delivered = e.exec.value() == Some(e.expected);
    let winner = e
        .live
        .value()
        .and_then(|live| e.rivals.iter().find(|(_, value)| value == live).map(|&(place, _)| place));
    match winner {
        _ if e.exec_shadowed && e.live == e.exec => {
            (Verdict::Overwritten, Some(Code::DuplicateEntry))
        }
        Some(Place::Site) => (Verdict::Overwritten, Some(Code::OverwrittenBySiteFile)),
        Some(Place::Conf) => (Verdict::Overwritten, Some(Code::OverwrittenByConfFile)),
        Some(Place::Child) if delivered => {
            (Verdict::ChangedAfterExec, Some(Code::ChangedAfterExec))
        }
        Some(_) => (Verdict::Overwritten, Some(Code::Overwritten)),
        None if delivered && e.live.value().is_some() => {
            (Verdict::ChangedAfterExec, Some(Code::ForeignValue))
        }
        None if delivered => (Verdict::ChangedAfterExec, Some(Code::ChangedAfterExec)),
        None if is_beginning(e) => (Verdict::Overwritten, Some(Code::Overwritten)),
        None if e.in_mapping => (Verdict::MappingOnly, Some(Code::PythonMappingOnly)),
        None if e.live.value().is_some() => (Verdict::Overwritten, Some(Code::ForeignValue)),
        // Not live, that is sure; a missing entry of a block that could not be
        // read, or was written over, proves nothing.
        None if e.exec_damaged || !e.exec.is_known() => {
            (Verdict::CannotTell, Some(Code::CannotTell))
        }
        None => (Verdict::NeverDelivered, Some(Code::NeverDelivered)),
    }
}

/// A conf file's line was cut: only a beginning of the value is live.
fn is_beginning(e: &Evidence) -> bool {
    let live = e.live.value().unwrap_or_default();
    e.place == Place::Conf && !live.is_empty() && e.expected.starts_with(live)
}

/// What `strtoll(text, NULL, 0)`, NCCL's parser for integers, makes of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parsed {
    /// The empty string, which NCCL takes for unset.
    Empty,
    /// The whole text is a number.
    Whole(i64),
    /// The whole text is an octal number that reads as another decimal one:
    /// `010` is 8.
    Octal(i64),
    /// Only a beginning is (0 when not even that): the rest is silently
    /// dropped, as in `8M`.
    Prefix(i64),
    /// Out of range: NCCL warns and takes its default.
    Overflow,
}

/// Parses as NCCL does (measured on 2.18.3 to 2.32.3).
pub fn parse_like_nccl(text: &[u8]) -> Parsed {
    if text.is_empty() {
        return Parsed::Empty;
    }
    let blank = |b: &u8| matches!(b, b' ' | b'\t'..=b'\r');
    let start = text.iter().position(|b| !blank(b)).unwrap_or(text.len());
    let (negative, signed) = match text.get(start) {
        Some(b'-') => (true, 1),
        Some(b'+') => (false, 1),
        _ => (false, 0),
    };
    let digits = &text[start + signed..];
    let (radix, skip) = match digits {
        [b'0', b'x' | b'X', d, ..] if d.is_ascii_hexdigit() => (16, 2),
        [b'0', ..] => (8, 0),
        _ => (10, 0),
    };
    let body = &digits[skip..];
    let mut value = Some(0i128);
    let mut used = 0;
    for digit in body.iter().map_while(|&b| char::from(b).to_digit(radix)) {
        used += 1;
        // Saturates far above 64 bits, which is out of range in any case.
        value = value.map(|v| (v * i128::from(radix) + i128::from(digit)).min(1 << 80));
    }
    let value = value.map_or(0, |v| if negative { -v } else { v });
    let Ok(value) = i64::try_from(value) else { return Parsed::Overflow };
    match used == body.len() && used > 0 {
        true if radix == 8 && value.unsigned_abs() > 7 => Parsed::Octal(value),
        true => Parsed::Whole(value),
        false => Parsed::Prefix(value),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Unreadable;
    use proptest::prelude::*;

    fn value(text: &str) -> Seen {
        Seen::Value(text.as_bytes().to_vec())
    }

    struct Views {
        exec: Seen,
        live: Seen,
        latched: Latched,
        read: Seen,
    }

    impl Views {
        fn new(exec: Option<&str>, live: Option<&str>, latched: Latched) -> Self {
            let seen = |v: Option<&str>| v.map_or(Seen::Absent, value);
            let read = Seen::Unreadable(Unreadable::new("not witnessed"));
            Self { exec: seen(exec), live: seen(live), latched, read }
        }

        fn judge(&self, expected: &str, rivals: &[(Place, Vec<u8>)]) -> Verdict {
            judge(&Evidence {
                place: Place::Shell,
                witnessed: false,
                is_nccl_name: true,
                expected: expected.as_bytes(),
                rivals,
                exec: &self.exec,
                exec_damaged: false,
                exec_shadowed: false,
                live: &self.live,
                latched: &self.latched,
                read: &self.read,
                in_mapping: false,
            })
            .0
        }
    }

    #[test]
    fn the_four_views_give_the_verdicts_of_the_method() {
        let rows = [
            (Some("5"), Some("5"), Latched::Value(5), Verdict::Delivered),
            (None, Some("5"), Latched::Value(5), Verdict::LiveOnly),
            (Some("1"), Some("5"), Latched::Value(1), Verdict::SetAfterLatched),
            (Some("5"), None, Latched::Value(-1), Verdict::ChangedAfterExec),
            (None, None, Latched::NotRead, Verdict::NeverDelivered),
            (Some("5"), Some("5"), Latched::NoSuchParameter, Verdict::UnknownVariable),
            (Some("5"), Some("7"), Latched::Value(7), Verdict::ChangedAfterExec),
            (None, Some("7"), Latched::Value(7), Verdict::Overwritten),
        ];
        for (exec, live, latched, expected) in rows {
            let views = Views::new(exec, live, latched);
            assert_eq!(views.judge("5", &[]), expected, "{exec:?} {live:?}");
        }
    }

    #[test]
    fn a_site_file_that_wins_is_named() {
        let views = Views::new(Some("1"), Some("4"), Latched::Value(4));
        let rivals = [(Place::Site, b"4".to_vec())];
        assert_eq!(views.judge("1", &rivals), Verdict::Overwritten);
    }

    #[test]
    fn a_cut_integer_is_not_delivered() {
        let views = Views::new(Some("8M"), Some("8M"), Latched::Value(8));
        assert_eq!(views.judge("8M", &[]), Verdict::ParsedDifferently);
    }

    #[test]
    fn integers_parse_as_strtoll_does() {
        let rows = [
            ("8M", Parsed::Prefix(8)),
            ("abc", Parsed::Prefix(0)),
            ("0x100", Parsed::Whole(256)),
            ("010", Parsed::Octal(8)),
            ("007", Parsed::Whole(7)),
            ("0", Parsed::Whole(0)),
            ("0x", Parsed::Prefix(0)),
            ("089", Parsed::Prefix(0)),
            (" -2", Parsed::Whole(-2)),
            ("1e6", Parsed::Prefix(1)),
            ("", Parsed::Empty),
            ("-", Parsed::Prefix(0)),
            ("9223372036854775807", Parsed::Whole(i64::MAX)),
            ("-9223372036854775808", Parsed::Whole(i64::MIN)),
            ("9223372036854775808", Parsed::Overflow),
        ];
        for (text, parsed) in rows {
            assert_eq!(parse_like_nccl(text.as_bytes()), parsed, "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn agrees_with_libc(text in "[ \t]{0,2}[-+]?(0x|0X|0)?[0-9a-fA-FxX]{0,20}[a-zA-Z ]{0,2}") {
            let c = std::ffi::CString::new(text.clone()).expect("no NUL in the pattern");
            // SAFETY: a C string and a null end pointer.
            let (libc_value, errno) = unsafe {
                *libc::__errno_location() = 0;
                (libc::strtoll(c.as_ptr(), std::ptr::null_mut(), 0), *libc::__errno_location())
            };
            match parse_like_nccl(text.as_bytes()) {
                Parsed::Empty => prop_assert!(text.is_empty()),
                Parsed::Whole(n) | Parsed::Prefix(n) | Parsed::Octal(n) => prop_assert_eq!((n, errno), (libc_value, 0)),
                Parsed::Overflow => prop_assert_eq!(errno, libc::ERANGE),
            }
        }
    }
}
