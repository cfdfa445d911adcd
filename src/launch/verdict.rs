//! Decides, from the four views of one variable in one process, what became of
//! one setting. Pure: reads nothing, prints nothing.

use crate::model::{Code, Latched, Place, Seen, Verdict};
use crate::nccl::integer::{Parsed, parse_like_nccl};

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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Unreadable;

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
}
